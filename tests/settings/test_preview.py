"""Six hours of stored readings, replayed under the settings in force and under new ones."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swapd.config import OwnerConfig, PressureConfig
from swapd.device_views import SamplePoint
from swapd.messages.sampler import Measurement
from swapd.pressure.reading import ProfileState
from swapd.pressure.tracker import reading_of
from swapd.settings.preview import CHECK_EVERY, Given, Stopped, compare, notes, sentence
from swapd.settings.views import Replayed

EVERY_S = 5.0
IDLE = {"unlocked": ProfileState(True, 25.0, 5000, 25_000.0, None, ((4, 5000.0),))}


def samples(*values: float | None, engaged: Iterable[int] = ()) -> list[SamplePoint]:
    on = set(engaged)
    return [
        SamplePoint(
            1e9 + number * EVERY_S,
            "ok" if value is not None else "failed",
            "unlocked",
            value,
            25.0,
            number in on,
        )
        for number, value in enumerate(values)
    ]


def owner(**changes: object) -> OwnerConfig:
    return OwnerConfig(gpu_pressure=PressureConfig(**changes))  # type: ignore[arg-type]


BURST = (2.0,) * 20 + (30.0,) * 6 + (2.0,) * 12
"""Half a minute of work, then a minute without."""


def test_a_longer_sustain_time_would_have_let_short_bursts_pass() -> None:
    """R126: the preview tells how the last six hours would have been: three events, then one."""
    readings = samples(*BURST, *BURST, *(2.0,) * 20, *(30.0,) * 60)
    found = compare(
        Given("gpu0", readings, IDLE, IDLE), owner(sustain_s=10.0), owner(sustain_s=120.0), lambda: False
    )
    assert found.sentence == "3 pressure events, would be 1"
    assert found.running is not None
    assert found.new is not None
    assert found.running.engaged_s > found.new.engaged_s > 0
    assert found.readings == len(readings)


def test_the_same_settings_make_the_same_events() -> None:
    found = compare(Given("gpu0", samples(*BURST), IDLE, IDLE), owner(), owner(), lambda: False)
    assert found.running == found.new
    assert found.sentence == "1 pressure event, would be the same"


def test_what_really_happened_is_counted_beside_the_replays() -> None:
    readings = samples(*(2.0,) * 10, engaged=(0, 1, 4, 5, 6, 9))
    assert compare(Given("gpu0", readings, IDLE, IDLE), owner(), owner(), lambda: False).recorded_events == 3


def test_a_fixed_threshold_is_replayed_without_learning() -> None:
    readings = samples(*BURST)
    found = compare(
        Given("gpu0", readings, IDLE, {}), owner(), owner(mode="fixed", threshold_pct=50.0), lambda: False
    )
    assert found.sentence == "1 pressure event, would be none"
    assert found.new == Replayed(0, 0.0, 50.0, 0)


def test_a_side_that_learns_anew_says_how_long_it_would_not_have_lent() -> None:
    found = compare(
        Given("gpu0", samples(*BURST), IDLE, {}), owner(), owner(warmup_samples=30), lambda: False
    )
    assert found.running is not None
    assert found.new is not None
    assert (found.running.refused_readings, found.new.refused_readings) == (0, 29)


def test_without_readings_nothing_is_compared() -> None:
    found = compare(Given("gpu0", [], {}, {}), owner(), owner(), lambda: False)
    assert (found.running, found.new, found.readings) == (None, None, 0)
    assert found.sentence == "No readings of the last six hours."


def test_a_replay_that_nobody_waits_for_ends_soon() -> None:
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    with pytest.raises(Stopped):
        compare(Given("gpu0", samples(*(2.0,) * (CHECK_EVERY * 9)), IDLE, IDLE), owner(), owner(), stopped)
    assert asked == 4


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (3, 1, "3 pressure events, would be 1"),
        (1, 0, "1 pressure event, would be none"),
        (0, 2, "No pressure events, would be 2"),
        (0, 0, "No pressure events, would be the same"),
    ],
)
def test_the_sentence_counts_both_sides(before: int, after: int, text: str) -> None:
    assert sentence(Replayed(before, 0.0, None, 0), Replayed(after, 0.0, None, 0)) == text


def test_what_a_replay_cannot_know_is_said() -> None:
    same, other = OwnerConfig(), OwnerConfig(ignore=("OBS",))
    assert len(notes(same, owner(cap_pct=50.0), frozenset({"cap_pct"}))) == 1
    assert any("learning anew" in note for note in notes(same, other, frozenset({"ignore"})))
    assert len(notes(other, OwnerConfig(ignore=("obs",)), frozenset({"ignore"}))) == 1
    assert any("Only readings" in note for note in notes(same, same, frozenset({"quiet_hours"})))
    fixed = owner(mode="fixed", threshold_pct=30.0)
    assert any("before the threshold was fixed" in note for note in notes(fixed, same, frozenset({"mode"})))


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(["ok", "first", "invalid", "failed", "unsupported", "asleep"]), st.floats(0, 100))
def test_a_stored_reading_is_what_the_tracker_made_of_it(result: str, value: float) -> None:
    """R20-R22: a replay credits what was credited then."""
    from swapd.pressure.reading import reading_from

    measured = reading_of(Measurement("gpu0", result, 1.0, reading_pct=value))  # type: ignore[arg-type]
    stored = value if isinstance(measured, float) else None
    assert reading_from(result, stored) == measured
