"""The coordinator's end of one worker: find or start it, speak to it, notice when it is gone.

    absent → starting → ready ⇄ suspect → dead → (back-off) → starting …
                 ↑ resume            ↘ pause → stopped

A link outlives the incarnations of its worker. It can be told that its worker is not wanted: then none is
started, and once it is to be paused the one that is there is asked to end, and killed if it does not.
What both say is the `Dialogue`; tokens and heartbeats go to the hooks in the order in which they came.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Literal, Protocol, TypeVar

import trio
import zmq

from swapd.config import Config, WorkerConfig
from swapd.errors import Code, SwapdError
from swapd.messages.envelope import EVENT, decode_report
from swapd.messages.from_worker import (
    Alarm,
    FromWorker,
    Heartbeat,
    Inventory,
    Ready,
    Refused,
    Tokens,
    WorkerStats,
)
from swapd.messages.generation import Owner
from swapd.messages.to_worker import Grant, Hello, InventoryQuery, ToWorker
from swapd.transport.arena import Arena
from swapd.transport.fdpass import send_arena
from swapd.transport.sockets import TrioSocket, open_socket
from swapd.worker.dialogue import Dialogue
from swapd.worker.restarts import Restarts
from swapd.worker.silence import Silence
from swapd.worker.spawn import STOP_WAIT_S, WorkerProcess, find, spawn
from swapd.worker.wanted import Wanted

log = logging.getLogger("swapd.worker.link")

LinkState = Literal["starting", "ready", "suspect", "dead", "stopped"]
LOOK_EVERY_S: Final = 0.5
"""How often a link looks for a worker that somebody else starts."""

M = TypeVar("M")


class LinkHooks(Protocol):
    """Whom a link tells. All are called on the Trio thread and return at once, except `attached`."""

    def tokens(self, link: WorkerLink, message: Tokens) -> None: ...
    def grants(self, link: WorkerLink, sessions: Iterable[str]) -> Sequence[Grant]: ...
    def heartbeat(self, link: WorkerLink) -> None: ...
    def changed(self, link: WorkerLink) -> None: ...
    def absent(self, link: WorkerLink) -> None: ...
    async def attached(self, link: WorkerLink, inventory: Inventory) -> None: ...
    def lost(self, link: WorkerLink, owner: Owner) -> None: ...


class WorkerLink:
    """One configured worker. `run` is its actor; the rest may be called from any task of the service."""

    def __init__(
        self,
        config: Config,
        worker: WorkerConfig,
        *,
        generation: int,
        context: zmq.Context[zmq.Socket[bytes]],
        arena: Arena | None,
        hooks: LinkHooks,
    ) -> None:
        self.worker = worker
        self.name = worker.worker_id
        self.state: LinkState = "starting"
        self.reason: str | None = None
        self.ready: Ready | None = None
        self.stats: WorkerStats | None = None
        self.alarms = 0
        self.fenced = 0
        self.swept = 0
        """Imports that the worker's sweep freed, over all its incarnations since start."""
        self._config = config
        self._timers = config.timers
        self._generation = generation
        self._context = context
        self._arena = arena
        self._hooks = hooks
        self._dialogue = Dialogue(self.name, generation, config.timers)
        self._silence = Silence(self._timers.heartbeat_s, 0.0)
        self._process: WorkerProcess | None = None
        self._down = trio.CancelScope()
        self._restarts = Restarts(config.worker_restarts)
        self._wanted = Wanted()

    # What others ask of a link ---------------------------------------------------------------

    @property
    def owner(self) -> Owner | None:
        """The incarnation that is connected now, able to own sessions."""
        if self.ready is None or self.state in ("dead", "stopped", "starting"):
            return None
        return Owner(self.name, self.ready.incarnation)

    @property
    def coming(self) -> bool:
        """Whether an incarnation is on its way: being started, or to be started after a pause (B32)."""
        pausing = self.state == "dead" and self.worker.spawn and self._wanted.reason is None
        return self.state == "starting" or (pausing and not self._restarts.given_up)

    def is_owner(self, owner: Owner | None) -> bool:
        """Whether exactly that incarnation is connected."""
        return owner is not None and self.owner == owner

    async def request(self, body: ToWorker, expect: type[M], timeout_s: float | None = None) -> M:
        """Send and wait for the answer of type `expect`, as `Dialogue.request` does."""
        return await self._dialogue.request(body, expect, timeout_s)

    def credit(self, session: str) -> None:
        """The session's grant changed: one message will carry the latest of all such sessions."""
        self._dialogue.credit(session)

    def tell(self, body: ToWorker) -> None:
        """Send without waiting for the effect; a worker that is gone needs no telling (H149 repairs it)."""
        try:
            self._dialogue.send(body)
        except SwapdError as error:
            log.info("command not sent", extra={"worker": self.name, "code": error.code})

    def take_down(self, reason: str) -> None:
        """Treat this incarnation as lost (hung, misbehaving): it is killed and fenced (B33)."""
        self.reason = reason
        if self._process is not None:
            self._process.kill()
        self._down.cancel()

    # Whether the worker is wanted ------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """The process that the link speaks to, if there is one."""
        return self._process.ready.pid if self._process is not None else None

    @property
    def at_rest(self) -> bool:
        """Whether the worker is not wanted and no process of it is left: ended and collected."""
        return self._wanted.at_rest

    def unwant(self, reason: str) -> None:
        """Start no worker from now on; one that is there goes on, so that its sessions can leave."""
        self._wanted.unwant(reason)

    def stop_soon(self, reason: str) -> None:
        """Start no worker, and end the one that is there: asked, then killed; then it is `at_rest`."""
        self._wanted.stop_soon(reason)

    async def pause(self, reason: str) -> None:
        """`stop_soon`, and wait until nothing of it is left, or until it is wanted again.

        Cancelled: the worker is stopped all the same. While `run` is running the wait is bounded by the
        time that a stop takes: asked and killed, `STOP_WAIT_S` each. Repeats wait for the same end.
        """
        self.stop_soon(reason)
        while self._wanted.stopping and not self._wanted.at_rest:
            await self._wanted.wait_changed()

    def resume(self) -> None:
        """The worker is wanted again: start it at once. Wanted already: unchanged."""
        self._wanted.resume()

    # The actor -------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep one incarnation of the worker connected, while it is wanted. Cancelled: leaves the process."""
        task_status.started()
        first = True
        while True:
            if self._wanted.reason is None:
                self._set("starting", None)
            try:
                process = await self._obtain(first)
                if process is not None:
                    connected_at = trio.current_time()
                    try:
                        await self._connected(process)
                        # It ended or was killed; collected here, so that nothing of it is left.
                        with trio.move_on_after(STOP_WAIT_S):
                            await process.wait()
                    finally:
                        process.close()
                    self._restarts.lived(trio.current_time() - connected_at)
            except SwapdError as error:
                self._restarts.lived(0.0)
                log.error("worker is not available", extra={"worker": self.name, "code": error.code})
                self._set("dead", error.sentence)
            first = False
            if self._wanted.reason is not None or self.state == "stopped":
                self._restarts.forget()
                await self._rest()
                continue
            with trio.CancelScope() as self._wanted.starting:
                await trio.sleep(self._restarts.next_pause_s())
            self._wanted.starting = None

    async def stop_process(self) -> None:
        """End the worker process, if there is one (bounded)."""
        process = find(self._config, self.worker)
        self._set("stopped", None)
        if process is not None:
            await process.stop()
            process.close()

    async def _obtain(self, first: bool) -> WorkerProcess | None:
        """The worker's process, found or started; None: it is not wanted."""
        found = find(self._config, self.worker)
        if found is not None:
            return found
        if first:
            self._hooks.absent(self)
        process = None
        if self._wanted.reason is None:
            with trio.CancelScope() as self._wanted.starting:
                process = await self._start_or_wait()
            self._wanted.starting = None
        return process

    async def _start_or_wait(self) -> WorkerProcess:
        if self.worker.spawn:
            if not self._restarts.given_up:
                return await spawn(self._config, self.worker)
            # B32: what fails again and again needs somebody to look at it, not another start.
            log.error("worker is not started any more", extra={"worker": self.name})
            self._set("dead", f"given up after {self._restarts.in_a_row} starts in a row that did not last")
        else:
            self.reason = "waiting for a worker started elsewhere"
        while True:
            # A worker started elsewhere announces itself by its ready file (B31).
            found = find(self._config, self.worker)
            if found is not None:
                return found
            await trio.sleep(LOOK_EVERY_S)

    async def _rest(self) -> None:
        """Nothing of the worker is there until it is wanted, or until somebody else starts it."""
        if self._wanted.reason is not None:
            self._set("stopped", self._wanted.reason)
        while self._wanted.reason is not None:
            self.reason = self._wanted.reason
            found = find(self._config, self.worker)
            if found is not None:
                found.close()
                return
            if self._wanted.rest(True):
                self._hooks.changed(self)
            # A worker that swapd does not start may come at any time.
            with trio.move_on_after(float("inf") if self.worker.spawn else LOOK_EVERY_S):
                await self._wanted.wait_changed()

    async def _connected(self, process: WorkerProcess) -> None:
        """One incarnation, from the first message to its loss."""
        self._wanted.rest(False)
        self._set("starting", None)
        self._process = process
        ready = process.ready
        owner = Owner(self.name, ready.incarnation)
        try:
            async with open_socket(self._context, zmq.DEALER, connect=ready.control) as socket:
                self._dialogue.open(ready.incarnation)
                with trio.CancelScope() as self._down:
                    await self._attend(process, socket)
        except* SwapdError as group:
            # A worker that cannot be introduced is of no use; a hung one must not keep the id.
            self.reason = _first(group).sentence
            process.kill()
        finally:
            self._dialogue.close()
            self.ready = None
            self._process = None
        if self.state == "stopped" or self._wanted.reason is not None:
            self._set("stopped", self._wanted.reason)
            log.info("worker stopped", extra={"worker": self.name, "incarnation": ready.incarnation})
        else:
            self._set("dead", self.reason or "the process ended")
            log.warning("worker lost", extra={"worker": self.name, "incarnation": ready.incarnation})
        self._hooks.lost(self, owner)

    async def _attend(self, process: WorkerProcess, socket: TrioSocket) -> None:
        """Introduce this side, hear what the worker has, and serve the connection until it is cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_process, process)
            nursery.start_soon(self._receive, socket)
            nursery.start_soon(self._dialogue.write, socket, partial(self._hooks.grants, self))
            nursery.start_soon(self._end_unwanted, process)
            await self._introduce(process.ready)
            nursery.start_soon(self._watch_heartbeat)
            inventory = await self.request(InventoryQuery(), Inventory, self._timers.decide_s)
            if self.state == "starting":
                self._set("ready", None)
                await self._hooks.attached(self, inventory)
            else:
                self._hooks.absent(self)  # it is ending already: nobody waits for it

    async def _introduce(self, ready: Ready) -> None:
        # The ready file may be newer or older than the process that listens: trust its own answer.
        self.ready = ready
        answer = await self.request(Hello(self.worker.incarnation), Ready, self._timers.dead_s)
        if answer.incarnation != ready.incarnation:
            raise SwapdError(Code.FENCED, f"worker {self.name} has another incarnation than it announced")
        if self._arena is not None:
            await send_arena(
                answer.arena_socket, self._arena.fd, self._generation, timeout_s=self._timers.dead_s
            )

    async def _watch_process(self, process: WorkerProcess) -> None:
        await process.wait()
        self._down.cancel()

    async def _end_unwanted(self, process: WorkerProcess) -> None:
        """When it is to stop: ask, wait, kill. `_watch_process` sees its end."""
        while not self._wanted.stopping:
            await self._wanted.wait_changed()
        log.info("stopping worker", extra={"worker": self.name, "reason": self._wanted.reason})
        # From here on it takes nothing more, even if it is wanted again before it has ended.
        self._set("stopped", self._wanted.reason)
        process.signal(signal.SIGTERM)
        await trio.sleep(STOP_WAIT_S)
        log.warning("worker did not stop, killing it", extra={"worker": self.name})
        process.kill()

    async def _watch_heartbeat(self) -> None:
        """Heartbeats stop: suspect, then dead: killed, so that it can never come back late (B33)."""
        self._silence = Silence(self._timers.heartbeat_s, trio.current_time())
        while True:
            await trio.sleep(self._timers.heartbeat_s)
            silent_s = self._silence.look(trio.current_time())
            if silent_s >= self._timers.dead_s:
                log.error("worker is silent, ending it", extra={"worker": self.name, "silent_s": silent_s})
                self.take_down("no heartbeat")
                return
            if silent_s >= self._timers.suspect_s and self.state == "ready":
                self._set("suspect", "no heartbeat")
            # The worker, too, must be able to tell a silent coordinator from a dead one.
            self._dialogue.look_up()

    async def _receive(self, socket: TrioSocket) -> None:
        while True:
            for parts in await socket.recv_batch():
                try:
                    report = decode_report(parts[-1])
                except SwapdError as error:
                    log.warning("frame refused", extra={"worker": self.name, "code": error.code})
                    continue
                ready = self.ready
                if ready is None or report.incarnation != ready.incarnation:
                    self.fenced += 1  # H104
                    continue
                self._silence.heard(trio.current_time())
                if self.state == "suspect":
                    self._set("ready", None)
                self._dispatch(report.request, report.body)

    def _dispatch(self, number: int, body: FromWorker) -> None:
        if number != EVENT:
            self._dialogue.answered(number, body)
            return
        if isinstance(body, Tokens):
            self._hooks.tokens(self, body)
        elif isinstance(body, Heartbeat):
            self._count_swept(body.stats.swept)
            self.stats = body.stats
            self._hooks.heartbeat(self)
        elif isinstance(body, Alarm):
            self.alarms += 1
            log.error("worker alarm", extra={"worker": self.name, "code": body.code})
        elif isinstance(body, Refused):
            log.warning("worker refused a frame", extra={"worker": self.name, "code": body.code})
            if body.code == Code.FENCED:
                self.take_down("another coordinator took over")

    def _count_swept(self, swept: int) -> None:
        # What was swept before the first heartbeat may have been counted by an earlier coordinator (H180).
        before = self.stats.swept if self.stats is not None else swept
        self.swept += swept - before if swept >= before else swept

    def _set(self, state: LinkState, reason: str | None) -> None:
        changed = state != self.state
        self.state = state
        self.reason = reason
        if changed:
            self._hooks.changed(self)


def _first(group: BaseExceptionGroup[SwapdError]) -> SwapdError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, SwapdError)
    return error
