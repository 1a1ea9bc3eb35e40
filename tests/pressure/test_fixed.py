"""Fixed mode, and the retired one: the operator's own threshold, nothing learned."""

from __future__ import annotations

import pytest

from swapd.config import PressureConfig
from swapd.pressure.reading import ProfileState
from tests.pressure.feeding import Feed, restored, saved

FIXED = PressureConfig(mode="fixed", threshold_pct=30)


def test_it_is_usable_at_once() -> None:
    """R72, R70: no warm-up; being calibrated does not mean that anything was learned."""
    first = Feed(FIXED)(3.0)
    assert (first.calibrated, first.threshold_pct) == (True, 30.0)
    assert (first.baseline_pct, first.target_pct, first.hint) == (None, None, None)
    assert (first.learned_samples, first.learned_s, first.warmup_have) == (0, 0.0, 0)


@pytest.mark.parametrize("threshold", [0.0, -5.0, 100.5])
def test_without_a_usable_threshold_it_is_not_calibrated(threshold: float) -> None:
    """R70, R71."""
    feed = Feed(PressureConfig(mode="fixed", threshold_pct=threshold, sustain_s=0))
    told = feed(*[100.0] * 100)
    assert (told.calibrated, told.threshold_pct, told.engaged) == (False, None, False)


def test_it_learns_nothing() -> None:
    """R73, P10: and credits nothing."""
    feed = Feed(FIXED)
    assert {feed(50.0).credited_s for _ in range(100)} == {0.0}
    for summary in feed.device.summaries():
        assert summary[1:] == (False, 0, 0, 0.0, 0.0, None, None, None, None, (), None)


def test_readings_and_time_are_judged_as_ever() -> None:
    """R74."""
    feed = Feed(FIXED)
    assert not feed(30.0, 30.0).engaged
    assert feed(30.0).engaged
    assert feed(*["failed"] * 9).engaged


def test_floor_and_cap_do_not_bind_it() -> None:
    """D7."""
    low = Feed(PressureConfig(mode="fixed", threshold_pct=3, sustain_s=0))
    assert (low(3.0).threshold_pct, low.device.engaged) == (3.0, True)
    high = Feed(PressureConfig(mode="fixed", threshold_pct=95, sustain_s=0))
    assert (high(94.9).threshold_pct, high.device.engaged) == (95.0, False)
    assert high(95.0).engaged


def test_it_does_not_matter_who_is_there() -> None:
    """R74: one threshold for locked, unlocked and unknown."""
    feed = Feed(FIXED)
    assert feed(50.0, to="locked").above_s == 0.0
    told = feed(50.0, to="unknown")
    assert (told.profile, told.threshold_pct, told.calibrated, told.above_s) == (None, 30.0, True, 5.0)
    assert feed(50.0).engaged


def test_what_was_saved_is_neither_used_nor_given_back() -> None:
    """R76."""
    feed = restored(FIXED, saved(40, [(40, 60.0)]))
    assert feed(3.0).threshold_pct == 30.0
    assert feed.device.completed() == {}
    assert feed.summary().bins == ()


def test_a_threshold_counts_in_fixed_mode_only() -> None:
    """R1, R75: the mode of a configuration without one is calibrated."""
    assert PressureConfig().mode == "calibrated"
    assert Feed(PressureConfig(threshold_pct=30))(50.0).threshold_pct is None


def test_what_was_learned_comes_back_with_the_mode() -> None:
    """R77."""
    learned = Feed(PressureConfig())
    learned(*[12.7] * 60)
    state: ProfileState = learned.device.completed()["unlocked"]
    assert restored(PressureConfig(), state)(12.7).threshold_pct == 33.0


def test_the_adaptive_mode_runs_as_calibrated() -> None:
    """R78."""
    values = [float(number * 7 % 50) for number in range(100)]
    adaptive, calibrated = Feed(PressureConfig(mode="adaptive")), Feed(PressureConfig())
    assert [adaptive(value) for value in values] == [calibrated(value) for value in values]
    assert adaptive.device.summaries() == calibrated.device.summaries()
