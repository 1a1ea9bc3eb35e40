"""A worker without a process: its real control, book, commands, copies and `sim` engine, in one thread.

It decodes when it is told to. What would take its time in a thread of its own happens in one piece, unless
its copies are `slow`: then they get on by one block a decoding step.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final, cast

import trio

from swapd.config import Config, SimConfig
from swapd.engines.sim import open_sim
from swapd.messages.from_worker import Heartbeat, Ready, WorkerStats
from swapd.transport.arena import Arena
from swapd.transport.sockets import TrioSocket
from swapd.worker.book import Book
from swapd.worker.commands import Rooms
from swapd.worker.control import Control, CopyDesk
from swapd.worker.copier import CopyThread, Job
from swapd.worker.loop import EngineLoop
from swapd.worker.mailbox import EVENT_TICKET, Inbox, Outbox, Work
from swapd.worker.schedule import ScheduleBook
from swapd.worker.staging import Staging
from swapd.worker.transfers import ArenaSlot, Transfers
from tests.migration.model.wire import Wire, WorkerEnd

SIM: Final = SimConfig(
    step_ms=0, block_tokens=4, block_bytes=16, blocks=32, max_model_len=48, vocab_size=64, max_num_seqs=6
)


class Copies(CopyThread):
    """A copy thread without a thread."""

    def __init__(self, wake: trio.Event) -> None:
        self.jobs: deque[Job] = deque()
        self._wake = wake

    def submit(self, job: Job) -> None:
        self.jobs.append(job)
        self._wake.set()

    def advance(self) -> bool:
        """One block of the first job; False: there is none."""
        if not self.jobs:
            return False
        job = self.jobs.popleft()
        if self._advance(job):
            self.jobs.append(job)
        return True


class Bell(Inbox):
    """An inbox that says when something has come."""

    def __init__(self, wake: trio.Event) -> None:
        super().__init__()
        self.wake = wake

    def put(self, work: Work) -> None:
        super().put(work)
        self.wake.set()

    def put_grants(self, grants: object) -> None:
        super().put_grants(grants)  # type: ignore[arg-type]  # what the base takes
        self.wake.set()


class Loop(EngineLoop):
    """It steps only as often as it is told to."""

    steps = 0

    def _step(self) -> None:
        if self.steps:
            self.steps -= 1
            super()._step()

    def forget_imports(self) -> None:
        """Nothing was heard of any incomplete import for long (decision 3)."""
        self._commands.expire(time.monotonic() + 1e6)


class ModelWorker:
    """One incarnation. `run` lives until it is killed or asked to stop."""

    def __init__(self, name: str, born: int, wire: Wire, config: Config) -> None:
        self.name = name
        self.wire = wire
        self.slow = False
        self.gone = trio.Event()
        self.engine = open_sim(SIM)
        self.book = Book(self.engine.info)
        self.staging = Staging()
        self.ready = Ready(name, f"{name}.{born}", 0, name, name, self.engine.info, config.window_tokens, {})
        self._config = config
        self._arena: Arena | None = None
        self._slot = ArenaSlot()
        self._wake = trio.Event()
        self._inbox = Bell(self._wake)
        self._outbox = Outbox(trio.lowlevel.current_trio_token())
        transfers = Transfers(
            self.engine.info, self.engine, self._slot, self.staging, self._inbox, self._outbox.post
        )
        self._precopy, self._tails = Copies(self._wake), Copies(self._wake)
        rooms = Rooms(
            self.engine,
            self.book,
            self.staging,
            self._slot,
            transfers,
            self._precopy,
            self._tails,
            ScheduleBook(False),
        )
        self.loop = Loop(rooms, self._inbox, self._outbox.post)
        desk = CopyDesk(self.staging, transfers, self._precopy, self._tails)
        self._control = Control(self.ready, self._inbox, self._outbox, desk)
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        end = cast(TrioSocket, WorkerEnd(self.wire))
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._control.receive, end)
                    nursery.start_soon(self._control.send, end)
                    nursery.start_soon(self._beat)
                    await self._work()
                    nursery.cancel_scope.cancel()
        finally:
            self.gone.set()
            self.wire.burn()
            if self._arena is not None:
                self._arena.close()

    def kill(self) -> None:
        self._scope.cancel()

    def attach(self, fd: int) -> None:
        """The coordinator's arena, as it comes over the worker's own socket."""
        before, self._arena = self._arena, Arena.attach(fd)
        self._slot.put(self._arena)
        if before is not None:
            before.close()

    def decode(self, steps: int) -> None:
        """Let the engine step so often, if it has something to do."""
        self.loop.steps += steps
        self._wake.set()

    def ring(self) -> None:
        self._wake.set()

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            await self.wire.runs()
            self._wake = self._inbox.wake = self._precopy._wake = self._tails._wake = trio.Event()
            if not self.slow:
                while self._tails.advance() or self._precopy.advance():
                    pass
            elif self.loop.steps:
                self._tails.advance()
                self._precopy.advance()
                self.loop.steps -= not self.engine.runnable()
            if not self.loop.round(0.0):
                return
            if self.engine.runnable() or self.slow:
                if self.loop.steps:
                    self._wake.set()
            else:
                self.loop.steps = 0
            await trio.lowlevel.checkpoint()

    async def _beat(self) -> None:
        while True:
            shot = self.loop.snapshot
            counts = (shot.free_blocks, shot.running, shot.held, shot.frozen, shot.reserved, shot.sessions)
            stats = WorkerStats(shot.step, 0.0, *counts, shot.unaccepted, 1, 1, 1, 0, shot.fenced, 0)
            if not self.wire.stopped:
                self._outbox.post(EVENT_TICKET, Heartbeat(stats))
            await trio.sleep(self._config.timers.heartbeat_s)


class ModelProcess:
    """What `WorkerLink` uses of a process."""

    def __init__(self, worker: ModelWorker) -> None:
        self.ready = worker.ready
        self._worker = worker

    async def wait(self) -> None:
        await self._worker.gone.wait()

    def signal(self, number: int) -> None:
        self._worker.kill()

    def kill(self) -> None:
        self._worker.kill()

    async def stop(self) -> None:
        self._worker.kill()
        await self._worker.gone.wait()

    def close(self) -> None:
        pass
