"""When pressure engages and when it lets go."""

from __future__ import annotations

import pytest

from swapd.config import PressureConfig
from swapd.pressure.hysteresis import Hysteresis
from swapd.pressure.reading import Reading
from tests.pressure.feeding import Feed, restored, saved

DEFAULT = PressureConfig()
FIXED = PressureConfig(mode="fixed", threshold_pct=30)


def engaged(config: PressureConfig = FIXED) -> Feed:
    feed = Feed(config)
    assert feed(*[90.0] * 3).engaged
    return feed


def test_ten_seconds_at_the_threshold_engage() -> None:
    """R5: equal counts; a moment earlier it has not."""
    feed = Feed(FIXED, every_s=1.0)
    told = [feed(30.0) for _ in range(11)]
    assert [each.engaged for each in told] == [False] * 10 + [True]
    assert [each.above_s for each in told] == [*range(10), 0.0]
    assert {each.below_s for each in told} == {0.0}
    feed = Feed(FIXED)
    feed(30.0)
    assert not feed(30.0, after_s=9.999999).engaged
    assert feed(30.0, after_s=0.000001).engaged


def test_a_reading_below_begins_the_spell_anew() -> None:
    """R6, D2."""
    feed = Feed(FIXED)
    assert [feed(value).above_s for value in (30.0, 30.0, 29.999, 30.0, 30.0)] == [0, 5, 0, 0, 5]
    assert feed(30.0).engaged


def test_without_a_time_the_first_reading_engages() -> None:
    """R5."""
    feed = Feed(PressureConfig(mode="fixed", threshold_pct=30, sustain_s=0))
    assert not feed(29.9).engaged
    assert feed(30.0).engaged


@pytest.mark.parametrize("word", ["failed", "invalid", "missing"])
def test_a_reading_without_a_number_neither_adds_to_a_spell_nor_ends_it(word: Reading) -> None:
    """R7, D2: time is that between valid readings."""
    feed = Feed(FIXED)
    feed(50.0)
    for _ in range(2):
        told = feed(word)
        assert (told.engaged, told.above_s) == (False, 0.0)
    assert feed(50.0).engaged
    feed = Feed(FIXED)
    feed(50.0, 50.0)
    assert feed(word).above_s == 5.0
    assert feed(10.0).above_s == 0.0


@pytest.mark.parametrize(("gap_s", "above_s"), [(20.0, 25.0), (20.000001, 0.0), (-1.0, 0.0), (0.0, 5.0)])
def test_a_gap_over_the_limit_begins_the_spell_anew(gap_s: float, above_s: float) -> None:
    """D33, R28: and so does a clock that stepped back."""
    feed = Feed(PressureConfig(mode="fixed", threshold_pct=30, sustain_s=60))
    feed(50.0, 50.0)
    assert feed(50.0, after_s=gap_s).above_s == above_s
    assert feed(50.0).above_s == above_s + 5.0


def test_thirty_seconds_below_the_line_release() -> None:
    """D33: below the threshold minus the band; the line itself is not below."""
    feed = engaged()
    told = [feed(24.9) for _ in range(7)]
    assert [each.engaged for each in told] == [True] * 6 + [False]
    assert [each.below_s for each in told] == [0, 5, 10, 15, 20, 25, 0]
    assert {each.above_s for each in told} == {0.0}
    feed = engaged()
    assert {feed(25.0).below_s for _ in range(100)} == {0.0}
    assert feed.device.engaged


def test_a_reading_at_the_line_begins_the_release_anew() -> None:
    """D33."""
    feed = engaged()
    assert feed(*[10.0] * 6).below_s == 25.0
    assert feed(25.0).below_s == 0.0
    assert feed(10.0).below_s == 0.0
    assert feed(*[10.0] * 5).engaged
    assert not feed(10.0).engaged


def test_a_release_is_exact_to_the_moment() -> None:
    """D33."""
    feed = engaged()
    feed(0.0, 0.0, after_s=20.0)
    assert feed(0.0, after_s=20.0).below_s == 25.0
    assert feed(0.0, after_s=4.999999).engaged
    assert not feed(0.0, after_s=0.000001).engaged


