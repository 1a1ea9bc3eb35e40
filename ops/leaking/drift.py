"""Memory over cycles: a slope that a few jumps do not bend (Theil and Sen). Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations
from typing import Final

import msgspec

MOST_POINTS: Final = 800
"""Of a longer series every n-th is taken: the slope needs each pair of points."""
FIRST_CYCLE: Final = 200
"""By then caches have filled that are meant to (B48)."""
FEWEST_CYCLES: Final = 150
"""Fewer do not tell a leak from a heap that is still finding its size."""


class Drift(msgspec.Struct, frozen=True):
    """RssAnon of one process, in KiB. `slope` is per cycle; None: too few cycles to say."""

    start: int
    end: int
    slope: float | None
    since: int
    """The cycle from which on the slope was taken."""


def drift(series: Sequence[int]) -> Drift:
    """What became of a process's memory; `series` begins with its baseline and has one value a cycle."""
    since = min(FIRST_CYCLE, len(series) // 5)
    tail = list(enumerate(series))[since:]
    slope = theil_sen(tail) if len(tail) >= FEWEST_CYCLES else None
    return Drift(series[0], series[-1], slope, since)


def theil_sen(points: Sequence[tuple[int, int]]) -> float:
    """The median of the slopes of all pairs of points, whose first numbers rise."""
    step = -(-len(points) // MOST_POINTS)
    return statistics.median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points[::step], 2))
