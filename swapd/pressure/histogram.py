"""What a profile has seen: half-percent bins whose weights halve with every half-life of observed time. Pure.

Instead of shrinking every bin at each reading, a reading is added with the weight 2^(observed time divided by
the half-life), and everything is read relative to that unit: the same ratios for one addition. Now and then
all is scaled down by a power of two, which loses nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

BINS: Final = 200
BIN_WIDTH_PCT: Final = 0.5
RESCALE_AT_HALF_LIVES: Final = 64.0
"""Far from where doubles overflow, and rare."""
TIE: Final = 1.0 - 1e-12
"""Sums of weights carry rounding errors of about 1e-15; a tie must not depend on them (O5)."""


def bin_of(value_pct: float) -> int:
    """R10: the bin of a value in [0, 100]; 100 belongs to the last one (D3)."""
    return min(int(value_pct / BIN_WIDTH_PCT), BINS - 1)


def upper_edge_pct(index: int) -> float:
    """The value that no reading in the bin exceeds (R29, R30)."""
    return (index + 1) * BIN_WIDTH_PCT


class Histogram:
    """Weights of readings. `half_life_s` is in observed seconds (R15)."""

    __slots__ = ("_age", "_half_life_s", "_scaled", "_unit")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._scaled = [0.0] * BINS
        self._age = 0.0
        """Half-lives since the last rescaling."""
        self._unit = 1.0
        """What weighs 1 now: 2 to the age."""

    def add(self, value_pct: float, aged_s: float) -> None:
        """R14: let what is there age by `aged_s`, then add a reading in [0, 100] of weight 1."""
        if aged_s > 0.0:
            self._age += aged_s / self._half_life_s
            if self._age >= RESCALE_AT_HALF_LIVES:
                self._rescale()
            self._unit = 2.0**self._age
        self._scaled[bin_of(value_pct)] += self._unit

    def _rescale(self) -> None:
        whole = math.floor(self._age)
        factor = 2.0**-whole
        self._scaled = [weight * factor for weight in self._scaled]
        self._age -= whole

    def quantile(self, share: float) -> float | None:
        """R29: the upper edge of the first bin up to which `share` (0 to 1) of the weight lies.

        None of an empty histogram.
        """
        cumulative = list(accumulate(self._scaled))
        total = cumulative[-1]
        if total <= 0.0:
            return None
        return upper_edge_pct(bisect_left(cumulative, share * total * TIE))

    @property
    def total(self) -> float:
        """The sum of all weights; always of the bins, never a number kept beside them (O9)."""
        return sum(self._scaled) / self._unit

    def bins(self) -> tuple[tuple[int, float], ...]:
        """Index and weight of each non-empty bin, ascending."""
        unit = self._unit
        return tuple((index, weight / unit) for index, weight in enumerate(self._scaled) if weight > 0.0)

    def load(self, bins: Iterable[tuple[int, float]]) -> None:
        """Take over what `bins` gave, in place of what is there."""
        self._scaled = [0.0] * BINS
        self._age, self._unit = 0.0, 1.0
        for index, weight in bins:
            self._scaled[index] = weight
