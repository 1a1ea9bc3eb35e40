"""Rules on the pressure settings that the file and the settings page share. Pure.

The file may hold what an older version took: that loads, runs within the bounds, and warns (R37, R38). A page
that saves is stricter: what it refuses was never in anybody's file by its doing (R40, D7).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from swapd.config import PressureConfig
from swapd.pressure.bounds import CAP_CEILING_PCT, fixed_threshold_pct

SETTABLE: Final = (
    "mode",
    "threshold_pct",
    "learn_quantile",
    "learn_half_life_h",
    "margin_pct",
    "floor_pct",
    "cap_pct",
    "raise_pct_per_h",
    "warmup_samples",
    "sustain_s",
)
"""Keys of `[owner.gpu_pressure]` that the settings page changes, from the next start on (R126)."""
SETTABLE_EXCEPTIONS: Final = ("ignore", "always")
"""Keys of `[owner]` that it changes: processes that are nobody's work, or the owner's in any case (R126)."""
RETIRED_KEYS: Final = ("baseline_quantile", "baseline_window_s")
"""Read and ignored; a save leaves them out (R122)."""


class FieldProblem(NamedTuple):
    """Why a page's save is refused: the key, and a sentence beside its field."""

    field: str
    sentence: str


def fixed_problem(config: PressureConfig) -> str | None:
    """Say what is wrong between mode and `threshold_pct`, for file and page alike (R71, R75)."""
    if config.mode == "fixed":
        if config.threshold_pct == 0.0:
            return 'mode = "fixed" needs threshold_pct, above 0 and at most 100'
        return None
    if config.threshold_pct != 0.0:
        return f'threshold_pct is for mode = "fixed"; in mode = "{config.mode}" it must be left out'
    return None


def console_problems(config: PressureConfig) -> list[FieldProblem]:
    """Say what a save from the settings page is refused for; nothing is written then (R40).

    Cap and floor count only where they are used: a fixed threshold is not bound by them (D7).
    """
    if sentence := fixed_problem(config):
        return [FieldProblem("threshold_pct", sentence)]
    if config.mode == "fixed":
        if fixed_threshold_pct(config) is None:
            return [FieldProblem("threshold_pct", "The fixed threshold must be above 0 and at most 100.")]
        return []
    found = []
    if not config.floor_pct <= config.cap_pct:
        found.append(FieldProblem("cap_pct", f"The cap must not be below the floor, {config.floor_pct:g}."))
    if not config.cap_pct <= CAP_CEILING_PCT:
        found.append(FieldProblem("cap_pct", f"The cap must be at most {CAP_CEILING_PCT:g}."))
    return found


def without_retired(table: Mapping[str, object]) -> dict[str, object]:
    """Give what a save writes of a `[owner.gpu_pressure]` table: all but the retired keys (R122)."""
    return {key: value for key, value in table.items() if key not in RETIRED_KEYS}
