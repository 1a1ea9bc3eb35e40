"""A device's load as the paths of an SVG picture: made here, so that it needs no JavaScript. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from swapd.device_views import TrendPoint

WIDTH: Final = 600
HEIGHT: Final = 100
"""Of the picture, in its own units: one a percent, upwards."""


class LoadPlot(NamedTuple):
    """Paths in a box of `WIDTH` x `HEIGHT`. `engaged`: where the owner's need was seen, as (x, width)."""

    area: str
    line: str
    threshold: str
    engaged: tuple[tuple[float, float], ...]
    lowest_pct: float | None
    highest_pct: float | None
    threshold_pct: float | None
    times_engaged: int


def load_plot(points: Sequence[TrendPoint]) -> LoadPlot:
    """Draw stretches of equal length from left to right; nothing is drawn where nothing was read."""
    step = WIDTH / max(len(points), 1)
    loads = [point.load_pct for point in points if point.load_pct is not None]
    lines = [point.threshold_pct for point in points if point.threshold_pct is not None]
    area, line = [], []
    for run in _runs(points, lambda point: point.load_pct is not None):
        tops = [(step * (index + 0.5), points[index].load_pct or 0.0) for index in run]
        # A single reading is a short flat piece, or it would not be seen.
        if len(tops) == 1:
            tops = [(step * run[0], tops[0][1]), (step * (run[0] + 1), tops[0][1])]
        path = " L".join(f"{x:.1f} {HEIGHT - load:.1f}" for x, load in tops)
        line.append(f"M{path}")
        area.append(f"M{tops[0][0]:.1f} {HEIGHT} L{path} L{tops[-1][0]:.1f} {HEIGHT} Z")
    threshold = [
        "M"
        + " L".join(
            f"{step * (index + side):.1f} {HEIGHT - (points[index].threshold_pct or 0.0):.1f}"
            for index in run
            for side in (0, 1)
        )
        for run in _runs(points, lambda point: point.threshold_pct is not None)
    ]
    engaged = [(step * run[0], step * len(run)) for run in _runs(points, lambda point: point.engaged)]
    return LoadPlot(
        "".join(area),
        "".join(line),
        "".join(threshold),
        tuple((round(x, 1), round(width, 1)) for x, width in engaged),
        min(loads, default=None),
        max(loads, default=None),
        lines[-1] if lines else None,
        len(engaged),
    )


def _runs(points: Sequence[TrendPoint], holds: Callable[[TrendPoint], bool]) -> list[list[int]]:
    """Indices of neighbouring points for which `holds`, a list each."""
    runs = groupby(range(len(points)), key=lambda index: holds(points[index]))
    return [list(run) for is_true, run in runs if is_true]


BAR_PCT: Final = 2
"""Width of a histogram's bar: four of the half percents that are learned."""


class Bars(NamedTuple):
    """A histogram as rectangles: x in percent of load, height of `HEIGHT`, and the share of readings."""

    bars: tuple[tuple[int, float, float], ...]
    highest_share: float


def bars(bins: Sequence[tuple[int, float]]) -> Bars:
    """Draw weights of half percents, scaled so that the highest bar fills the height."""
    weights = dict.fromkeys(range(0, 100, BAR_PCT), 0.0)
    for index, weight in bins:
        weights[int(index / 2) // BAR_PCT * BAR_PCT] += weight
    total, highest = sum(weights.values()), max(weights.values())
    if total <= 0.0:
        return Bars((), 0.0)
    shown = tuple(
        (at, round(weight / highest * HEIGHT, 1), weight / total) for at, weight in weights.items() if weight
    )
    return Bars(shown, highest / total)
