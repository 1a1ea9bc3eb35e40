"""How the threshold moves: down at once, up by observed time."""

from __future__ import annotations

import pytest

from swapd.config import PressureConfig
from swapd.pressure.reading import HINT_ABOVE_CAP
from tests.pressure.feeding import Feed, restored, saved

DEFAULT = PressureConfig()
AT_33 = [(25, 50_000.0)]
"""A histogram of readings from 12.5 to 13: baseline 13, target 33."""
AT_40 = [(40, 50_000.0)]
"""Baseline 20.5, target 40."""
AT_25 = [(2, 50_000.0)]


def test_a_lower_target_is_taken_in_one_step() -> None:
    """R45."""
    feed = restored(DEFAULT, saved(40, AT_25))
    assert feed(1.0).threshold_pct == 25.0


@pytest.mark.parametrize(
    ("bins", "value", "target", "readings"), [(AT_33, 12.7, 33.0, 5760), (AT_40, 20.2, 40.0, 10_800)]
)
def test_a_rise_from_25_takes_8_hours_to_33_and_15_to_40(
    bins: list[tuple[int, float]], value: float, target: float, readings: int
) -> None:
    """R46, R48, O7, D20: 8.000 and 15.000 observed hours, to the reading."""
    feed = restored(DEFAULT, saved(25, bins))
    assert feed(value).threshold_pct == 25.0
    rising = [feed(value).threshold_pct for _ in range(readings)]
    assert rising[0] == pytest.approx(25 + 5 / 3600, abs=1e-12)
    assert rising[719] == 26.0
    assert rising[-2] == pytest.approx(target - 5 / 3600, abs=1e-9)
    assert rising[-1] == target
    assert feed(value).threshold_pct == target
    assert feed.summary().learned_s == (readings + 1) * 5.0


@pytest.mark.parametrize("every_s", [1.0, 7.5, 20.0])
def test_an_observed_hour_is_one_point_at_any_cadence(every_s: float) -> None:
    """R48, R49, O7."""
    feed = restored(DEFAULT, saved(25, AT_40), every_s=every_s)
    feed(20.2)
    rising = [feed(20.2).threshold_pct for _ in range(int(3600 / every_s))]
    assert rising[-1] == 26.0
    assert rising == sorted(rising)
    assert feed(20.2).threshold_pct == pytest.approx(26.0 + every_s / 3600, abs=1e-12)


def test_the_pace_is_a_setting() -> None:
    """R46."""
    feed = restored(PressureConfig(raise_pct_per_h=720), saved(25, AT_33))
    assert [feed(12.7).threshold_pct for _ in range(11)] == [25, *range(26, 34), 33, 33]
    still = restored(PressureConfig(raise_pct_per_h=0), saved(25, AT_33))
    assert still(*[12.7] * 100).threshold_pct == 25


def test_a_step_stops_at_the_target() -> None:
    """R46, P2: also where the next step would go over it."""
    feed = restored(PressureConfig(raise_pct_per_h=3600), saved(25, AT_33))
    assert [feed(12.7).threshold_pct for _ in range(4)] == [25, 30, 33, 33]


def test_a_rise_begins_anew_where_a_fall_ended() -> None:
    """R45, R46: nothing of the earlier rise is left."""
    config = PressureConfig(raise_pct_per_h=720, learn_half_life_h=5 / 3600, warmup_samples=1, cap_pct=90)
    feed = Feed(config)
    assert feed(10.2).threshold_pct == 30.5
    assert [feed(50.2).threshold_pct for _ in range(4)] == [31.5, 32.5, 33.5, 34.5]
    assert [feed(2.2).threshold_pct for _ in range(3)] == [35.5, 25.0, 25.0]
    assert [feed(50.2).threshold_pct for _ in range(4)] == [26.0, 27.0, 28.0, 29.0]


def test_a_target_that_is_reached_and_moves_on_is_followed_from_there() -> None:
    """R46."""
    config = PressureConfig(raise_pct_per_h=3600, learn_half_life_h=5 / 3600, warmup_samples=1, cap_pct=90)
    feed = Feed(config)
    feed(10.2)
    assert [feed(20.2).threshold_pct for _ in range(4)] == [35.5, 40.5, 40.5, 40.5]
    assert [feed(30.2).threshold_pct for _ in range(4)] == [45.5, 50.5, 50.5, 50.5]


