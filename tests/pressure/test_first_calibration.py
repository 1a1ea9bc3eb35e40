"""The first calibration: counted in readings, paused by everything else, complete in one step."""

from __future__ import annotations

import pytest

from swapd.config import PressureConfig
from swapd.pressure.reading import Attendance, Reading
from tests.pressure.feeding import Feed

DEFAULT = PressureConfig()


def test_the_sixtieth_reading_sets_the_threshold_to_the_target_at_once() -> None:
    """R52, R54, R8: nothing before it."""
    feed = Feed(DEFAULT)
    almost = feed(*[12.7] * 59)
    assert (almost.calibrated, almost.threshold_pct, almost.target_pct) == (False, None, None)
    assert (almost.baseline_pct, almost.warmup_have, almost.hint) == (None, 59, None)
    done = feed(12.7)
    assert (done.calibrated, done.threshold_pct, done.target_pct) == (True, 33.0, 33.0)
    assert (done.baseline_pct, done.warmup_have, done.learned_samples) == (13.0, 60, 60)
    assert done.learned_s == 59 * 5.0


@pytest.mark.parametrize("every_s", [0.1, 1.0, 10.0, 86_400.0])
def test_progress_is_a_count_and_no_timer(every_s: float) -> None:
    """R53."""
    feed = Feed(DEFAULT, every_s=every_s)
    assert not feed(*[1.0] * 59).calibrated
    assert feed(1.0).calibrated


@pytest.mark.parametrize("wanted", [1, 2, 7])
def test_the_count_is_a_setting(wanted: int) -> None:
    """R52."""
    feed = Feed(PressureConfig(warmup_samples=wanted))
    assert [feed(1.0).calibrated for _ in range(wanted + 1)] == [False] * (wanted - 1) + [True, True]
    assert feed(1.0).warmup_have == wanted


def test_progress_is_told() -> None:
    """R62: at most all of it, also after it."""
    feed = Feed(PressureConfig(warmup_samples=3))
    assert [feed(1.0).warmup_have for _ in range(5)] == [1, 2, 3, 3, 3]
    assert feed.summary().warmup_have == 3
    assert feed.summary("locked").warmup_have == 0


def test_a_busy_card_calibrates_at_its_cap() -> None:
    """R42."""
    done = Feed(DEFAULT)(*[70.0] * 60)
    assert (done.threshold_pct, done.target_pct, done.baseline_pct) == (40.0, 40.0, 70.5)


@pytest.mark.parametrize(
    ("pause", "attendance"),
    [
        ("failed", "unlocked"),
        ("invalid", "unlocked"),
        ("missing", "unlocked"),
        (50.0, "unknown"),
        (50.0, "locked"),
        ("failed", "unknown"),
    ],
)
def test_a_pause_keeps_the_count_and_ages_nothing(pause: Reading, attendance: Attendance) -> None:
    """R55, R56, R58: 59 readings, an hour of something else, one reading."""
    feed = Feed(DEFAULT)
    feed(*[1.0] * 59)
    before = feed.summary()
    feed(*[pause] * 720, to=attendance)
    assert feed.summary() == before
    assert feed(1.0).calibrated
    assert feed.summary().bins == ((2, before.bins[0][1] + 1.0),)


def test_a_switch_of_profile_pauses_the_first_calibration() -> None:
    """R57, R13, R12: 30 unlocked, 100 locked, 30 unlocked."""
    feed = Feed(DEFAULT)
    feed(*[1.0] * 30)
    before = feed.summary()
    assert feed(*[20.0] * 100, to="locked").calibrated
    assert feed.summary() == before
    assert not feed.summary().calibrated
    locked = feed.summary("locked")
    assert (locked.calibrated, locked.threshold_pct, locked.learned_samples) == (True, 40.0, 100)
    assert not feed(*[1.0] * 29).calibrated
    assert feed(1.0).calibrated
    assert feed.summary("locked") == locked


def test_each_profile_learns_its_own_readings_only() -> None:
    """R12, R13."""
    feed = Feed(PressureConfig(warmup_samples=4))
    feed(*[30.0] * 4)
    feed(*[2.0] * 3, to="locked")
    unlocked, locked = feed.summary("unlocked"), feed.summary("locked")
    assert [number for number, _ in unlocked.bins] == [60]
    assert [number for number, _ in locked.bins] == [4]
    assert (unlocked.calibrated, locked.calibrated) == (True, False)
    assert (locked.profile, unlocked.profile) == ("locked", "unlocked")


def test_devices_learn_apart() -> None:
    """R2."""
    config = PressureConfig(warmup_samples=2)
    one, other = Feed(config), Feed(config)
    other(3.0, 3.0)
    before = list(other.device.summaries())
    one(*[90.0] * 50)
    assert one.device.engaged
    assert list(other.device.summaries()) == before
    assert not other.device.engaged


def test_readings_of_a_warm_up_age_as_any() -> None:
    """D32: only pauses do not age."""
    feed = Feed(PressureConfig(learn_half_life_h=5 / 3600))
    feed(1.0, 2.0, 3.0)
    assert feed.summary().bins == ((2, 0.25), (4, 0.5), (6, 1.0))
    assert feed.summary().total_weight == 1.75


def test_engaged_readings_are_learned_too() -> None:
    """R11, D30."""
    feed = Feed(PressureConfig(warmup_samples=2))
    feed(3.0, 3.0)
    assert feed(*[90.0] * 10).engaged
    learned = feed(90.0)
    assert learned.learned_samples == 13
    assert dict(feed.summary().bins)[180] == pytest.approx(11.0, abs=1e-2)


def test_an_uncalibrated_profile_has_no_pressure() -> None:
    """R8."""
    feed = Feed(PressureConfig(sustain_s=0.0))
    quiet = feed(*[100.0] * 59)
    assert (quiet.engaged, quiet.above_s) == (False, 0.0)
    assert feed(100.0).engaged
