"""The worker process, top to bottom: claim, open the engine, serve one coordinator, leave nothing behind.

    lock and paths ── engine thread ── precopy, tails (copy threads)
           │               │ inbox, outbox
           └── Trio: signals · receive · send · heartbeat · arena socket · orphan watch

Stop is always: ask → bounded wait → leave by `os._exit`. A signal, a Stop command and an orphan's end give
exit code 0; an engine that failed gives 1; a refusal at start is a `SwapdError`.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import trio
import zmq

import swapd
from swapd import failpoints
from swapd.errors import Code, SwapdError
from swapd.interpreter import spare_what_is_here, switch_threads_soon
from swapd.messages.envelope import MAX_FRAME_BYTES
from swapd.messages.from_worker import EngineInfo, Heartbeat, Ready
from swapd.transport.arena import Arena
from swapd.transport.fdpass import serve_arena_socket
from swapd.transport.lock import FileLock
from swapd.transport.sockets import open_socket
from swapd.worker.control import Control, CopyDesk
from swapd.worker.engine_thread import EngineThread
from swapd.worker.mailbox import EVENT_TICKET, Inbox, Outbox
from swapd.worker.paths import WorkerPaths
from swapd.worker.scheduling import yield_to_owner
from swapd.worker.settings import WorkerSettings
from swapd.worker.vitals import vital_signs

ENGINE_STOP_S: Final = 5.0
FLUSH_S: Final = 1.0
LINGER_MS: Final = 500


_log = logging.getLogger("swapd.worker")


def run_worker(settings: WorkerSettings) -> int:
    """Run one worker to its end and return the process's exit code.

    Raises `SwapdError` when it cannot start: `socket_path_too_long` (H105), `worker_lock_held` (H106),
    `config_invalid`, or what the engine refuses with. Prints one line on stdout when it is ready (H101).
    """
    if settings.idle_class:
        yield_to_owner()
    if settings.failpoints:
        failpoints.arm(settings.failpoints, settings.worker_id)
    # The engine thread computes in Python between its kernels; the link's thread must not wait 5 ms for it.
    switch_threads_soon()
    paths = WorkerPaths.claim(settings.socket_dir, settings.worker_id)
    # H106: before any bind, for libzmq takes a live path over without a word.
    lock = FileLock.acquire(paths.lock, Code.WORKER_LOCK_HELD)
    try:
        paths.remove()
        with _stdout_for_ready_line() as stdout:
            process = _Process(settings, paths, stdout)
            code = trio.run(process.run)
    finally:
        paths.remove()
        lock.release()
    if process.engine_hangs:
        _log.error("left with the engine thread hanging")
        os._exit(code)
    return code


def leave(code: int) -> NoReturn:
    """End the process here. Taking torch apart piece by piece takes seconds and frees nothing more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Process:
    """What lives between claim and exit."""

    def __init__(self, settings: WorkerSettings, paths: WorkerPaths, stdout: int) -> None:
        self._settings = settings
        self._paths = paths
        self._stdout = stdout
        self._incarnation = f"inc_{secrets.token_hex(8)}"  # H102
        self._arena_generation = -1
        self._arena: Arena | None = None
        self._engine: EngineThread | None = None

    @property
    def engine_hangs(self) -> bool:
        return self._engine is not None and self._engine.alive

    async def run(self) -> int:
        """Serve until something ends it; returns the exit code."""
        inbox, outbox = Inbox(), Outbox(trio.lowlevel.current_trio_token())
        engine = self._engine = EngineThread(self._settings, inbox, outbox)
        asked = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._watch_signals, asked)
                engine.start()
                nursery.start_soon(self._follow_engine, engine, asked)
                nursery.start_soon(self._serve, engine, inbox, outbox, asked)
                await asked.wait()
                # Engine first, so that what it still says can be sent; then all that serves it.
                await engine.stop(ENGINE_STOP_S)
                with trio.move_on_after(FLUSH_S):
                    await outbox.wait_below(1)
                nursery.cancel_scope.cancel()
        finally:
            if self._arena is not None:
                self._arena.close()
        if isinstance(engine.error, SwapdError) and not engine.opened.is_set():
            raise engine.error
        return 1 if engine.error is not None else 0

    async def _follow_engine(self, engine: EngineThread, asked: trio.Event) -> None:
        await engine.ended.wait()
        asked.set()

    async def _serve(self, engine: EngineThread, inbox: Inbox, outbox: Outbox, asked: trio.Event) -> None:
        await engine.opened.wait()
        rooms = engine.rooms
        assert rooms is not None
        spare_what_is_here()
        ready = self._ready(rooms.engine.info)
        desk = CopyDesk(rooms.staging, rooms.transfers, rooms.precopy, rooms.tails)
        control = Control(ready, inbox, outbox, desk)
        context = zmq.Context()
        try:
            async with (
                open_socket(
                    context,
                    zmq.ROUTER,
                    bind=self._paths.control,
                    max_message_bytes=MAX_FRAME_BYTES,
                    linger_ms=LINGER_MS,
                ) as socket,
                trio.open_nursery() as nursery,
            ):
                await nursery.start(serve_arena_socket, self._paths.arena, self._take_arena)
                nursery.start_soon(control.receive, socket)
                nursery.start_soon(control.send, socket)
                nursery.start_soon(self._beat, engine, control, outbox)
                nursery.start_soon(self._watch_orphan, control, asked)
                self._announce(ready)
        finally:
            context.term()

    def _ready(self, info: EngineInfo) -> Ready:
        versions = {
            "swapd": swapd.__version__,
            "python": platform.python_version(),
            info.engine: info.engine_version,
        }
        return Ready(
            worker=self._settings.worker_id,
            incarnation=self._incarnation,
            pid=os.getpid(),
            control=self._paths.control,
            arena_socket=self._paths.arena,
            info=info,
            window=self._settings.window,
            versions=versions,
        )

    def _announce(self, ready: Ready) -> None:
        """H101: one line, once the sockets accept."""
        line = self._paths.publish(ready)
        try:
            os.write(self._stdout, line)
        except OSError as error:
            _log.warning("nobody reads the ready line", extra={"error_type": type(error).__name__})

    def _take_arena(self, arena: Arena, generation: int) -> None:
        """Replace the arena. Raises `fenced` for one of an older coordinator."""
        if generation < self._arena_generation:
            raise SwapdError(Code.FENCED)
        assert self._engine is not None
        before, self._arena = self._arena, arena
        self._arena_generation = generation
        self._engine.arena.put(arena)
        if before is not None:
            before.close()

    async def _beat(self, engine: EngineThread, control: Control, outbox: Outbox) -> None:
        while True:
            if not outbox.full:
                outbox.post(EVENT_TICKET, Heartbeat(vital_signs(engine.snapshot, control.statistics())))
            await trio.sleep(self._settings.timers.heartbeat_s)

    async def _watch_orphan(self, control: Control, asked: trio.Event) -> None:
        """Decision 3: nobody has spoken to us for `orphan_grace_s`, so what we hold is nobody's."""
        grace_s = self._settings.timers.orphan_grace_s
        while (left_s := grace_s - control.statistics().silent_s) > 0:  # noqa: ASYNC110  # a moving deadline
            await trio.sleep(left_s)
        _log.warning("no coordinator", extra={"grace_s": grace_s})
        asked.set()

    async def _watch_signals(
        self, asked: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """H115: the first signal ends the process cleanly, the second at once."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for number in signals:
                _log.info("signal", extra={"signal": number})
                if asked.is_set():
                    self._paths.remove()
                    os._exit(1)
                asked.set()


@contextmanager
def _stdout_for_ready_line() -> Iterator[int]:
    """Point fd 1 at stderr for everyone, C libraries included, and give the real one for the ready line."""
    sys.stdout.flush()
    kept = os.dup(sys.__stdout__.fileno() if sys.__stdout__ else 1)
    os.dup2(2, 1)
    try:
        yield kept
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
