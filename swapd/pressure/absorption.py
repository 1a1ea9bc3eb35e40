"""How long a steady load must last until it counts as normal: what learning cannot tell apart. Pure.

Readings are learned while the owner's need is seen, too, so a job of the owner's that runs for long enough
raises the threshold past itself. Two things must happen: the quantile must come to lie on the new load, and
the threshold must then climb to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from swapd.config import PressureConfig
from swapd.pressure.bounds import effective_cap_pct
from swapd.pressure.histogram import bin_of
from swapd.pressure.profile import HOUR_S


def absorbed_after_s(
    config: PressureConfig,
    bins: Iterable[tuple[int, float]],
    threshold_pct: float,
    target_pct: float,
    load_pct: float,
) -> float | None:
    """Observed seconds of nothing but `load_pct` until the threshold is above it; None: never (O4).

    `bins` are index and weight, as a histogram gives them. At or above the cap no load is ever absorbed.
    """
    if load_pct < threshold_pct:
        return 0.0
    if load_pct >= effective_cap_pct(config):
        return None
    climb_s = (load_pct - threshold_pct) / config.raise_pct_per_h * HOUR_S if config.raise_pct_per_h else None
    if climb_s is None or target_pct > load_pct:
        return climb_s
    return _flip_s(config, bins, load_pct) + climb_s


def _flip_s(config: PressureConfig, bins: Iterable[tuple[int, float]], load_pct: float) -> float:
    """Until the quantile lies in the load's bin.

    What is there halves with each half-life, what comes settles at `fresh`; x is how much of the old is left.
    """
    half_life_s = config.learn_half_life_h * HOUR_S
    fresh = half_life_s / math.log(2.0) / (config.poll_ms / 1000.0)
    weights = list(bins)
    total = sum(weight for _, weight in weights)
    below = sum(weight for index, weight in weights if index < bin_of(load_pct))
    share = config.learn_quantile
    if below <= share * total:
        return 0.0
    x = share * fresh / (below - share * (total - fresh))
    return -half_life_s * math.log2(x)
