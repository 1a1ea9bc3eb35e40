"""The histogram alone: bins, decay, quantile, and what it gives to be saved."""

from __future__ import annotations

import pytest

from swapd.pressure.histogram import BINS, Histogram, bin_of, upper_edge_pct

H_S = 72 * 3600.0


@pytest.mark.parametrize(
    ("value", "number"),
    [(0.0, 0), (0.4999, 0), (0.5, 1), (12.4999, 24), (12.5, 25), (99.4999, 198), (99.5, 199), (100.0, 199)],
)
def test_a_reading_falls_into_one_bin_of_half_a_point(value: float, number: int) -> None:
    """R10, D3: floor binning; 100 belongs to the last bin."""
    histogram = Histogram(H_S)
    histogram.add(value, 0.0)
    assert bin_of(value) == number
    assert histogram.bins() == ((number, 1.0),)


def test_there_are_200_bins_from_half_to_100() -> None:
    """R10."""
    assert BINS == 200
    assert upper_edge_pct(0) == 0.5
    assert upper_edge_pct(BINS - 1) == 100.0


def test_two_readings_one_half_life_apart_weigh_a_half_and_one() -> None:
    """R14, R15: what is there decays first, then the new reading is added with weight 1."""
    histogram = Histogram(3600.0)
    histogram.add(10.0, 0.0)
    histogram.add(20.0, 3600.0)
    assert histogram.bins() == ((20, 0.5), (40, 1.0))
    assert histogram.total == 1.5


def test_readings_of_one_bin_add_up() -> None:
    histogram = Histogram(3600.0)
    for _ in range(3):
        histogram.add(10.0, 3600.0)
    assert histogram.bins() == ((20, 1.75),)


def test_no_time_means_no_decay() -> None:
    """R47."""
    histogram = Histogram(1.0)
    for value in (1.0, 2.0, 2.2):
        histogram.add(value, 0.0)
    assert histogram.bins() == ((2, 1.0), (4, 2.0))


def test_an_interval_below_zero_is_no_growth() -> None:
    """R28."""
    histogram = Histogram(1.0)
    histogram.add(1.0, 0.0)
    histogram.add(2.0, -5.0)
    assert histogram.bins() == ((2, 1.0), (4, 1.0))


@pytest.mark.parametrize(
    ("share", "edge"),
    [
        (0.01, 1.5),
        (0.0666, 1.5),
        (0.0667, 2.5),
        (0.2, 2.5),
        (0.201, 3.5),
        (0.4666, 3.5),
        (0.4667, 4.5),
        (0.75, 4.5),
        (1.0, 4.5),
    ],
)
def test_the_vector_of_four_half_lives(share: float, edge: float) -> None:
    """O2: readings 1, 2, 3, 4 one half-life apart weigh 1/8, 1/4, 1/2, 1."""
    histogram = Histogram(H_S)
    for number in range(1, 5):
        histogram.add(float(number), H_S if number > 1 else 0.0)
    assert histogram.bins() == ((2, 0.125), (4, 0.25), (6, 0.5), (8, 1.0))
    assert histogram.quantile(share) == edge


def test_the_quantile_is_the_upper_edge_of_its_bin() -> None:
    """R29, R30: never below a reading of the bin."""
    histogram = Histogram(H_S)
    for value in (12.5, 12.6, 12.99):
        histogram.add(value, 0.0)
    assert histogram.quantile(0.75) == 13.0


def test_an_empty_histogram_has_no_quantile() -> None:
    """R66."""
    histogram = Histogram(H_S)
    assert histogram.quantile(0.75) is None
    assert histogram.total == 0.0
    assert histogram.bins() == ()


@pytest.mark.parametrize("last", ["5", "30"])
def test_a_tie_falls_to_the_lower_bin_without_decay_and_by_age_with_it(last: str) -> None:
    """O5: 45 readings of 5 and 15 of 30 lie on the edge of the quantile on purpose."""
    values = [5.0] * 45 + [30.0] * 15 if last == "30" else [30.0] * 15 + [5.0] * 45
    still, aging = Histogram(H_S), Histogram(H_S)
    for number, value in enumerate(values):
        still.add(value, 0.0)
        aging.add(value, 5.0 if number else 0.0)
    assert still.quantile(0.75) == 5.5
    assert aging.quantile(0.75) == (30.5 if last == "30" else 5.5)


