"""The engine thread: drain commands, settle, step, publish; nothing else touches the engine's state.

    commands → grants → settle → answer Prepare → step → tokens → snapshot

The Trio thread sees only the snapshot and what is posted. An exception of the engine ends the thread, and
with it the process: its state cannot be trusted any more.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from statistics import median
from typing import Final

import msgspec

from swapd.engines.base import Engine, StepResult
from swapd.errors import SwapdError
from swapd.messages.from_worker import Alarm, StepRecord
from swapd.worker.commands import Commands, Post, Rooms
from swapd.worker.mailbox import EVENT_TICKET, Inbox

IDLE_WAIT_S: Final = 0.5
"""An idle engine thread looks for expired imports this often."""
SWEEP_S: Final = 0.25
STEP_TIMES_KEPT: Final = 64

_log = logging.getLogger("swapd.worker")


class Snapshot(msgspec.Struct, frozen=True):
    """What the engine thread publishes after each round; counts are sessions by phase."""

    step: int = 0
    step_ms_median: float = 0.0
    free_blocks: int = 0
    waiting: int = 0
    running: int = 0
    held: int = 0
    frozen: int = 0
    prepared: int = 0
    reserved: int = 0
    sessions: int = 0
    unaccepted: int = 0
    preemptions: int = 0
    fenced: int = 0
    recomputed_tokens: int = 0
    swept: int = 0
    taken_at: float = 0.0
    """On the monotonic clock, which all processes of a host share."""


class EngineLoop:
    """Runs one engine until it is told to stop. Built and run on the engine thread."""

    def __init__(self, rooms: Rooms, inbox: Inbox, post: Post) -> None:
        self._rooms = rooms
        self._inbox = inbox
        self._post = post
        self._commands = Commands(rooms, post)
        self._step_ms: deque[float] = deque(maxlen=STEP_TIMES_KEPT)
        self._preemptions = 0
        self._swept_s = 0.0
        self._swept = 0
        self.snapshot = Snapshot(free_blocks=rooms.engine.free_blocks())

    def run(self) -> None:
        """Serve until `Inbox.stop` or a Stop command. Raises what the engine raises."""
        engine: Engine = self._rooms.engine
        while self.round(0.0 if engine.runnable() else IDLE_WAIT_S):
            pass

    def round(self, wait_s: float) -> bool:
        """What happens from one step boundary to the next, after at most `wait_s`; False: it is to end."""
        work, grants, stopping = self._inbox.take(wait_s)
        for one in work:
            self._commands.handle(one)
        for grant in grants:
            self._commands.grant(grant)
        self._sweep()
        if stopping or self._commands.stop_wanted:
            return False
        self._settle()
        self._commands.announce_prepared()
        if self._rooms.engine.runnable():
            self._step()
        self._publish()
        return True

    def _settle(self) -> None:
        engine, book = self._rooms.engine, self._rooms.book
        self._commands.remove_forgotten()
        settlement = book.settle()
        for session in settlement.enter:
            try:
                engine.start(session.key, session.spec, session.outputs)
            except SwapdError as error:
                _log.error("engine refused a session", extra={"code": error.code})
                self._commands.send(book.fail(session))
        if settlement.arrive:
            engine.activate(settlement.arrive)
        for key in settlement.hold:
            engine.hold(key)
        for key in settlement.unhold:
            engine.unhold(key)

    def _step(self) -> None:
        began = time.monotonic()
        result = self._rooms.engine.step()
        took_s = time.monotonic() - began
        self._commands.step += 1
        self._step_ms.append(took_s * 1000)
        if self._rooms.schedule.on:
            self._rooms.schedule.add(StepRecord(began, took_s, self._rooms.book.names(result.batch)))
        self._commands.send(*self._rooms.book.take(result.tokens, result.rebuilt))
        self._note_preempted(result)

    def _note_preempted(self, result: StepResult) -> None:
        if result.preempted:
            self._preemptions += len(result.preempted)
            self._post(EVENT_TICKET, Alarm("preempted", f"{len(result.preempted)} sessions"))

    def _sweep(self) -> None:
        now = time.monotonic()
        if now - self._swept_s >= SWEEP_S:
            self._swept_s = now
            self._swept += self._commands.expire(now)

    def _publish(self) -> None:
        book, engine = self._rooms.book, self._rooms.engine
        phases = book.phases()
        self.snapshot = Snapshot(
            step=self._commands.step,
            step_ms_median=median(self._step_ms) if self._step_ms else 0.0,
            free_blocks=engine.free_blocks(),
            waiting=phases["waiting"],
            running=phases["running"],
            held=phases["held"],
            frozen=phases["frozen"],
            prepared=phases["prepared"],
            reserved=phases["reserved"],
            sessions=len(book),
            unaccepted=book.unaccepted(),
            preemptions=self._preemptions,
            fenced=book.fenced,
            recomputed_tokens=engine.recomputed(),
            swept=self._swept,
            taken_at=time.monotonic(),
        )
