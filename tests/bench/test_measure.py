"""The bench's figures are what their names say."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest

from ops.handoff_bench.measure import (
    Window,
    first_difference,
    loop_share,
    merge,
    pause,
    percentile,
    step_increase,
    token_interval_s,
)
from swapd.messages.from_worker import StepRecord

pytestmark = pytest.mark.once


def times(*gaps: float) -> list[float]:
    return list(accumulate(gaps, initial=0.0))


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([5.0], 95, 5.0), (range(1, 21), 95, 19), (range(1, 101), 95, 95), ([3, 1, 2], 50, 2), ([1, 2], 0, 1)],
)
def test_a_percentile_is_a_value_that_was_seen(values: list[float], percent: float, expected: float) -> None:
    assert percentile(list(values), percent) == expected


def test_a_percentile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(percentile([], 95))


def test_the_pause_is_the_largest_gap_that_touches_the_move() -> None:
    read = times(1, 1, 1, 1, 3, 1, 1, 1, 1, 9)
    gap = pause(read, Window(3.5, 7.5))
    assert (gap.seconds, gap.tokens) == (3, 5)


def test_a_large_gap_long_after_a_move_or_before_it_is_not_its_pause() -> None:
    read = times(9, 1, 1, 2, 1, 1, 1, 1, 9)
    # The move lies within the gap of 2; three more gaps still count, the last one does not.
    assert pause(read, Window(11.5, 12.5)).seconds == 2


def test_a_gap_shortly_after_a_move_is_its_pause() -> None:
    read = times(1, 1, 1, 5, 1, 1, 1)
    assert pause(read, Window(1.5, 1.8)).seconds == 5


def test_a_pause_that_never_ended_is_not_a_number() -> None:
    assert math.isnan(pause(times(1, 1, 1), Window(10, 11)).seconds)
    assert math.isnan(pause([], Window(10, 11)).seconds)


def test_the_token_interval_knows_nothing_of_moves() -> None:
    read = times(1, 1, 7, 7, 7, 7, 7, 1, 1)
    move = Window(2.5, 10.0)
    assert token_interval_s(read, [move], Window(0, 100)) == 1
    assert token_interval_s(read, [], Window(0, 100)) == 7
    assert math.isnan(token_interval_s(read, [move], Window(50, 100)))


def record(at_s: float, took_s: float, *batch: tuple[str, int]) -> StepRecord:
    return StepRecord(at_s, took_s, batch)


def test_steps_beside_a_copy_are_compared_with_steps_of_as_many_sessions() -> None:
    one, two = ("s", 1), ("t", 1)
    steps = [
        record(0, 1.0, one),
        record(1, 3.0, one, two),
        record(4, 1.2, one),  # beside the copy
        record(6, 3.3, one, two),  # it ends within this one
        record(10, 50.0, ("s", 64)),  # prefill
        record(99, 9.0, one),  # another time
    ]
    copy = Window(4.5, 6.5)
    assert step_increase(steps, [copy], Window(0, 50)) == pytest.approx([0.2, 0.1])
    assert step_increase(steps, [], Window(0, 50)) == []
    assert step_increase(steps, [Window(0, 100)], Window(0, 50)) == []


def test_merged_steps_are_in_order_of_time_and_of_the_named_sessions_only() -> None:
    logs = {
        "a": [record(1, 0.5, ("s", 64), ("x", 1)), record(3, 0.5, ("x", 1))],
        "b": [record(0, 0.5, ("t", 1)), record(2, 0.5, ("t", 1), ("s", 1)), record(5, 0.5, ("s", 1))],
    }
    merged = [(each.worker, each.step.at_s, each.step.batch) for each in merge(logs, ["s", "t"], 4.0)]
    assert merged == [
        ("b", 0, (("t", 1),)),
        ("a", 1, (("s", 64),)),
        ("b", 2, (("t", 1), ("s", 1))),
    ]


@pytest.mark.parametrize(
    ("ours", "control", "expected"),
    [([1, 2], [1, 2, 3], None), ([1, 2], [1, 9], 1), ([1, 2], [1], 1), ([1], [], 0), ([], [], None)],
)
def test_the_first_difference_is_found(ours: list[int], control: list[int], expected: int | None) -> None:
    assert first_difference(ours, control) == expected


def test_output_that_repeats_itself_is_told_from_output_that_does_not() -> None:
    assert loop_share(list(range(200))) == 0.0
    assert loop_share([1, 2, 3, 4] * 50) > 0.95
    assert loop_share([]) == 0.0