def test_a_share_just_above_a_tie_needs_the_next_bin() -> None:
    """R29."""
    histogram = Histogram(H_S)
    for value in (1.0, 1.0, 1.0, 9.0):
        histogram.add(value, 0.0)
    assert histogram.quantile(0.75) == 1.5
    assert histogram.quantile(0.75 + 1e-9) == 9.5
    assert histogram.quantile(0.75 - 1e-9) == 1.5


def test_five_seconds_of_three_days() -> None:
    """O3: the factor of one step, and the weight and memory at which it settles."""
    histogram = Histogram(H_S)
    histogram.add(10.0, 0.0)
    histogram.add(20.0, 5.0)
    (_, first), (_, second) = histogram.bins()
    assert first == pytest.approx(0.9999866291947, abs=1e-13)
    assert second == 1.0
    settled = 1 / (1 - first)
    assert settled == pytest.approx(74_789.81, abs=0.01)
    assert settled * 5 / 3600 == pytest.approx(103.874, abs=0.001)
    histogram.load([(20, settled)])
    for _ in range(1000):
        histogram.add(10.0, 5.0)
    assert histogram.total == pytest.approx(settled, rel=1e-9)


def test_a_constant_cadence_is_a_geometric_series() -> None:
    """O3."""
    histogram = Histogram(600.0)
    for number in range(5000):
        histogram.add(50.0, 5.0 if number else 0.0)
    step = 2.0 ** (-5 / 600)
    assert histogram.total == pytest.approx((1 - step**5000) / (1 - step), rel=1e-12)


def test_scaling_down_loses_nothing() -> None:
    """P4: weights a whole number of half-lives old are exact powers of two, through every rescaling."""
    histogram = Histogram(1.0)
    for number in range(200):
        histogram.add(number / 2, 1.0)
        assert histogram.bins()[-1] == (number, 1.0)
    assert histogram.bins() == tuple((number, 2.0 ** (number - 199)) for number in range(200))
    assert histogram.total == pytest.approx(2.0)


def test_scaling_down_keeps_the_part_of_a_half_life() -> None:
    histogram = Histogram(2.0)
    histogram.add(10.0, 127.0)
    histogram.add(20.0, 2.0)
    assert histogram.bins() == ((20, 0.5), (40, 1.0))
    histogram.add(30.0, 1.0)
    assert histogram.bins() == (
        (20, pytest.approx(0.5**1.5)),
        (40, pytest.approx(0.5**0.5)),
        (60, 1.0),
    )


def test_ages_beyond_all_numbers_leave_the_newest_reading() -> None:
    """P7: no overflow, no nan; what has decayed away is no bin any more."""
    histogram = Histogram(1.0)
    histogram.add(10.0, 0.0)
    histogram.add(20.0, 1e9)
    assert histogram.bins() == ((40, 1.0),)
    assert histogram.quantile(1.0) == 20.5


def test_what_was_given_can_be_loaded_again() -> None:
    """O9: the total comes from the bins; nothing is left of what was there before."""
    histogram = Histogram(100.0)
    for value in (3.0, 40.0, 40.2, 99.9):
        histogram.add(value, 30.0)
    again = Histogram(100.0)
    again.add(77.0, 50.0)
    again.load(histogram.bins())
    assert again.bins() == histogram.bins()
    assert again.total == pytest.approx(histogram.total, rel=1e-15)
    for thousandth in range(1, 1001):
        assert again.quantile(thousandth / 1000) == histogram.quantile(thousandth / 1000)
    again.add(40.0, 100.0)
    histogram.add(40.0, 100.0)
    assert again.bins() == tuple((n, pytest.approx(weight)) for n, weight in histogram.bins())
