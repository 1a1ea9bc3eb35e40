"""What settings mean: target, cap, floor, gap limit, release line."""

from __future__ import annotations

import pytest

from swapd.config import PressureConfig
from swapd.pressure import bounds
from tests.pressure.feeding import Feed, restored, saved

DEFAULT = PressureConfig()


@pytest.mark.parametrize(
    ("baseline", "target"),
    [
        (0.5, 25),
        (4.5, 25),
        (5, 25),
        (5.5, 25.5),
        (8.5, 28.5),
        (13, 33),
        (13.5, 33.5),
        (20, 40),
        (20.5, 40),
        (100, 40),
    ],
)
def test_the_table_of_targets(baseline: float, target: float) -> None:
    """O6, R31: baseline plus margin, between floor and cap."""
    assert bounds.target_pct(DEFAULT, baseline) == target


@pytest.mark.parametrize(("baseline", "start"), [(13, 33), (3, 25), (30, 40)])
def test_where_a_baseline_of_an_older_cache_starts(baseline: float, start: float) -> None:
    """R109: the same rule with the settings in force."""
    assert bounds.target_pct(DEFAULT, baseline) == start


@pytest.mark.parametrize(
    ("floor", "cap", "effective"),
    [
        (25, 40, 40),
        (25, 90, 90),
        (25, 90.5, 90),
        (25, 95, 90),
        (25, 100, 90),
        (25, 20, 25),
        (25, 25, 25),
        (25, 24.9, 25),
        (95, 20, 95),
        (95, 100, 95),
        (90, 100, 90),
        (90, 90, 90),
        (0, 0, 0),
    ],
)
def test_the_effective_cap(floor: float, cap: float, effective: float) -> None:
    """R35, R36, D6: at most 90, and the floor always wins."""
    config = PressureConfig(floor_pct=floor, cap_pct=cap)
    assert bounds.effective_cap_pct(config) == effective
    assert bounds.clamp_pct(config, 100.0) == effective
    assert bounds.clamp_pct(config, -1.0) == floor
    assert bounds.target_pct(config, 100.0) == effective


def test_a_value_between_the_bounds_stays() -> None:
    """R4."""
    assert [bounds.clamp_pct(DEFAULT, value) for value in (24.9, 25.1, 39.9, 40.1)] == [25, 25.1, 39.9, 40]


@pytest.mark.parametrize(
    ("poll_ms", "limit_s"), [(5000, 20.0), (10_000, 30.0), (1000, 20.0), (6667, 20.001), (6666, 20.0)]
)
def test_the_gap_limit_is_three_polls_and_at_least_twenty_seconds(poll_ms: int, limit_s: float) -> None:
    """R19."""
    assert bounds.gap_limit_s(PressureConfig(poll_ms=poll_ms)) == limit_s


@pytest.mark.parametrize(
    ("threshold", "usable"), [(0.0, None), (-1.0, None), (0.1, 0.1), (3.0, 3.0), (95.0, 95.0), (100.0, 100.0)]
)
def test_a_fixed_threshold_is_usable_above_0_and_not_bound_by_floor_and_cap(
    threshold: float, usable: float | None
) -> None:
    """R70, D7."""
    assert bounds.fixed_threshold_pct(PressureConfig(mode="fixed", threshold_pct=threshold)) == usable
    assert bounds.fixed_threshold_pct(PressureConfig(mode="fixed", threshold_pct=100.1)) is None


@pytest.mark.parametrize(
    ("threshold", "band", "line"),
    [(30, 5, 25), (10, 5, 5), (9, 5, 4.5), (3, 5, 1.5), (30, 0, 30), (30, 100, 15)],
)
def test_the_release_line_lies_a_band_below_but_never_at_0(
    threshold: float, band: float, line: float
) -> None:
    """D33: a band over a small threshold could never be undercut, so it takes at most half."""
    assert bounds.release_line_pct(PressureConfig(release_band_pct=band), threshold) == line


def test_intervals_are_taken_to_the_microsecond() -> None:
    """R18, D38: 20 s on the dot is 20 s wherever the clock stands."""
    assert bounds.interval_s(0.1, 20.1) == 20.0
    assert bounds.interval_s(1e9 + 0.3, 1e9 + 20.3) == 20.0
    assert bounds.interval_s(0.0, 20.000001) == 20.000001
    assert bounds.interval_s(0.0, 0.0000004) == 0.0
    assert bounds.interval_s(5.0, 0.0) == -5.0


def test_a_constant_full_load_never_lifts_the_threshold_over_the_cap() -> None:
    """R34: thirty days of 100 %."""
    feed = Feed(PressureConfig(poll_ms=1_800_000), every_s=3600.0)
    assert {feed(100.0).threshold_pct for _ in range(24 * 30)} == {None, 40.0}
    assert feed.summary().learned_s == 3600.0 * (24 * 30 - 1)


def test_the_cap_may_be_set_up_to_90() -> None:
    """R34, R35: also with a cap of 100 the threshold stops at 90."""
    config = PressureConfig(poll_ms=1_800_000, cap_pct=100)
    feed = restored(config, saved(89.5, [(199, 1000.0)]), every_s=1800.0)
    assert [feed(100.0).threshold_pct for _ in range(3)] == [89.5, 90.0, 90.0]


def test_the_floor_holds_even_over_the_cap() -> None:
    """R36."""
    feed = Feed(PressureConfig(floor_pct=25, cap_pct=20))
    assert feed(*[0.0] * 60).threshold_pct == 25
    feed = Feed(PressureConfig(floor_pct=95, cap_pct=20))
    assert feed(*[100.0] * 60).threshold_pct == 95


def test_the_settings_are_only_read() -> None:
    """R44."""
    config = PressureConfig()
    Feed(config)(*[100.0] * 100)
    assert config == PressureConfig()
