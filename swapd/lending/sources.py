"""What is watched for lent devices: samplers, trackers, the calibration cache, and who is at the machine."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import trio

from swapd.attendance.watch import AttendanceWatch
from swapd.config import Config
from swapd.devices.link import Kind, SamplerLink
from swapd.lending.desk import LendingDesk
from swapd.lending.device import LentDevice
from swapd.messages.sampler import Measurement
from swapd.pressure.debug_window import DebugWindow
from swapd.pressure.keeper import CalibrationKeeper
from swapd.pressure.texts import load_text
from swapd.pressure.tracker import PressureTracker
from swapd.store.writer import Store
from swapd.transport.sockets import Context

log = logging.getLogger("swapd.lending")

KINDS: tuple[Kind, ...] = ("nvml", "cpu")


class DeviceSources:
    """Tells a desk its facts. `run` is a source of `LendingDesk`; nothing here decides anything."""

    def __init__(
        self, desk: LendingDesk, config: Config, config_path: Path, store: Store, context: Context
    ) -> None:
        owner = config.owner
        self._desk = desk
        self._measures = owner.gpu_pressure.enabled
        self.keeper = CalibrationKeeper(config, config_path)
        self.attendance = AttendanceWatch(owner, desk.attendance_changed, desk.game_changed)
        self.debug = DebugWindow(time.monotonic, by_configuration=owner.debug_decisions)
        self.trackers = {
            name: PressureTracker(
                device, config, self.keeper, store, on_decision=desk.decided, debug=self.debug
            )
            for name, device in desk.devices.items()
        }
        self.samplers: dict[Kind, SamplerLink] = {}
        for kind in KINDS:
            entries = [device.config for device in desk.devices.values() if device.config.kind == kind]
            if entries and self._measures:
                self.samplers[kind] = SamplerLink(config, kind, entries, context, desk.lenders, self.measured)
        desk.pressure_text = lambda decision: load_text(decision, owner.gpu_pressure)
        desk.measure_soon = self.measure_soon

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled; what was learned is saved at the end (D14)."""
        async with trio.open_nursery() as nursery:
            if self._measures:
                await nursery.start(self.keeper.run)
                for tracker in self.trackers.values():
                    await nursery.start(tracker.run)
            nursery.start_soon(self._desk.keep, "attendance", self.attendance.run)
            for kind, sampler in self.samplers.items():
                nursery.start_soon(self._desk.keep, f"sampler {kind}", sampler.run)
            task_status.started()

    def measured(self, measurement: Measurement) -> None:
        """One measurement from a sampler: to the device's tracker, which tells the desk."""
        device = self._desk.devices[measurement.device]
        try:
            self.trackers[device.name].take(measurement, device.attendance)
        # The supervision boundary of a tracker: its device goes stale and is refused, the others go on.
        except Exception:
            log.exception("tracker failed", extra={"device": device.name})

    def measure_soon(self, device: LentDevice) -> None:
        """Ask for a measurement before the next tick."""
        sampler = self.samplers.get(device.config.kind)
        if sampler is not None:
            sampler.ask_soon()
