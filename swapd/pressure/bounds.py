"""What the settings mean for a threshold and for time: target, cap, gap limit, release line. Pure."""

from __future__ import annotations

from typing import Final

from swapd.config import PressureConfig

CAP_CEILING_PCT: Final = 90.0
"""No learned threshold is above it, unless the floor is (R35, D6)."""
MIN_GAP_LIMIT_MS: Final = 20_000
GAP_LIMIT_POLLS: Final = 3
BAND_SHARE_MAX: Final = 0.5


def effective_cap_pct(config: PressureConfig) -> float:
    """R35, R36: the cap is at most 90, and never below the floor, which always wins (D6)."""
    return max(config.floor_pct, min(config.cap_pct, CAP_CEILING_PCT))


def clamp_pct(config: PressureConfig, value_pct: float) -> float:
    """R31: a value brought between the floor and the effective cap."""
    return max(config.floor_pct, min(effective_cap_pct(config), value_pct))


def target_pct(config: PressureConfig, baseline_pct: float) -> float:
    """R31: where the threshold belongs for a baseline."""
    return clamp_pct(config, baseline_pct + config.margin_pct)


def fixed_threshold_pct(config: PressureConfig) -> float | None:
    """R70, R72: the operator's own threshold if it is usable; not bound by floor and cap (D7)."""
    return config.threshold_pct if 0.0 < config.threshold_pct <= 100.0 else None


def gap_limit_s(config: PressureConfig) -> float:
    """R18, R19: the longest interval between two readings that counts as observed."""
    return max(GAP_LIMIT_POLLS * config.poll_ms, MIN_GAP_LIMIT_MS) / 1000.0


def release_line_pct(config: PressureConfig, threshold_pct: float) -> float:
    """D33: readings below this line release pressure.

    The band takes at most half of a threshold: under a small one a line at or below 0 could never be
    undercut, and pressure would stay for good.
    """
    return threshold_pct - min(config.release_band_pct, threshold_pct * BAND_SHARE_MAX)


def interval_s(since_s: float, now_s: float) -> float:
    """The time between two readings to the microsecond, so that 0.1 to 20.1 is 20 s on any clock."""
    return round(now_s - since_s, 6)
