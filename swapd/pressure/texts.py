"""What people read about learning and pressure: the threshold line, the reason, the progress. Pure."""

from __future__ import annotations

import math
from typing import Final

from swapd.config import PressureConfig
from swapd.pressure.bounds import release_line_pct
from swapd.pressure.profile import HOUR_S
from swapd.pressure.reading import Decision

RISING_FROM_PCT: Final = 0.05
"""Below this a rise is not worth a word (D9)."""
DIGITS_MAX: Final = 3


def threshold_text(threshold_pct: float, target_pct: float | None, learned_s: float) -> str:
    """R50: `Threshold 34%, rising toward 40% (learned from 52 h)`, the middle part only while it rises."""
    rising = ""
    if target_pct is not None and target_pct > threshold_pct + RISING_FROM_PCT:
        rising = f", rising toward {_nearest(target_pct)}%"
    return f"Threshold {_nearest(threshold_pct)}%{rising} (learned from {_nearest(learned_s / HOUR_S)} h)"


def fixed_text(threshold_pct: float) -> str:
    """`Threshold 30% (fixed)`, for a threshold that nobody learned."""
    return f"Threshold {threshold_pct:g}% (fixed)"


def warmup_text(have: int, wanted: int) -> str:
    """R62: `learning: 23 of 60 readings`."""
    return f"learning: {have} of {wanted} readings"


def decision_text(decision: Decision, config: PressureConfig) -> str | None:
    """`threshold_text`, `fixed_text` or `warmup_text`, whichever fits; None where attendance is not known."""
    if decision.threshold_pct is None:
        return None if decision.profile is None else warmup_text(decision.warmup_have, config.warmup_samples)
    if config.mode == "fixed":
        return fixed_text(decision.threshold_pct)
    return threshold_text(decision.threshold_pct, decision.target_pct, decision.learned_s)


def load_text(decision: Decision, config: PressureConfig) -> str | None:
    """What the reading says, `owner load 47 % ≥ 34 % for 6 of 10 s`; None without a number or a threshold.

    While engaged it is measured by the release line once it is below the threshold (D33).
    """
    value, threshold = decision.reading, decision.threshold_pct
    if isinstance(value, str) or threshold is None:
        return None
    if value >= threshold:
        text = f"owner load {_compared(value, '≥', threshold)}"
        return text if decision.engaged else f"{text} for {_spell(decision.above_s, config.sustain_s)}"
    if not decision.engaged:
        return f"owner load {_compared(value, '<', threshold)}"
    line = release_line_pct(config, threshold)
    if value >= line:
        return f"owner load {_compared(value, '≥', line)}, the line for release"
    return f"owner load {_compared(value, '<', line)} for {_spell(decision.below_s, config.release_s)}"


def _nearest(value: float) -> int:
    """D9: halves go up, as people expect, and not to the even neighbour."""
    return math.floor(value + 0.5)


def _spell(have_s: float, needed_s: float) -> str:
    # Rounded down: "10 of 10 s" would be a promise.
    return f"{math.floor(have_s)} of {needed_s:g} s"


def _compared(value: float, sign: str, limit: float) -> str:
    """Both numbers with as few digits as let the sign look true."""
    digits = 0
    while digits < DIGITS_MAX and value != limit and f"{value:.{digits}f}" == f"{limit:.{digits}f}":
        digits += 1
    return f"{value:.{digits}f} % {sign} {limit:.{digits}f} %"