@pytest.mark.parametrize("word", ["failed", "invalid", "missing"])
def test_missing_readings_keep_it_engaged(word: Reading) -> None:
    """D33, R7: for as long as they are missing, and the release begins anew after the gap."""
    feed = engaged()
    feed(*[0.0] * 6)
    assert feed(*[word] * 1000).engaged
    assert feed(0.0).below_s == 0.0
    assert feed.device.engaged


def test_it_may_engage_again_as_soon_as_it_let_go() -> None:
    """D33: the reading that ends one spell is no part of the next."""
    feed = engaged()
    assert not feed(*[0.0] * 7).engaged
    assert [feed(90.0).above_s for _ in range(2)] == [0.0, 5.0]
    assert feed(90.0).engaged
    assert [feed(0.0).below_s for _ in range(2)] == [0.0, 5.0]


def test_small_thresholds_can_be_released() -> None:
    """D33: 3 minus a band of 5 would be a line that nothing undercuts."""
    feed = engaged(PressureConfig(mode="fixed", threshold_pct=3))
    assert feed(*[1.5] * 100).engaged
    assert not feed(*[1.4] * 7).engaged


def test_both_timers_run_through_a_change_of_profile() -> None:
    """D33: they belong to the device; each reading is judged by its own profile's threshold."""
    feed = restored(DEFAULT, saved(40, [(40, 1e6)]))
    feed.device.restore("locked", saved(25, [(2, 1e6)]))
    assert feed(41.0).above_s == 0.0
    assert feed(30.0, to="locked").above_s == 5.0
    assert feed(30.0, to="locked").engaged
    assert feed(34.0).below_s == 0.0
    assert feed(19.0, to="locked").below_s == 5.0
    assert feed(34.0).below_s == 10.0
    assert feed(34.0, to="locked").below_s == 0.0


def test_readings_that_cannot_be_judged_neither_add_nor_end() -> None:
    """R8, D33: another profile's first calibration, or unknown attendance."""
    feed = restored(DEFAULT, saved(40, [(40, 1e6)]))
    feed(50.0)
    assert feed(90.0, to="locked").above_s == 0.0
    assert feed(1.0, to="unknown").above_s == 0.0
    assert feed(50.0).engaged
    assert feed(*[0.0] * 5, to="locked").engaged
    assert feed(*[0.0] * 50, to="unknown").engaged
    assert feed(0.0).below_s == 0.0


def test_unknown_attendance_keeps_what_is() -> None:
    """D33, R24."""
    feed = restored(DEFAULT, saved(40, [(40, 1e6)]))
    assert not feed(*[90.0] * 100, to="unknown").engaged
    assert feed(*[90.0] * 3).engaged
    assert feed(*[0.0] * 100, to="unknown").engaged


def test_pressure_does_not_change_what_is_learned() -> None:
    """P9."""
    values = [90.0, 90.0, 90.0, 5.0, 90.0, 3.0, 2.0, 90.0] * 10
    easy = Feed(PressureConfig(warmup_samples=3, sustain_s=0, release_s=0))
    never = Feed(PressureConfig(warmup_samples=3, sustain_s=1e6))
    for value in values:
        assert easy(value)[:7] == never(value)[:7]
    assert easy.summary() == never.summary()
    assert easy.device.engaged
    assert not never.device.engaged


def test_the_hysteresis_alone_tells_both_spells() -> None:
    """R5, D33."""
    alone = Hysteresis(DEFAULT)
    assert (alone.engaged, alone.above_s, alone.below_s) == (False, 0.0, 0.0)
    for number in range(3):
        alone.observe(number * 5.0, 40.0, 40.0)
    assert (alone.engaged, alone.above_s, alone.below_s) == (True, 0.0, 0.0)
    alone.observe(15.0, 34.9, 40.0)
    alone.observe(20.0, 34.9, 40.0)
    assert (alone.engaged, alone.above_s, alone.below_s) == (True, 0.0, 5.0)
