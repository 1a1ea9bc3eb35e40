"""Whoever asks how the service is comes here: a view for the page, and the archive for those who help."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import trio

from swapd.api import Archive, Service
from swapd.config import Config
from swapd.diagnostics import health
from swapd.diagnostics.archive import Facts, build_archive
from swapd.diagnostics.log_ring import LogRing
from swapd.diagnostics.redaction import shown_config, shown_line
from swapd.diagnostics.run_queue import HIGH_RATIO, RunQueueWatch
from swapd.diagnostics.versions import versions
from swapd.errors import Code, SwapdError
from swapd.lending.device import LentDevice
from swapd.lending.sources import DeviceSources
from swapd.migration.supervisor import MigrationSupervisor
from swapd.store.writer import Store
from swapd.views import (
    Caller,
    DebugView,
    DiagnosticsView,
    LogLine,
    PartView,
)

EXPORT_DEADLINE_S: Final = 20.0
"""From the question to the finished archive; the ops socket gives up after 30 s."""
LINES_SHOWN: Final = 50
DAY_S: Final = 86_400.0
WEEK_S: Final = 7 * DAY_S

log = logging.getLogger("swapd.diagnostics")


class Diagnostics:
    """`sources` is None where no devices are lent. All is called on the Trio thread."""

    def __init__(
        self,
        config: Config,
        config_path: Path,
        store: Store,
        supervisor: MigrationSupervisor,
        devices: Mapping[str, LentDevice],
        sources: DeviceSources | None,
        *,
        log_ring: LogRing | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.run_queue = RunQueueWatch()
        self._config = config
        self._config_path = config_path
        self._store = store
        self._supervisor = supervisor
        self._devices = devices
        self._sources = sources
        self._ring = log_ring or LogRing()
        self._wall = wall
        self._started_at = wall()
        self._versions: dict[str, str] = {}
        # An export that hangs in the disk keeps its place: one at a time, and never a second one beside it.
        self._one = trio.CapacityLimiter(1)

    # The view ------------------------------------------------------------------------------------

    async def view(self, service: Service, caller: Caller) -> DiagnosticsView:
        """How everything is now. Raises what `service` raises."""
        if not self._versions:
            self._versions = await trio.to_thread.run_sync(versions)
        store = self._store.statistics()
        park = self._supervisor.park
        return DiagnosticsView(
            started_at=self._started_at,
            pid=os.getpid(),
            versions=self._versions,
            parts=tuple(await self._parts(service, caller)),
            runqueue_wait_ratio=self.run_queue.ratio,
            commit_ms_p50=round(store.commit_ms_p50, 2),
            commit_ms_p95=round(store.commit_ms_p95, 2),
            arena_bytes=self._supervisor.loans.arena_bytes(),
            park_bytes=park.room.park_bytes() if park is not None else {},
            debug=self.debug_view(),
            log=tuple(_line(line) for line in self._ring.lines(LINES_SHOWN)),
        )

    async def _parts(self, service: Service, caller: Caller) -> Sequence[PartView]:
        status = await service.status(caller)
        store, sources = self._store.statistics(), self._sources
        refusal = self._supervisor.loans.transfer()["refusal"]
        parts = [
            health.store_part(store.failed, store.commit_ms_p50, store.commit_ms_p95, store.stuck_s),
            health.disk_part(store.room, store.disk.free_bytes if store.disk is not None else None),
            health.run_queue_part(self.run_queue.ratio, HIGH_RATIO),
            health.reconciliation_part(await service.reconciliation(caller)),
            health.moves_part(self._supervisor.migration_off(), None if refusal is None else str(refusal)),
            *health.worker_parts(status.workers),
        ]
        if sources is not None:
            seen, kept = sources.attendance.statistics(), sources.keeper.statistics()
            fixed = self._config.owner.gpu_pressure.mode == "fixed"
            parts += [
                health.attendance_part(seen.attendance, seen.detail, seen.losses, seen.crashes),
                *(health.sampler_part(kind, link.statistics()) for kind, link in sources.samplers.items()),
                *health.reading_parts(status.devices),
                health.calibration_part(kept.not_used, kept.saves, kept.failures, fixed=fixed),
            ]
        return parts

    # The debug window ----------------------------------------------------------------------------

    def debug(self, for_s: float) -> DebugView:
        """Log every reading's decision for a time; 0 ends it (R129). Raises `invalid_request`."""
        if self._sources is None:
            raise SwapdError(Code.INVALID_REQUEST, "no [[devices]] are lent, so nothing is decided")
        self._sources.debug.open_for(for_s)
        log.info("debug window", extra={"after_s": for_s})
        return self.debug_view()

    def debug_view(self) -> DebugView:
        """How the debug window stands."""
        if self._sources is None:
            return DebugView(False, None, False)
        window = self._sources.debug
        # Whole seconds: what is said again and again about one window is the same each time.
        until = round(self._wall() + window.left_s) if window.left_s > 0.0 else None
        return DebugView(window.is_open, until, window.by_configuration)

    # The archive ---------------------------------------------------------------------------------

    async def export(self, service: Service, caller: Caller) -> Archive:
        """Make the archive (R128, B42); the caller closes its file. One is made at a time.

        A part that cannot be had is named in it with the reason. Raises `timeout` where it is not ready
        within `EXPORT_DEADLINE_S`, `store_failed` where the archive itself cannot be written. Cancelled: what
        was begun is dropped by its thread.
        """
        given_up = threading.Event()
        try:
            with trio.move_on_after(EXPORT_DEADLINE_S):
                facts = await self._facts(service, caller)
                return await trio.to_thread.run_sync(
                    partial(build_archive, facts, given_up), abandon_on_cancel=True, limiter=self._one
                )
        except OSError as error:
            log.error("diagnostics cannot be written", extra={"error_type": type(error).__name__})
            raise SwapdError(Code.STORE_FAILED, "the archive could not be written") from None
        finally:
            given_up.set()
        raise SwapdError(Code.TIMEOUT, f"the archive was not ready in {EXPORT_DEADLINE_S:.0f} s")

    async def _facts(self, service: Service, caller: Caller) -> Facts:
        view = await self.view(service, caller)
        now = self._wall()
        products = {
            f"device {name}": device.measurement.product
            for name, device in self._devices.items()
            if device.measurement is not None and device.measurement.product is not None
        }
        views: dict[str, object] = {
            "versions.json": {**view.versions, **products},
            "configuration.json": shown_config(self._config),
            "health.json": {
                "parts": view.parts,
                "pid": view.pid,
                "started_at": view.started_at,
                "runqueue_wait_ratio": view.runqueue_wait_ratio,
                "commit_ms": {"p50": view.commit_ms_p50, "p95": view.commit_ms_p95},
                "arena_bytes": view.arena_bytes,
                "park_bytes": view.park_bytes,
                "debug": view.debug,
            },
            "status.json": await service.status(caller),
            "reconciliation.json": await service.reconciliation(caller),
            "calibration/live.json": {
                name: [summary._asdict() for summary in device.pressure.summaries()]
                for name, device in self._devices.items()
                if device.pressure is not None
            },
        }
        missing = {} if self._devices else {"samples": "no devices are lent", "events": "no devices are lent"}
        return Facts(
            now,
            self._config,
            self._config_path,
            views | await self._stored(service, caller, now, missing),
            service.metrics(caller),
            self._ring.lines(),
            missing,
        )

    async def _stored(
        self, service: Service, caller: Caller, now: float, missing: dict[str, str]
    ) -> dict[str, object]:
        """The views that need the database; for one that cannot be had, `missing` gets the reason."""

        async def activity() -> object:
            return {
                "day": await service.activity(caller, now - DAY_S),
                "week": await service.activity(caller, now - WEEK_S),
            }

        async def drains() -> object:
            return await service.drains(caller)

        found: dict[str, object] = {}
        for name, ask in (("activity.json", activity), ("drains.jsonl", drains)):
            try:
                found[name] = await ask()
            except SwapdError as error:
                missing[name] = error.sentence
            except sqlite3.Error as error:
                missing[name] = f"the database cannot be read: {error}"
        return found


def _line(text: str) -> LogLine:
    shown = shown_line(text) or {}
    time_, level, logger, message = (
        str(shown.pop(name, "")) for name in ("time", "level", "logger", "message")
    )
    rest = " ".join(f"{name}={_short(value)}" for name, value in shown.items() if value is not None)
    return LogLine(time_, level, logger, message, rest)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
