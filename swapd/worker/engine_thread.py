"""The thread that opens the engine, runs its loop and closes it, and how the Trio thread hears of it."""

from __future__ import annotations

import logging
import time
from threading import Thread
from typing import Final

import trio

from swapd.engines.base import Engine
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Alarm
from swapd.worker.book import Book
from swapd.worker.commands import Rooms
from swapd.worker.copier import CopyThread
from swapd.worker.loop import EngineLoop, Snapshot
from swapd.worker.mailbox import EVENT_TICKET, Inbox, Outbox
from swapd.worker.schedule import ScheduleBook
from swapd.worker.settings import WorkerSettings
from swapd.worker.staging import Staging
from swapd.worker.transfers import ArenaSlot, Transfers

COPY_STOP_S: Final = 2.0
"""For the block under way; a copy thread that hangs longer is left to the exit."""

_log = logging.getLogger("swapd.worker")


class EngineThread:
    """Owns the engine. `opened` and `ended` are set on the Trio thread, `ended` always last."""

    def __init__(self, settings: WorkerSettings, inbox: Inbox, outbox: Outbox) -> None:
        self._settings = settings
        self._inbox = inbox
        self._outbox = outbox
        self._token = trio.lowlevel.current_trio_token()
        self._loop: EngineLoop | None = None
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self.arena = ArenaSlot()
        self.rooms: Rooms | None = None
        self.opened = trio.Event()
        self.ended = trio.Event()
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def snapshot(self) -> Snapshot:
        return self._loop.snapshot if self._loop else Snapshot()

    async def stop(self, timeout_s: float) -> None:
        """Ask the thread to end after its step and wait that long; a hung step is left to the exit."""
        self._inbox.stop()
        with trio.move_on_after(timeout_s):
            await self.ended.wait()

    def _run(self) -> None:
        engine: Engine | None = None
        try:
            engine = open_engine(self._settings)
            self.rooms = self._furnish(engine)
            self._loop = EngineLoop(self.rooms, self._inbox, self._outbox.post)
            self._tell(self.opened)
            self._loop.run()
        except BaseException as error:  # supervision boundary: the process ends, with this as its reason
            self.error = error
            code = error.code if isinstance(error, SwapdError) else Code.ENGINE_FAILED
            _log.exception("engine failed", extra={"code": code, "error_type": type(error).__name__})
            self._outbox.post(EVENT_TICKET, Alarm("engine_failed", type(error).__name__))
        finally:
            self._close(engine)
            self._tell(self.ended)

    def _furnish(self, engine: Engine) -> Rooms:
        staging = Staging()
        transfers = Transfers(
            engine.info,
            engine,
            self.arena,
            staging,
            self._inbox,
            self._outbox.post,
            self._settings.break_copy,
        )
        return Rooms(
            engine=engine,
            book=Book(engine.info),
            staging=staging,
            arena=self.arena,
            transfers=transfers,
            precopy=CopyThread("precopy", self._settings.precopy_duty),
            tails=CopyThread("tails"),
            schedule=ScheduleBook(self._settings.record_schedule),
        )

    def _close(self, engine: Engine | None) -> None:
        """Copies first: they use the engine's memory."""
        deadline = time.monotonic() + COPY_STOP_S
        if self.rooms is not None:
            for copier in (self.rooms.precopy, self.rooms.tails):
                copier.stop(max(0.0, deadline - time.monotonic()))
        if engine is not None:
            try:
                engine.close()
            except Exception as error:  # supervision boundary: the process ends anyway
                _log.warning("engine did not close", extra={"error_type": type(error).__name__})

    def _tell(self, event: trio.Event) -> None:
        try:
            self._token.run_sync_soon(event.set)
        except trio.RunFinishedError:
            return


def open_engine(settings: WorkerSettings) -> Engine:
    """Open the engine that the settings name. Call it on the engine thread.

    Imported here, so that `sim` needs no torch and nothing but a worker loads an engine.
    """
    if settings.engine == "sim":
        from swapd.engines.sim import open_sim

        return open_sim(settings.sim)
    if settings.model is None:
        raise SwapdError(Code.CONFIG_INVALID, "the vllm engine needs a model")
    from swapd.engines.vllm import open_engine as open_vllm

    return open_vllm(settings.model, cores=settings.cores)
