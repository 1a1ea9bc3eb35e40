"""One actor a device: takes its measurements in, writes down what follows, remembers six hours of them."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec
import trio

from swapd.config import Config
from swapd.device_views import SamplePoint
from swapd.lending.device import LentDevice
from swapd.messages.sampler import Measurement
from swapd.pressure.debug_window import DebugWindow
from swapd.pressure.keeper import CalibrationKeeper
from swapd.pressure.reading import Attendance, Decision, Profile, Reading, reading_from
from swapd.pressure.restoring import NotRestored, Restored
from swapd.store.devices import SAMPLES_KEPT_S, add_samples, prune_samples
from swapd.store.writer import Store

__all__ = ["CalibrationKeeper", "PressureTracker", "TrackerStatistics", "reading_of"]

SAMPLES_EVERY_S: Final = 10.0
"""How far the stored samples may be behind: one write for a few of them."""
PRUNE_EVERY_S: Final = 600.0
SAMPLES_HELD: Final = 1024
"""While the store is slow; the oldest are lost first: they serve plots, not decisions."""

log = logging.getLogger("swapd.pressure")

OnDecision = Callable[[LentDevice, Measurement, Decision], None]


class TrackerStatistics(msgspec.Struct, frozen=True):
    """Counts since the start; `samples_lost` were never stored."""

    measurements: int
    readings: int
    samples_stored: int
    samples_lost: int


def reading_of(measurement: Measurement) -> Reading:
    """What the core makes of a measurement."""
    return reading_from(measurement.result, measurement.reading_pct)


class PressureTracker:
    """Sole writer of a `LentDevice`'s measurement, decision and `valid_at_s`, and of its `DevicePressure`.

    `take` and `missed` are called on the Trio thread, in order of time. `wall` is seconds since 1970.
    """

    def __init__(
        self,
        device: LentDevice,
        config: Config,
        keeper: CalibrationKeeper,
        store: Store,
        *,
        on_decision: OnDecision,
        debug: DebugWindow | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._device = device
        self._debug = debug or DebugWindow(time.monotonic, by_configuration=config.owner.debug_decisions)
        self._keeper = keeper
        self._store = store
        self._on_decision = on_decision
        self._wall = wall
        self._began = False
        self._held: deque[tuple[str, SamplePoint]] = deque(maxlen=SAMPLES_HELD)
        self._on_the_way = 0
        self._pruned_at: float | None = None
        self._measurements = 0
        self._readings = 0
        self._stored = 0
        self._lost = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Restore, then hand samples to the store until cancelled. The keeper has been started before."""
        if not self._keeper.needs_address(self._device.config):
            self._begin(None)
        task_status.started()
        try:
            while True:
                await trio.sleep(SAMPLES_EVERY_S)
                self._store_samples()
        finally:
            # Only posted: the store ends after us, and finishes what it was given.
            self._store_samples()

    def take(self, measurement: Measurement, attendance: Attendance) -> None:
        """Take one measurement in; `on_decision` has been called when this returns."""
        device = self._device
        reading = reading_of(measurement)
        if measurement.pci is not None or isinstance(reading, float):
            # A card that could not be asked may yet tell where it is (D15); nothing is learned until then.
            self._begin(measurement.pci)
        self._measurements += 1
        device.readings["invalid" if reading == "invalid" else measurement.result] += 1  # H179
        device.measurement = measurement
        if isinstance(reading, float):
            self._readings += 1
            device.valid_at_s = measurement.at_s
        self._observe(measurement, reading, attendance)

    def missed(self, at_s: float, attendance: Attendance) -> None:
        """Note a tick at which no measurement came at all; what was measured last stays to be seen."""
        self._device.readings["missing"] += 1
        measurement = Measurement(self._device.name, "first", at_s, reason="no answer in time")
        self._observe(measurement, "missing", attendance)

    def _observe(self, measurement: Measurement, reading: Reading, attendance: Attendance) -> None:
        device = self._device
        if device.pressure is None:
            return
        decision = device.pressure.observe(measurement.at_s, reading, attendance)
        device.decision = decision
        self._hold(measurement, attendance, decision)
        if self._debug.is_open:
            self._tell(decision, attendance)
        self._on_decision(device, measurement, decision)

    # --- the start ------------------------------------------------------------------------------------

    def _begin(self, pci: str | None) -> None:
        """Give the device back what was saved, and say so, once (R106)."""
        device = self._device
        if self._began or device.pressure is None:
            return
        self._began = True
        found = self._keeper.restore(device.config, pci)
        self._keeper.watch(device.config, device.pressure)
        if isinstance(found, NotRestored):
            extra = {"device": device.name, "reason": str(found)}
            log.info("saved GPU calibration not restored", extra=extra)
            return
        for profile, state in found.profiles.items():
            device.pressure.restore(profile, state)
        log.info("restored validated GPU calibration", extra=_restored_fields(device.name, found))

    # --- what is remembered ---------------------------------------------------------------------------

    def _hold(self, measurement: Measurement, attendance: Attendance, decision: Decision) -> None:
        point = SamplePoint(
            at=self._wall(),
            result=measurement.result,
            attendance=attendance,
            reading_pct=measurement.reading_pct if isinstance(decision.reading, float) else None,
            threshold_pct=decision.threshold_pct,
            engaged=decision.engaged,
        )
        self._lost += len(self._held) == SAMPLES_HELD
        self._held.append((self._device.name, point))

    def _store_samples(self) -> None:
        """Post what is held, one post at a time, so that a slow disk does not pile them up."""
        if not self._held or self._on_the_way:
            return
        batch = tuple(self._held)
        self._held.clear()
        self._on_the_way = len(batch)
        now = self._wall()
        before = None
        if self._pruned_at is None or now - self._pruned_at >= PRUNE_EVERY_S:
            self._pruned_at = now
            before = now - SAMPLES_KEPT_S

        def write(db: sqlite3.Connection) -> None:
            add_samples(db, batch)
            if before is not None:
                prune_samples(db, before)

        self._store.post(write, self._samples_written)

    def _samples_written(self, result: BaseException | None) -> None:
        if result is None:
            self._stored += self._on_the_way
        else:
            # The store has told what is wrong with it; that a few samples are missing needs no line each.
            self._lost += self._on_the_way
        self._on_the_way = 0

    def _tell(self, decision: Decision, attendance: Attendance) -> None:
        """R129."""
        fields = decision._asdict()
        reading = fields.pop("reading")
        fields.pop("t_s")
        extra = {
            **fields,
            "device": self._device.name,
            "attendance": attendance,
            "reading_pct": reading if isinstance(reading, float) else None,
            "result": "ok" if isinstance(reading, float) else reading,
        }
        log.info("decision", extra=extra)

    def statistics(self) -> TrackerStatistics:
        return TrackerStatistics(self._measurements, self._readings, self._stored, self._lost)


def _restored_fields(device: str, found: Restored) -> dict[str, str]:
    """The fields of the restored line; a list of profiles is one word a profile (R105)."""
    lists: dict[str, tuple[Profile, ...]] = {
        "migrated_legacy_baseline": found.migrated,
        "invalid_profile": found.invalid,
    }
    return {"device": device} | {name: ",".join(profiles) for name, profiles in lists.items() if profiles}
