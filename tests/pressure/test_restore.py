"""What a restart keeps, and a profile that comes from an older cache."""

from __future__ import annotations

import pytest

from swapd.config import PressureConfig
from swapd.pressure.reading import ProfileState
from tests.pressure.feeding import Feed, restored, saved

DEFAULT = PressureConfig()
DAY_S = 86_400.0


def learned(config: PressureConfig = DEFAULT) -> Feed:
    feed = Feed(config)
    feed(*[float(number * 7 % 30) for number in range(200)])
    feed(*[2.0] * 60, to="locked")
    return feed


def again(config: PressureConfig, feed: Feed) -> Feed:
    """A new start with what the old one would have saved, a week later."""
    fresh = Feed(config)
    fresh.t_s = feed.t_s + 7 * DAY_S
    for profile, state in feed.device.completed().items():
        fresh.device.restore(profile, state)
    return fresh


def test_a_week_off_changes_nothing() -> None:
    """R26, P6."""
    before = learned()
    after = again(DEFAULT, before)
    assert set(after.device.completed()) == {"locked", "unlocked"}
    for profile in ("locked", "unlocked"):
        was, now = before.summary(profile), after.summary(profile)
        assert now._replace(bins=(), total_weight=0.0) == was._replace(bins=(), total_weight=0.0)
        assert now.bins == tuple((number, pytest.approx(weight, rel=1e-15)) for number, weight in was.bins)
    assert again(DEFAULT, after).device.completed() == after.device.completed()


def test_the_first_reading_after_a_start_is_credited_with_nothing() -> None:
    """R25, R17: whatever the clock says."""
    after = again(DEFAULT, learned())
    first = after(1.0, after_s=5.0 - 7 * DAY_S)
    assert (first.credited_s, first.learned_samples) == (0.0, 201)
    assert after(1.0).credited_s == 5.0


def test_an_unfinished_first_calibration_leaves_nothing_behind() -> None:
    """R63, R64, R90."""
    feed = Feed(DEFAULT)
    feed(*[1.0] * 60)
    feed(*[1.0] * 59, to="locked")
    assert set(feed.device.completed()) == {"unlocked"}
    after = again(DEFAULT, feed)
    assert after.summary("unlocked").calibrated
    assert after.summary("locked").learned_samples == 0
    assert after.summary("locked").warmup_have == 0


def test_what_is_kept_of_a_profile() -> None:
    """R90, R82, D13."""
    feed = Feed(PressureConfig(warmup_samples=2))
    assert feed.device.completed() == {}
    feed(12.7, after_s=0.0)
    feed(12.7, after_s=0.0)
    assert feed.device.completed() == {"unlocked": ProfileState(True, 33.0, 2, 0.0, None, ((25, 2.0),))}


def test_settings_are_applied_after_the_restore() -> None:
    """R33, R87: the same bins, a new target."""
    before = learned()
    state = before.device.completed()["unlocked"]
    for settings, target in (
        (PressureConfig(margin_pct=5), 27.5),
        (PressureConfig(learn_quantile=0.1), 25.0),
        (PressureConfig(cap_pct=35), 35.0),
        (PressureConfig(floor_pct=45, cap_pct=50), 45.0),
    ):
        after = restored(settings, state)
        assert after.summary().target_pct == target
        assert after.summary().bins == state.bins


def test_another_half_life_and_pace_hold_from_the_start_on() -> None:
    """R33."""
    state = saved(25, [(40, 4.0)])
    feed = restored(PressureConfig(learn_half_life_h=5 / 3600, raise_pct_per_h=720), state)
    assert feed(20.2).threshold_pct == 25.0
    assert feed(20.2).threshold_pct == 26.0
    assert feed.summary().bins == ((40, 3.5),)


@pytest.mark.parametrize("poll_ms", [1000, 10_000, 60_000])
def test_another_pace_of_readings_rescales_nothing(poll_ms: int) -> None:
    """D31, R19, R87: only what counts as a gap is another."""
    before = learned()
    after = again(PressureConfig(poll_ms=poll_ms), before)
    assert after.device.completed() == again(DEFAULT, before).device.completed()
    assert after.summary().learned_s == before.summary().learned_s
    after(1.0)
    limit_s = max(3 * poll_ms / 1000, 20.0)
    assert after(1.0, after_s=limit_s).credited_s == limit_s
    assert after(1.0, after_s=limit_s + 0.001).credited_s == 0.0


@pytest.mark.parametrize(
    ("settings", "threshold"),
    [
        (PressureConfig(floor_pct=38), 38.0),
        (PressureConfig(cap_pct=30), 30.0),
        (PressureConfig(cap_pct=20), 25.0),
        (DEFAULT, 35.5),
    ],
)
def test_a_restored_threshold_is_bound_by_the_settings_of_now(
    settings: PressureConfig, threshold: float
) -> None:
    """R88: at once."""
    feed = restored(settings, saved(35.5, [(40, 10.0)]))
    assert feed.summary().threshold_pct == threshold
    assert feed.device.completed()["unlocked"].threshold_pct == threshold


def test_a_larger_warm_up_does_not_undo_a_calibration() -> None:
    """R89, D16: the baseline is told again once the new number is held; until then nothing moves."""
    feed = restored(PressureConfig(warmup_samples=63), saved(30, [(40, 60.0)], samples=60))
    assert feed.summary()[1:3] == (True, 63)
    waiting = feed(20.2, 20.2)
    assert (waiting.calibrated, waiting.baseline_pct) == (True, None)
    assert (waiting.threshold_pct, waiting.target_pct) == (30.0, 30.0)
    held = feed(20.2)
    assert (held.baseline_pct, held.target_pct) == (20.5, 40.0)
    assert held.threshold_pct == pytest.approx(30 + 5 / 3600)


