"""Properties of any sequence of readings, against the slow model and by themselves."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from swapd.config import PressureConfig
from swapd.pressure.calibration import DevicePressure
from swapd.pressure.reading import Attendance, Decision, Reading
from tests.pressure.feeding import Feed
from tests.pressure.model import Model

Step = tuple[float, Reading, Attendance]
QUICK = settings(max_examples=60)

PASSED_S = st.sampled_from([5.0, 5.0, 5.0, 2.5, 0.0, 19.5, 20.0, 20.5, 31.0, 3600.0, -4.0])
VALUES = st.one_of(
    st.floats(0.0, 100.0), st.sampled_from([0.0, 3.0, 24.5, 25.0, 30.0, 39.5, 40.0, 60.0, 100.0])
)
READINGS = st.one_of(VALUES, VALUES, VALUES, st.sampled_from(["failed", "invalid", "missing"]))
ATTENDANCES = st.sampled_from(["unlocked"] * 6 + ["locked"] * 2 + ["unknown"])


@st.composite
def sequences(draw: st.DrawFn) -> list[Step]:
    steps: list[Step] = []
    t_s = 1000.0
    for passed_s, reading, attendance in draw(
        st.lists(st.tuples(PASSED_S, READINGS, ATTENDANCES), max_size=60)
    ):
        t_s += passed_s
        steps.append((t_s, reading, attendance))
    return steps


SETTINGS = st.fixed_dictionaries(
    {
        "learn_quantile": st.sampled_from([0.25, 0.5, 0.75, 0.9]),
        "learn_half_life_h": st.sampled_from([0.005, 0.0625, 72.0]),
        "margin_pct": st.sampled_from([0.0, 5.0, 20.0]),
        "floor_pct": st.sampled_from([0.0, 10.0, 25.0, 95.0]),
        "cap_pct": st.sampled_from([20.0, 40.0, 60.0, 95.0]),
        "raise_pct_per_h": st.sampled_from([0.0, 1.0, 720.0]),
        "warmup_samples": st.sampled_from([1, 2, 5]),
        "poll_ms": st.sampled_from([1000, 5000, 10_000]),
        "sustain_s": st.sampled_from([0.0, 5.0, 10.0]),
        "release_s": st.sampled_from([0.0, 7.5, 30.0]),
        "release_band_pct": st.sampled_from([0.0, 5.0, 50.0]),
    }
)


def run(config: PressureConfig, steps: list[Step]) -> list[Decision]:
    device = DevicePressure(config)
    return [device.observe(*step) for step in steps]


@QUICK
@given(SETTINGS, sequences())
def test_every_row_is_that_of_the_slow_model(values: dict[str, Any], steps: list[Step]) -> None:
    """O1, O6, O7, O8: the whole device against the document read aloud."""
    model = Model(values)
    device = DevicePressure(PressureConfig(**values))
    for step in steps:
        expected, told = model.step(*step), device.observe(*step)._asdict()
        # A sum that misses a tie by less than rounding errors has no right answer.
        assume(model.tie == 0.0 or model.tie > 1e-9)
        for name in ("baseline_pct", "target_pct", "engaged", "learned_samples", "hint"):
            assert told[name] == expected[name], name
        for name in ("credited_s", "learned_s", "threshold_pct"):
            exact = None if expected[name] is None else float(expected[name])
            assert told[name] == (exact if exact is None else pytest.approx(exact, abs=1e-9)), name


@QUICK
@given(SETTINGS, sequences())
def test_the_threshold_stays_between_its_bounds_and_moves_as_it_may(
    values: dict[str, Any], steps: list[Step]
) -> None:
    """P1, P2, P3, R4."""
    floor = values["floor_pct"]
    cap = max(floor, min(values["cap_pct"], 90.0))
    before: dict[str, float] = {}
    for told in run(PressureConfig(**values), steps):
        if told.threshold_pct is None or told.profile is None:
            continue
        assert floor <= told.threshold_pct <= cap
        was = before.get(told.profile)
        if was is not None:
            allowed = values["raise_pct_per_h"] * told.credited_s / 3600
            assert told.threshold_pct <= was + allowed + 1e-9
            assert told.target_pct is not None
            assert told.threshold_pct >= min(was, told.target_pct)
        before[told.profile] = told.threshold_pct


@QUICK
@given(SETTINGS, sequences())
def test_what_was_observed_is_the_sum_of_what_was_credited(values: dict[str, Any], steps: list[Step]) -> None:
    """P10, R68, P7: lifetime counters, and numbers all along."""
    credited = {"locked": 0.0, "unlocked": 0.0}
    readings = {"locked": 0, "unlocked": 0}
    for told in run(PressureConfig(**values), steps):
        assert told.credited_s >= 0.0
        assert all(math.isfinite(each) for each in told if isinstance(each, float))
        if told.profile is None:
            assert (told.credited_s, told.learned_s) == (0.0, 0.0)
            continue
        credited[told.profile] += told.credited_s
        readings[told.profile] += not isinstance(told.reading, str)
        assert told.learned_s == pytest.approx(credited[told.profile])
        assert told.learned_samples == readings[told.profile]


@QUICK
@given(SETTINGS, sequences(), st.sampled_from(["locked", "unlocked"]))
def test_profiles_do_not_touch_each_other(
    values: dict[str, Any], steps: list[Step], kept: Attendance
) -> None:
    """P5, R12: a profile learns the same when the other's readings were failures."""
    both, alone = DevicePressure(PressureConfig(**values)), DevicePressure(PressureConfig(**values))
    for t_s, reading, attendance in steps:
        both.observe(t_s, reading, attendance)
        alone.observe(t_s, reading if attendance == kept else "failed", attendance)
    (mine,) = [each for each in both.summaries() if each.profile == kept]
    assert mine in alone.summaries()


