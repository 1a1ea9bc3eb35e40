"""One lent device as the coordinator knows it. Its parts are written by the actor that owns each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from swapd.config import DeviceConfig
from swapd.device_views import GiveBackView, HeldUp, TakenBack
from swapd.lending.reasons import Why
from swapd.messages.sampler import Measurement
from swapd.pressure.calibration import DevicePressure
from swapd.pressure.reading import Attendance, Decision

DeviceState = Literal["lent", "refused", "vacating", "free", "returning"]


class Verdict(NamedTuple):
    """May the device be lent now? `hold`: may workers stay on it. `sentence` is for people."""

    admit: bool
    hold: bool
    reasons: tuple[Why, ...]
    sentence: str
    retry_after_s: float | None = None
    resume_at: float | None = None
    """Wall clock, where it is known."""


@dataclass
class LentDevice:
    """State of one `[[devices]]` entry. `at_s` of a measurement is CLOCK_BOOTTIME, all else wall clock."""

    config: DeviceConfig
    workers: tuple[str, ...]
    pressure: DevicePressure | None
    """None with `gpu_pressure.enabled = false`. Written by the tracker alone."""
    state: DeviceState = "refused"
    verdict: Verdict | None = None
    measurement: Measurement | None = None
    """The latest, whatever its result; by the tracker."""
    valid_at_s: float | None = None
    """When the newest valid reading was taken (R59); by the tracker."""
    decision: Decision | None = None
    readings: Counter[str] = field(default_factory=Counter)
    """Measurements by `Measurement.result` since start; by the tracker, one for each."""
    attendance: Attendance = "unknown"
    attendance_detail: str | None = None
    game: bool = False
    taken_back: TakenBack | None = None
    give_back: GiveBackView | None = None
    """The latest; `free_in_s` None while it is under way."""
    held_up: HeldUp | None = None
    """What keeps a give-back from its end because the store failed; by the give-back."""

    @property
    def name(self) -> str:
        return self.config.name
