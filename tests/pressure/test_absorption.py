"""How long a steady load needs to become normal, against the oracle's table and the real learning."""

from __future__ import annotations

import math

import pytest

from swapd.config import PressureConfig
from swapd.pressure.absorption import absorbed_after_s
from swapd.pressure.histogram import bin_of
from swapd.pressure.profile import HOUR_S, ProfileLearning

CONFIG = PressureConfig()


def weight_after(hours: float) -> float:
    """What a load that lasted so long weighs."""
    half_life_s = CONFIG.learn_half_life_h * HOUR_S
    return half_life_s / math.log(2) / 5.0 * (1 - 2 ** (-hours * HOUR_S / half_life_s))


@pytest.mark.parametrize(
    ("hours", "flips"), [(4, 1.30), (8, 2.54), (12, 3.71), (24, 6.91), (52, 12.81), (72, 16.01), (168, 24.60)]
)
def test_the_quantile_flips_when_the_oracle_says(hours, flips):
    """O4"""
    bins = [(bin_of(8.0), weight_after(hours))]
    after = absorbed_after_s(CONFIG, bins, 28.5, 28.5, 30.0)
    assert after == pytest.approx((flips + 1.5) * HOUR_S, rel=0.005)


@pytest.mark.parametrize("load_pct", [30.0, 36.0])
def test_the_real_learning_needs_as_long(load_pct):
    config = PressureConfig(learn_half_life_h=6.0, raise_pct_per_h=4.0)
    learning = ProfileLearning(config)
    for _ in range(2000):
        learning.learn(8.0, 5.0)
    summary = learning.summary("locked")
    expected = absorbed_after_s(config, summary.bins, summary.threshold_pct, summary.target_pct, load_pct)
    spent = 0.0
    while learning.threshold_pct <= load_pct:
        learning.learn(load_pct, 5.0)
        spent += 5.0
    assert spent == pytest.approx(expected, rel=0.01)


def test_at_the_cap_nothing_is_ever_absorbed_and_below_the_threshold_nothing_is_seen():
    """R9"""
    bins = [(bin_of(8.0), 1000.0)]
    assert absorbed_after_s(CONFIG, bins, 28.5, 28.5, 40.0) is None
    assert absorbed_after_s(CONFIG, bins, 28.5, 28.5, 28.0) == 0.0


def test_a_threshold_that_rises_already_only_has_to_climb():
    assert absorbed_after_s(CONFIG, [(16, 10.0)], 30.0, 40.0, 33.0) == pytest.approx(3 * HOUR_S)


def test_without_a_rise_nothing_is_absorbed():
    assert absorbed_after_s(PressureConfig(raise_pct_per_h=0.0), [(16, 10.0)], 30.0, 30.0, 33.0) is None
