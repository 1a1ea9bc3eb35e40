"""What people read."""

from __future__ import annotations

import pytest

from swapd.config import PressureConfig
from swapd.pressure.texts import decision_text, fixed_text, load_text, threshold_text, warmup_text
from tests.pressure.feeding import Feed, restored, saved

DEFAULT = PressureConfig()
FIXED = PressureConfig(mode="fixed", threshold_pct=34)


def test_the_threshold_line_as_the_document_has_it() -> None:
    """R50."""
    assert threshold_text(34.0, 40.0, 52 * 3600.0) == "Threshold 34%, rising toward 40% (learned from 52 h)"
    assert threshold_text(34.0, 34.0, 52 * 3600.0) == "Threshold 34% (learned from 52 h)"
    assert threshold_text(34.0, 25.0, 52 * 3600.0) == "Threshold 34% (learned from 52 h)"
    assert threshold_text(34.0, None, 52 * 3600.0) == "Threshold 34% (learned from 52 h)"


@pytest.mark.parametrize(
    ("threshold", "target", "hours", "text"),
    [
        (33.6, 40.0, 1.0, "Threshold 34%, rising toward 40% (learned from 1 h)"),
        (33.4, 39.5, 0.49, "Threshold 33%, rising toward 40% (learned from 0 h)"),
        (33.5, 33.5, 0.5, "Threshold 34% (learned from 1 h)"),
        (34.5, 39.49, 2.5, "Threshold 35%, rising toward 39% (learned from 3 h)"),
        (39.9, 40.0, 9.0, "Threshold 40%, rising toward 40% (learned from 9 h)"),
        (40.0, 40.05, 9.0, "Threshold 40% (learned from 9 h)"),
        (40.0, 40.06, 9.0, "Threshold 40%, rising toward 40% (learned from 9 h)"),
    ],
)
def test_numbers_are_rounded_to_the_nearest(threshold: float, target: float, hours: float, text: str) -> None:
    """D9: and the clause stays while the target is more than 0.05 above."""
    assert threshold_text(threshold, target, hours * 3600.0) == text


def test_progress_and_fixed() -> None:
    """R62, R70."""
    assert warmup_text(23, 60) == "learning: 23 of 60 readings"
    assert fixed_text(30.0) == "Threshold 30% (fixed)"
    assert fixed_text(12.5) == "Threshold 12.5% (fixed)"


def test_a_decision_has_the_line_that_fits() -> None:
    """R50, R62."""
    feed = Feed(DEFAULT)
    assert decision_text(feed(*[12.7] * 23), DEFAULT) == "learning: 23 of 60 readings"
    assert decision_text(feed(*[12.7] * 37), DEFAULT) == "Threshold 33% (learned from 0 h)"
    assert decision_text(feed(12.7, to="unknown"), DEFAULT) is None
    assert decision_text(Feed(FIXED)(12.7), FIXED) == "Threshold 34% (fixed)"
    rising = restored(DEFAULT, saved(34, [(40, 60.0)], learned_s=52 * 3600.0))
    text = "Threshold 34%, rising toward 40% (learned from 52 h)"
    assert decision_text(rising(20.2), DEFAULT) == text


def test_the_reading_is_told_beside_the_threshold() -> None:
    """R5, R129: the sentence of the brief."""
    feed = Feed(FIXED, every_s=6.0)
    assert load_text(feed(33.0), FIXED) == "owner load 33 % < 34 %"
    assert load_text(feed(47.0), FIXED) == "owner load 47 % ≥ 34 % for 0 of 10 s"
    assert load_text(feed(47.2), FIXED) == "owner load 47 % ≥ 34 % for 6 of 10 s"
    assert load_text(feed(47.0), FIXED) == "owner load 47 % ≥ 34 %"
    assert load_text(feed(34.0), FIXED) == "owner load 34 % ≥ 34 %"


def test_a_release_is_told_with_its_line() -> None:
    """D33."""
    feed = Feed(FIXED)
    feed(*[90.0] * 3)
    assert load_text(feed(33.9), FIXED) == "owner load 34 % ≥ 29 %, the line for release"
    assert load_text(feed(29.0), FIXED) == "owner load 29 % ≥ 29 %, the line for release"
    assert load_text(feed(12.0), FIXED) == "owner load 12 % < 29 % for 0 of 30 s"
    assert load_text(feed(12.0), FIXED) == "owner load 12 % < 29 % for 5 of 30 s"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (33.9, "owner load 33.9 % < 34.0 %"),
        (33.96, "owner load 33.96 % < 34.00 %"),
        (33.9996, "owner load 34.000 % < 34.000 %"),
        (34.4, "owner load 34.4 % ≥ 34.0 % for 0 of 10 s"),
        (34.6, "owner load 35 % ≥ 34 % for 0 of 10 s"),
        (0.0, "owner load 0 % < 34 %"),
    ],
)
def test_a_comparison_has_the_digits_that_make_it_true(value: float, text: str) -> None:
    """R5."""
    assert load_text(Feed(FIXED)(value), FIXED) == text


def test_time_is_rounded_down() -> None:
    """R5."""
    feed = Feed(FIXED, every_s=9.99)
    feed(50.0)
    assert load_text(feed(50.0), FIXED) == "owner load 50 % ≥ 34 % for 9 of 10 s"
    half = PressureConfig(mode="fixed", threshold_pct=34, sustain_s=2.5)
    feed = Feed(half, every_s=2.0)
    feed(50.0)
    assert load_text(feed(50.0), half) == "owner load 50 % ≥ 34 % for 2 of 2.5 s"


def test_without_a_number_or_a_threshold_there_is_no_sentence() -> None:
    """R7, R8."""
    feed = Feed(FIXED)
    assert load_text(feed("failed"), FIXED) is None
    assert load_text(Feed(DEFAULT)(50.0), DEFAULT) is None
    assert load_text(Feed(DEFAULT)(50.0, to="unknown"), DEFAULT) is None
