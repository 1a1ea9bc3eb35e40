"""How often something took how long: counts in fixed buckets, for metrics. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """A distribution at one moment: `counts` has one entry more than `bounds`, for what is above them all."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Distribution:
    """One writer; a reader in another thread may miss the value that is being added."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend; a value belongs to the first that it does not exceed."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def spread(self) -> Spread:
        """What was counted so far."""
        return Spread(self._bounds, tuple(self._counts), self._total)