def test_a_profile_that_was_not_completed_is_not_taken_over() -> None:
    """R90, D29."""
    feed = restored(DEFAULT, saved(30)._replace(calibrated=False))
    assert feed.summary().calibrated is False
    assert feed.device.completed() == {}


def test_a_headless_machine_keeps_what_it_does_not_use() -> None:
    """D34: the other profile waits for the screen to come back."""
    feed = Feed(DEFAULT, headless=True)
    feed.device.restore("locked", saved(30, [(40, 60.0)]))
    feed(1.0, to="locked")
    assert feed.device.completed() == {"locked": saved(30, [(40, 60.0)])}


def old(start_pct: float = 33.0) -> ProfileState:
    """What an older cache's baseline becomes (R109, R111)."""
    return saved(start_pct, samples=0, maturing_from_pct=start_pct)


def test_a_migrated_profile_is_calibrated_at_once_with_an_empty_histogram() -> None:
    """R110, R111, D12."""
    feed = restored(DEFAULT, old())
    summary = feed.summary()
    assert (summary.calibrated, summary.warmup_have) == (True, 60)
    assert (summary.threshold_pct, summary.target_pct, summary.maturing_from_pct) == (33.0, 33.0, 33.0)
    assert (summary.learned_samples, summary.learned_s, summary.bins) == (0, 0.0, ())
    assert (summary.baseline_pct, summary.total_weight) == (None, 0.0)


def test_its_baseline_is_told_from_the_sixtieth_reading_on() -> None:
    """R112, R66."""
    feed = restored(DEFAULT, old())
    assert feed(*[1.0] * 59).baseline_pct is None
    first = feed(1.0)
    assert (first.baseline_pct, first.target_pct, first.threshold_pct) == (1.5, 25.0, 33.0)


def test_an_hour_of_quiet_does_not_lower_it() -> None:
    """R114."""
    feed = restored(DEFAULT, old())
    assert {feed(1.0).threshold_pct for _ in range(720)} == {33.0}


def test_it_may_fall_at_the_end_of_the_first_observed_day() -> None:
    """R113: at 86 399 s not yet, at 86 400 s at once."""
    feed = restored(DEFAULT, saved(33, [(2, 60.0)], learned_s=DAY_S - 6, maturing_from_pct=33))
    assert feed(1.0).threshold_pct == 33.0
    last = feed(1.0)
    assert (last.learned_s, last.threshold_pct) == (DAY_S - 1, 33.0)
    assert feed.summary().maturing_from_pct == 33.0
    ripe = feed(1.0, after_s=1.0)
    assert (ripe.learned_s, ripe.threshold_pct) == (DAY_S, 25.0)
    assert feed.summary().maturing_from_pct is None
    assert feed.device.completed()["unlocked"].maturing_from_pct is None


def test_the_day_is_one_of_observed_time() -> None:
    """R113: readings after gaps bring it no nearer."""
    feed = restored(DEFAULT, saved(33, [(2, 60.0)], learned_s=DAY_S - 6, maturing_from_pct=33))
    assert {feed(1.0, after_s=3600.0).threshold_pct for _ in range(48)} == {33.0}


def test_a_rise_while_it_matures_is_limited_and_may_fall_back_to_the_start_only() -> None:
    """R115, R113, D21."""
    config = PressureConfig(raise_pct_per_h=720, learn_half_life_h=5 / 3600)
    feed = restored(config, saved(33, [(40, 1.0)], maturing_from_pct=33))
    assert [feed(20.2).threshold_pct for _ in range(4)] == [33.0, 34.0, 35.0, 36.0]
    assert feed(*[1.0] * 3).threshold_pct == 33.0
    assert feed.summary().maturing_from_pct == 33.0


def test_maturing_survives_a_restart() -> None:
    """R116: ten observed hours, a restart, and fourteen more are needed.

    The first reading after the restart is credited with nothing, so it takes one more than 84 of ten minutes.
    """
    config = PressureConfig(poll_ms=1_200_000)
    before = restored(config, old(), every_s=600.0)
    before(*[1.0] * 61)
    after = again(config, before)
    after.every_s = 600.0
    state = after.device.completed()["unlocked"]
    assert (state.learned_s, state.maturing_from_pct) == (36_000.0, 33.0)
    assert after(*[1.0] * (6 * 14)).threshold_pct == 33.0
    assert after(1.0).threshold_pct == 25.0


@pytest.mark.parametrize(
    ("settings", "threshold"), [(PressureConfig(cap_pct=30), 30.0), (PressureConfig(floor_pct=36), 36.0)]
)
def test_floor_and_cap_bind_a_maturing_threshold(settings: PressureConfig, threshold: float) -> None:
    """R121: the start as well, so that it does not come back above the cap."""
    feed = restored(settings, old())
    assert feed.summary().threshold_pct == threshold
    assert feed.summary().maturing_from_pct == threshold
    assert {feed(1.0).threshold_pct for _ in range(70)} == {threshold}


def test_a_profile_that_has_matured_is_not_protected_any_more() -> None:
    """R113."""
    feed = restored(DEFAULT, saved(33, [(2, 60.0)], learned_s=DAY_S, maturing_from_pct=33))
    assert feed.summary().maturing_from_pct is None
    assert feed(1.0).threshold_pct == 25.0
