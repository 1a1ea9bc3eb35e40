"""What goes into a tracker and what comes out: one reading, one decision. Pure.

Times are seconds of one clock that runs through suspend and never goes back (CLOCK_BOOTTIME in the
service, D5). A reading carries its own time (D38): a late tick changes only the interval.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Attendance = Literal["locked", "unlocked", "unknown"]
Profile = Literal["locked", "unlocked"]
"""A headless machine has one profile, `unlocked` (D34)."""

PROFILES: Final[tuple[Profile, Profile]] = ("locked", "unlocked")

Reading = float | Literal["failed", "invalid", "missing"]
"""Non-lender utilisation in [0, 100], or why there is none. `missing` is a tick that was skipped (D4);
`failed` and `invalid` are attempts that gave nothing that can be trusted."""


def reading_from(result: str, value_pct: float | None) -> Reading:
    """What the core makes of a measurement's result and its number.

    The first after a (re)start of the driver link is a tick without a reading. A device asleep was not
    observed, and one that cannot be observed neither: nothing is learned of either (R22, R130).
    """
    match result:
        case "ok":
            return value_pct if value_pct is not None and 0.0 <= value_pct <= 100.0 else "invalid"
        case "first":
            return "missing"
        case "invalid":
            return "invalid"
        case _:
            return "failed"


HINT_ABOVE_CAP: Final = "learned load is above the calibration cap; target held at cap"


class Decision(NamedTuple):
    """What one reading did (R129). Absent values are None; the first eleven are those of `replay-readings`.

    `credited_s` is the observed interval that the reading was credited with, 0 without a reading.
    `baseline_pct` is None until the histogram holds `warmup_samples` (R66).
    """

    t_s: float
    profile: Profile | None
    credited_s: float
    baseline_pct: float | None
    target_pct: float | None
    threshold_pct: float | None
    calibrated: bool
    engaged: bool
    learned_samples: int
    learned_s: float
    hint: str | None
    reading: Reading = "missing"
    above_s: float = 0.0
    """For how long valid readings have been at or above the threshold, while not engaged (R5)."""
    below_s: float = 0.0
    """For how long valid readings have been below the release line, while engaged (D33)."""
    warmup_have: int = 0
    """Readings counted towards the first calibration of this profile, at most `warmup_samples` (R62)."""


class ProfileState(NamedTuple):
    """What is kept of one completed profile (D39, schema 4) and given back at the next start."""

    calibrated: bool
    threshold_pct: float
    learned_samples: int
    learned_s: float
    maturing_from_pct: float | None
    """The starting threshold of a profile that came from an older cache, while it matures (R113, R116)."""
    bins: tuple[tuple[int, float], ...]
    """Index and weight of each non-empty half-percent bin, ascending."""


class ProfileSummary(NamedTuple):
    """A live histogram in short, for status, console and diagnostics (R128)."""

    profile: Profile
    calibrated: bool
    warmup_have: int
    learned_samples: int
    learned_s: float
    total_weight: float
    baseline_pct: float | None
    target_pct: float | None
    threshold_pct: float | None
    maturing_from_pct: float | None
    bins: tuple[tuple[int, float], ...]
    hint: str | None
