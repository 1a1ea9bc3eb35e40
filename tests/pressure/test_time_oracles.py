"""How long things take by the mathematics, and by what really runs."""

from __future__ import annotations

import math

import pytest

from swapd.config import PressureConfig
from swapd.pressure.histogram import Histogram
from tests.pressure import model
from tests.pressure.feeding import restored, saved

H_H = 72.0
STEP_S = 5.0
FLIPS = [(4, 1.30), (8, 2.54), (12, 3.71), (24, 6.91), (52, 12.81), (72, 16.01), (168, 24.60)]


def flip_h(low_h: float, share: float = 0.75) -> float:
    """O4: when the quantile follows a level that replaced another of `low_h` hours."""
    rest = 1 - share
    before = 0.0 if math.isinf(low_h) else 2.0 ** (-low_h / H_H)
    return -H_H * math.log2((1 - rest) / (1 - rest * before))


@pytest.mark.parametrize(("low_h", "told_h"), [*FLIPS, (math.inf, 29.88)])
def test_the_formula_gives_the_numbers_of_the_document(low_h: float, told_h: float) -> None:
    """O4."""
    assert flip_h(low_h) == pytest.approx(told_h, abs=0.005)


@pytest.mark.parametrize("low_h", [low_h for low_h, _ in FLIPS])
def test_the_histogram_flips_when_the_formula_says(low_h: int) -> None:
    """O4: simulated reading by reading, every five seconds."""
    histogram = Histogram(H_H * 3600)
    histogram.add(3.0, 0.0)
    for _ in range(round(low_h * 3600 / STEP_S) - 1):
        histogram.add(3.0, STEP_S)
    readings = flip_h(low_h) * 3600 / STEP_S
    for _ in range(math.floor(readings) - 1):
        histogram.add(60.0, STEP_S)
    assert histogram.quantile(0.75) == 3.5
    for _ in range(3):
        histogram.add(60.0, STEP_S)
    assert histogram.quantile(0.75) == 60.5


def test_a_histogram_that_has_settled_flips_last() -> None:
    """O4, O3: however long the low level lasted, 29.88 hours are enough."""
    histogram = Histogram(H_H * 3600)
    histogram.load([(6, 1 / (1 - 2.0 ** (-STEP_S / 3600 / H_H)))])
    readings = flip_h(math.inf) * 3600 / STEP_S
    for _ in range(math.floor(readings)):
        histogram.add(60.0, STEP_S)
    assert histogram.quantile(0.75) == 3.5
    histogram.add(60.0, STEP_S)
    histogram.add(60.0, STEP_S)
    assert histogram.quantile(0.75) == 60.5


def test_an_owner_job_of_30_percent_is_absorbed_in_the_end() -> None:
    """O4, R11: the honest limit of docs/pressure.md, for a card with 52 hours at 8 % behind it.

    After 12.81 hours the quantile follows, and 1.5 hours later the threshold of 28.5 has risen over 30.
    """
    settled = (1 - 2.0 ** (-52 / H_H)) / (1 - 2.0 ** (-20.0 / 3600 / H_H))
    feed = restored(PressureConfig(), saved(28.5, [(16, settled)], learned_s=52 * 3600.0), every_s=20.0)
    feed(30.0)
    told = feed(*[30.0] * round(12.7 * 180))
    assert (told.baseline_pct, told.threshold_pct, told.engaged) == (8.5, 28.5, True)
    told = feed(*[30.0] * round(0.2 * 180))
    assert (told.baseline_pct, told.target_pct, told.engaged) == (30.5, 40.0, True)
    assert feed(*[30.0] * round(1.3 * 180)).threshold_pct < 30.0
    told = feed(*[30.0] * round(0.3 * 180))
    assert told.threshold_pct > 30.0
    assert told.engaged, "it stays engaged: 30 is not below the release line"
    told = feed(*[30.0] * round(5.2 * 180))
    assert (told.engaged, told.threshold_pct > 35.0) == (False, True)


def test_both_algorithms_give_one_answer() -> None:
    """O1: decaying all bins, and adding ever larger weights, written from scratch in the model."""
    half_life_s = 600.0
    histogram, eager, seen = Histogram(half_life_s), dict.fromkeys(range(200), 0.0), []
    observed_s = 0
    for number in range(400):
        value, passed_s = number * 37 % 101 * 0.97, number * 13 % 21 if number else 0
        observed_s += passed_s
        histogram.add(value, float(passed_s))
        eager = {index: weight * 2.0 ** (-passed_s / half_life_s) for index, weight in eager.items()}
        eager[math.floor(value / 0.5)] += 1.0
        seen.append((model.Fraction(observed_s), value))
    late = model.weights(seen, model.Fraction(half_life_s))
    assert [number for number, _ in histogram.bins()] == list(late)
    for number, weight in histogram.bins():
        assert weight == pytest.approx(late[number], rel=1e-12)
        assert weight == pytest.approx(eager[number], rel=1e-12)
    assert histogram.total == pytest.approx(math.fsum(late.values()), rel=1e-12)
    for thousandth in range(1, 1000, 11):
        edge, tie = model.quantile(late, thousandth / 1000)
        assert tie > 1e-9
        assert histogram.quantile(thousandth / 1000) == edge