@QUICK
@given(SETTINGS, sequences())
def test_what_is_saved_can_be_loaded_and_is_saved_the_same(values: dict[str, Any], steps: list[Step]) -> None:
    """P6, O9."""
    config = PressureConfig(**values)
    first, second, third = DevicePressure(config), DevicePressure(config), DevicePressure(config)
    for step in steps:
        first.observe(*step)
    for profile, state in first.completed().items():
        second.restore(profile, state)
    for profile, state in second.completed().items():
        third.restore(profile, state)
    assert second.completed() == third.completed()
    assert second.summaries() == third.summaries()
    for was, now in zip(first.summaries(), second.summaries(), strict=True):
        if was.calibrated:
            close = {name: pytest.approx(getattr(was, name)) for name in ("total_weight", "threshold_pct")}
            exact = was._replace(bins=(), **close)
            assert now._replace(bins=()) == exact
            assert [number for number, _ in now.bins] == [number for number, _ in was.bins]


PAUSES = st.lists(
    st.one_of(
        st.tuples(st.floats(20.1, 1e6), st.just("missing"), st.just("unlocked")),
        st.tuples(st.floats(0.0, 10.0), st.sampled_from(["failed", "invalid"]), st.just("unlocked")),
        st.tuples(st.floats(0.0, 10.0), READINGS, st.sampled_from(["locked", "unknown"])),
    ),
    min_size=1,
    max_size=5,
)


@QUICK
@given(st.lists(st.tuples(st.lists(VALUES, min_size=1, max_size=6), PAUSES), max_size=6))
def test_pauses_of_any_kind_and_number_are_worth_nothing(
    parts: list[tuple[list[float], list[Step]]],
) -> None:
    """P8, O8, R18, R21-R24: as if the readings after a pause had come at once after those before it."""
    config = PressureConfig(warmup_samples=3, learn_half_life_h=0.01, raise_pct_per_h=100.0)
    paused, plain = Feed(config), Feed(config)
    for values, pauses in parts:
        paused(*values)
        plain(values[0], after_s=0.0)
        if values[1:]:
            plain(*values[1:])
        for passed_s, reading, attendance in pauses:
            paused(reading, to=attendance, after_s=passed_s)
    assert paused.summary() == plain.summary()


@QUICK
@given(st.lists(VALUES, min_size=1, max_size=20), st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.data())
def test_quantiles_grow_with_their_share_and_a_burst_has_no_order(
    values: list[float], one: float, other: float, data: st.DataObject
) -> None:
    """O10, R30."""
    low, high = sorted((one, other))

    def baseline(share: float, order: list[float]) -> float:
        told = Feed(PressureConfig(warmup_samples=1, learn_quantile=share), every_s=0.0)(*order).baseline_pct
        assert told is not None
        return told

    assert baseline(low, values) <= baseline(high, values) <= baseline(1.0, values)
    assert baseline(1.0, values) >= max(values)
    found = baseline(low, values)
    assert any(found - 0.5 <= value <= found for value in values)
    assert baseline(low, data.draw(st.permutations(values))) == found


@QUICK
@given(SETTINGS, sequences())
def test_pressure_is_no_part_of_learning(values: dict[str, Any], steps: list[Step]) -> None:
    """P9."""
    one = run(PressureConfig(**values), steps)
    other = run(PressureConfig(**(values | {"sustain_s": 1e9})), steps)
    assert [each._replace(engaged=False, above_s=0, below_s=0) for each in one] == [
        each._replace(engaged=False, above_s=0, below_s=0) for each in other
    ]


@QUICK
@given(sequences(), st.integers(-40, 40))
def test_only_ratios_of_weights_matter(steps: list[Step], power: int) -> None:
    """P4: a saved profile whose weights are all larger or smaller gives the same quantile at the start."""
    config = PressureConfig(warmup_samples=1)
    device = DevicePressure(config)
    for step in steps:
        device.observe(*step)
    for profile, state in device.completed().items():
        scaled = DevicePressure(config)
        bins = tuple((number, weight * 2.0**power) for number, weight in state.bins)
        scaled.restore(profile, state._replace(bins=bins))
        (was,) = [each for each in device.summaries() if each.profile == profile]
        (now,) = [each for each in scaled.summaries() if each.profile == profile]
        assert (now.baseline_pct, now.target_pct) == (was.baseline_pct, was.target_pct)
