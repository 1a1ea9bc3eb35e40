"""What is known of lent devices beside their own fields, gathered for the judgement."""

from __future__ import annotations

from collections.abc import Callable

from swapd.config import OwnerConfig
from swapd.lending.device import LentDevice, Verdict
from swapd.lending.verdict import Facts, Quiet, judge
from swapd.messages.sampler import Measurement


class FactBook:
    """Facts by device. `boottime` is CLOCK_BOOTTIME, `wall` seconds since 1970."""

    def __init__(self, owner: OwnerConfig, wall: Callable[[], float], boottime: Callable[[], float]) -> None:
        self.quiet = Quiet()
        self._owner = owner
        self._wall = wall
        self._boottime = boottime
        self._informed: dict[str, Measurement] = {}
        self._needed_at: dict[str, float] = {}
        self._texts: dict[str, str] = {}

    def measured(self, device: str, measurement: Measurement, text: str | None) -> None:
        """A measurement came; `text` says what its reading means, where it means something.

        One that can tell neither memory nor processes leaves what the last one told.
        """
        tells = measurement.result in ("ok", "asleep")
        if tells or measurement.always_seen or measurement.others_hold_memory:
            self._informed[device] = measurement
        if text is not None:
            self._texts[device] = text

    def needed(self, device: str) -> None:
        """The owner needs the device now; once that is over it rests."""
        self._needed_at[device] = self._boottime()

    def verdict(self, device: LentDevice) -> Verdict:
        """Judge a device by all that is known now."""
        calibrated, warmup_have = self._calibration(device)
        facts = Facts(
            owner=self._owner,
            taken_back=device.taken_back,
            decision=device.decision,
            calibrated=calibrated,
            warmup_have=warmup_have,
            pressure_text=self._texts.get(device.name),
            measurement=device.measurement,
            informed=self._informed.get(device.name),
            valid_at_s=device.valid_at_s,
            attendance=device.attendance,
            attendance_detail=device.attendance_detail,
            game=device.game,
            quiet=self.quiet,
            needed_at_s=self._needed_at.get(device.name),
        )
        return judge(facts, self._boottime(), self._wall())

    def _calibration(self, device: LentDevice) -> tuple[bool, int]:
        """Whether the profile in force is calibrated, and how far it is."""
        pressure, decision = self._owner.gpu_pressure, device.decision
        if pressure.mode == "fixed":
            return 0 < pressure.threshold_pct <= 100, 0  # R70
        if decision is not None and decision.profile == device.attendance:
            return decision.calibrated, decision.warmup_have
        for summary in device.pressure.summaries() if device.pressure is not None else ():
            if summary.profile == device.attendance:
                return summary.calibrated, summary.warmup_have
        return False, 0
