"""Short ways to let a device see readings."""

from __future__ import annotations

from collections.abc import Iterable

from swapd.config import PressureConfig
from swapd.pressure.calibration import DevicePressure
from swapd.pressure.reading import Attendance, Decision, Profile, ProfileState, ProfileSummary, Reading

HOUR_S = 3600.0


class Feed:
    """A device and the time of its last reading; the next one comes `every_s` later."""

    def __init__(self, config: PressureConfig, *, every_s: float = 5.0, headless: bool = False) -> None:
        self.device = DevicePressure(config, headless=headless)
        self.every_s = every_s
        self.t_s = 1000.0

    def __call__(
        self, *readings: Reading, to: Attendance = "unlocked", after_s: float | None = None
    ) -> Decision:
        """Feed readings, the first `after_s` after the last one; return the last decision."""
        decision = None
        for reading in readings:
            self.t_s += self.every_s if after_s is None else after_s
            after_s = None
            decision = self.device.observe(self.t_s, reading, to)
        assert decision is not None
        return decision

    def summary(self, profile: Profile = "unlocked") -> ProfileSummary:
        (found,) = [each for each in self.device.summaries() if each.profile == profile]
        return found


def restored(config: PressureConfig, state: ProfileState, *, every_s: float = 5.0) -> Feed:
    """A device that starts with a saved `unlocked` profile."""
    feed = Feed(config, every_s=every_s)
    feed.device.restore("unlocked", state)
    return feed


def saved(
    threshold_pct: float,
    bins: Iterable[tuple[int, float]] = (),
    *,
    samples: int = 60,
    learned_s: float = 0.0,
    maturing_from_pct: float | None = None,
) -> ProfileState:
    return ProfileState(True, threshold_pct, samples, learned_s, maturing_from_pct, tuple(bins))
