"""What time a reading is credited with: only what was observed, in its own profile."""

from __future__ import annotations

import pytest

from swapd.config import PressureConfig
from swapd.pressure.reading import Attendance, Decision, Reading
from tests.pressure.feeding import Feed

DEFAULT = PressureConfig()


def test_the_first_reading_is_credited_with_nothing_the_next_with_its_interval() -> None:
    """R16, R17."""
    feed = Feed(DEFAULT)
    assert [feed(1.0).credited_s for _ in range(3)] == [0.0, 5.0, 5.0]
    assert feed.summary().learned_s == 10.0
    assert feed.summary().learned_samples == 3


@pytest.mark.parametrize(
    ("poll_ms", "interval_s", "credited_s"),
    [
        (5000, 20.0, 20.0),
        (5000, 20.000001, 0.0),
        (5000, 20.5, 0.0),
        (1000, 20.0, 20.0),
        (1000, 21.0, 0.0),
        (10_000, 30.0, 30.0),
        (10_000, 30.1, 0.0),
        (5000, 7 * 86_400.0, 0.0),
    ],
)
def test_an_interval_counts_whole_up_to_the_gap_limit_and_not_at_all_beyond(
    poll_ms: int, interval_s: float, credited_s: float
) -> None:
    """R18, R19."""
    feed = Feed(PressureConfig(poll_ms=poll_ms))
    feed(1.0)
    assert feed(1.0, after_s=interval_s).credited_s == credited_s
    assert feed(1.0).credited_s == 5.0


def test_the_interval_is_that_of_the_readings_not_of_the_settings() -> None:
    """D38."""
    feed = Feed(DEFAULT)
    feed(1.0)
    assert [feed(1.0, after_s=passed).credited_s for passed in (4.75, 0.25, 0.0)] == [4.75, 0.25, 0.0]


def test_a_skipped_tick_is_credited_in_full() -> None:
    """R20: also when it is told as `missing`; it has no credit of its own."""
    feed = Feed(DEFAULT)
    feed(1.0)
    assert feed(1.0, after_s=10.0).credited_s == 10.0
    assert feed("missing").credited_s == 0.0
    assert feed(1.0).credited_s == 10.0
    assert feed("missing", "missing", "missing").learned_samples == 3
    assert feed(1.0).credited_s == 20.0
    assert feed("missing", "missing", "missing", "missing").credited_s == 0.0
    assert feed(1.0).credited_s == 0.0


@pytest.mark.parametrize("word", ["failed", "invalid"])
def test_a_read_that_gave_nothing_credits_nothing_and_breaks_the_line(word: Reading) -> None:
    """R21, R22, D4: the interval that spans it does not count either."""
    feed = Feed(DEFAULT)
    feed(1.0, 1.0)
    gone = feed(word)
    assert (gone.credited_s, gone.learned_samples, gone.learned_s) == (0.0, 2, 5.0)
    assert feed(1.0).credited_s == 0.0
    assert feed(1.0).credited_s == 5.0
    assert feed.summary().bins == ((2, pytest.approx(4.0, abs=1e-3)),)


@pytest.mark.parametrize("number", [-0.001, 100.001, float("nan"), float("inf"), -float("inf")])
def test_a_number_that_cannot_be_a_share_is_an_invalid_reading(number: float) -> None:
    """R22, P7."""
    feed = Feed(PressureConfig(warmup_samples=2))
    feed(30.0, 30.0)
    before = feed.summary()
    assert feed(number).credited_s == 0.0
    assert feed.summary() == before
    assert feed(30.0).credited_s == 0.0


@pytest.mark.parametrize("number", [0, 0.0, 100, 100.0])
def test_both_ends_are_readings(number: float) -> None:
    """R10."""
    feed = Feed(DEFAULT)
    assert feed(number).learned_samples == 1


def test_time_in_the_other_profile_credits_nothing() -> None:
    """R23: A, B, A within the limit."""
    feed = Feed(DEFAULT)
    feed(1.0, to="locked")
    assert feed(1.0, to="unlocked").credited_s == 0.0
    back = feed(1.0, to="locked")
    assert (back.credited_s, back.learned_samples, back.learned_s) == (0.0, 2, 0.0)
    assert feed(1.0, to="locked").credited_s == 5.0


@pytest.mark.parametrize("word", ["missing", "failed", "invalid"])
@pytest.mark.parametrize("elsewhere", ["locked", "unknown"])
def test_time_elsewhere_credits_nothing_whatever_was_read_there(word: Reading, elsewhere: Attendance) -> None:
    """R23, R24."""
    feed = Feed(DEFAULT)
    feed(1.0)
    feed(word, to=elsewhere)
    assert feed(1.0).credited_s == 0.0


def test_time_of_unknown_attendance_credits_nothing_and_teaches_nothing() -> None:
    """R24."""
    feed = Feed(DEFAULT)
    feed(1.0, 1.0)
    lost = feed(99.0, 99.0, to="unknown")
    assert lost.profile is None
    assert (lost.credited_s, lost.learned_samples, lost.learned_s) == (0.0, 0, 0.0)
    assert (lost.threshold_pct, lost.calibrated, lost.warmup_have) == (None, False, 0)
    assert feed(1.0).credited_s == 0.0
    assert feed.summary().learned_s == 5.0
    assert feed.summary("locked").learned_samples == 0


def test_a_night_asleep_credits_nothing() -> None:
    """R27, D5: the clock ran on, and that is a gap."""
    feed = Feed(PressureConfig(warmup_samples=2))
    feed(1.0, 1.0)
    before = feed.summary()
    assert feed(1.0, after_s=8 * 3600.0).credited_s == 0.0
    assert feed.summary().learned_s == before.learned_s
    assert feed.summary().total_weight == pytest.approx(before.total_weight + 1.0, rel=1e-15)


def test_a_clock_that_steps_back_credits_nothing() -> None:
    """R28: and the next interval counts from there."""
    feed = Feed(DEFAULT)
    feed(1.0, 1.0)
    assert feed(1.0, after_s=-3.0).credited_s == 0.0
    assert feed.summary().total_weight == pytest.approx(3.0, abs=1e-3)
    assert feed.summary().total_weight <= 3.0
    assert feed(1.0).credited_s == 5.0
    assert feed(1.0, after_s=-0.000001).credited_s == 0.0


def test_the_decision_tells_what_came_in() -> None:
    """R129."""
    feed = Feed(DEFAULT)
    told = feed(7.5, to="locked")
    assert (told.t_s, told.reading, told.profile) == (1005.0, 7.5, "locked")
    told = feed("failed", to="unknown")
    assert (told.t_s, told.reading, told.profile) == (1010.0, "failed", None)


def test_what_a_decision_was_not_told_is_nothing() -> None:
    """R129."""
    bare = Decision(1.0, None, 0.0, None, None, None, False, False, 0, 0.0, None)
    assert bare[11:] == ("missing", 0.0, 0.0, 0)


def test_a_headless_machine_has_one_profile_whatever_is_said_of_attendance() -> None:
    """D34."""
    feed = Feed(DEFAULT, headless=True)
    for attendance in ("unknown", "locked", "unlocked"):
        decision = feed(3.0, to=attendance)
        assert decision.profile == "unlocked"
    assert (decision.credited_s, decision.learned_samples) == (5.0, 3)
    assert [each.profile for each in feed.device.summaries()] == ["unlocked"]
    assert [each.profile for each in Feed(DEFAULT).device.summaries()] == ["locked", "unlocked"]
