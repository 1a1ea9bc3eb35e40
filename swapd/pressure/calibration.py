"""What one device has learned and whether its owner needs it: both profiles and the hysteresis. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swapd.config import PressureConfig
from swapd.pressure.reading import Attendance, Decision, Profile, ProfileState, ProfileSummary, Reading


class DevicePressure:
    """Feed it every reading of one device, in order of time; it never looks at a clock itself."""

    def __init__(self, config: PressureConfig, *, headless: bool = False) -> None:
        raise NotImplementedError

    def observe(self, t_s: float, reading: Reading, attendance: Attendance) -> Decision:
        """Take one reading in and say what follows from it."""
        raise NotImplementedError

    def restore(self, profile: Profile, state: ProfileState) -> None:
        """Take over what an earlier run saved, bounded by the settings in force (R88). Before any reading."""
        raise NotImplementedError

    def completed(self) -> Mapping[Profile, ProfileState]:
        """What is worth saving: completed profiles only (R90)."""
        raise NotImplementedError

    def summaries(self) -> Sequence[ProfileSummary]:
        """Both live histograms in short, `locked` first; one, `unlocked`, when headless."""
        raise NotImplementedError

    @property
    def engaged(self) -> bool:
        """Whether pressure is engaged."""
        raise NotImplementedError