def test_without_observed_time_it_falls_but_never_rises() -> None:
    """R47."""
    gap = restored(DEFAULT, saved(25, AT_33))
    assert {gap(12.7, after_s=25.0).threshold_pct for _ in range(10)} == {25.0}
    assert gap(12.7).threshold_pct == pytest.approx(25 + 5 / 3600)
    falling = restored(DEFAULT, saved(40, AT_33))
    assert falling(12.7, after_s=25.0).threshold_pct == 33.0


def test_pressure_is_judged_by_the_threshold_after_the_reading() -> None:
    """R51, D10: a threshold that falls engages on that very reading."""
    config = PressureConfig(sustain_s=0)
    assert restored(config, saved(40, AT_25))(30.0).engaged
    assert restored(config, saved(25, AT_33))(25.0).engaged
    risen = restored(PressureConfig(sustain_s=0, raise_pct_per_h=3600), saved(25, AT_33))
    risen(1.0)
    assert not risen(26.0).engaged


def test_a_desktop_of_two_states_is_cleared_by_the_upper_one() -> None:
    """R32: 60 % of the time 5 to 14, 40 % at 25 to 39; a quantile of a quarter would not see the second."""
    states = [5.0 + number % 10 for number in range(36)] + [25.0 + number % 15 for number in range(24)]
    mixed = [states[number * 7 % 60] for number in range(60)]
    assert Feed(DEFAULT)(*mixed).target_pct == 40.0
    assert Feed(PressureConfig(sustain_s=0))(*mixed, 39.0).engaged is False
    low = Feed(PressureConfig(learn_quantile=0.25))(*mixed)
    assert low.target_pct is not None
    assert low.target_pct < 39.0


def test_a_load_above_the_cap_is_told() -> None:
    """R43, D8: the baseline itself, not with its margin; equal to the cap it is not above it."""
    assert HINT_ABOVE_CAP == "learned load is above the calibration cap; target held at cap"
    above = Feed(DEFAULT)(*[40.0] * 60)
    assert (above.baseline_pct, above.hint) == (40.5, HINT_ABOVE_CAP)
    equal = Feed(DEFAULT)(*[39.7] * 60)
    assert (equal.baseline_pct, equal.target_pct, equal.hint) == (40.0, 40.0, None)
    assert Feed(PressureConfig(cap_pct=95))(*[90.2] * 60).hint == HINT_ABOVE_CAP
    assert Feed(PressureConfig(cap_pct=95))(*[89.7] * 60).hint is None
    assert Feed(PressureConfig(cap_pct=20))(*[24.7] * 60).hint is None


def test_the_hint_goes_when_the_load_does() -> None:
    """R43."""
    feed = Feed(PressureConfig(learn_half_life_h=20 / 3600, warmup_samples=4))
    assert feed(*[50.0] * 4).hint == HINT_ABOVE_CAP
    assert feed.summary().hint == HINT_ABOVE_CAP
    assert feed(*[1.0] * 20).hint is None
    assert feed.summary().hint is None


@pytest.mark.parametrize("load", [39.9, 24.9])
def test_a_load_below_the_threshold_never_engages(load: float) -> None:
    """R9: the documented limit, here for a day."""
    feed = restored(DEFAULT, saved(40 if load > 25 else 25, AT_40 if load > 25 else AT_25), every_s=20.0)
    assert not any(feed(load).engaged for _ in range(1000))


def test_a_load_at_the_cap_engages_whatever_was_learned() -> None:
    """R41, R5: the threshold is never above it."""
    feed = restored(DEFAULT, saved(40, [(199, 50_000.0)]))
    assert [feed(40.0).engaged for _ in range(4)] == [False, False, True, True]


def test_the_long_job_that_becomes_normal_is_at_most_the_cap() -> None:
    """R11, R34: what the owner does for long is learned, up to the cap and not beyond."""
    feed = restored(PressureConfig(raise_pct_per_h=3600), saved(25, [(2, 1.0)]))
    assert feed(*[100.0] * 200).threshold_pct == 40.0
    assert feed.device.engaged
