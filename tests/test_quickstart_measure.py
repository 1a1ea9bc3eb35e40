"""What a reader saw of a move is judged from its token events alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swapd.quickstart.job import succeeded
from swapd.quickstart.measure import SeenToken, judge

CLEAN = {
    "outcome": "completed_native",
    "state": "completed",
    "tokens_lost": 0,
    "tokens_duplicated": 0,
    "tokens_out_of_order": 0,
    "recomputed_tokens": 0,
}


def seen(*at_s: float) -> list[SeenToken]:
    return [SeenToken(pos, pos, at) for pos, at in enumerate(at_s, 1)]


def test_the_pause_is_the_largest_gap_around_the_move_and_the_median_is_of_the_others() -> None:
    tokens = seen(0.0, 0.1, 0.2, 0.45, 0.6, 0.7, 0.8, 2.0)
    reading = judge(tokens, 8, move_began_s=0.25, move_ended_s=0.5)
    assert reading.pause_ms == 250.0
    assert reading.token_ms_median == 100.0
    assert (reading.tokens_lost, reading.tokens_duplicated, reading.out_of_order) == (0, 0, 0)


def test_a_gap_that_begins_before_the_move_and_ends_after_it_is_its_pause() -> None:
    assert judge(seen(0.0, 0.1, 5.0, 5.1), 4, 2.0, 3.0).pause_ms == 4900.0


@given(
    count=st.integers(2, 30),
    lost=st.sets(st.integers(1, 30), max_size=5),
    doubled=st.sets(st.integers(1, 30), max_size=5),
)
def test_every_token_lost_or_doubled_is_counted(count: int, lost: set[int], doubled: set[int]) -> None:
    tokens = []
    for token in seen(*(0.1 * step for step in range(count))):
        if token.pos not in lost:
            tokens.extend([token] * (2 if token.pos in doubled else 1))
    positions = set(range(1, count + 1))
    reading = judge(tokens, count, 0.0, 0.0)
    assert reading.tokens_lost == len(lost & positions)
    assert reading.tokens_duplicated == len((doubled - lost) & positions)
    # A loss at either end leaves no step between two neighbours.
    if (doubled - lost) & positions:
        assert reading.out_of_order


def test_a_swapped_pair_is_out_of_order_though_nothing_is_lost() -> None:
    one, two, three = seen(0.0, 0.1, 0.2)
    reading = judge([one, three, two], 3, 0.0, 0.1)
    assert (reading.tokens_lost, reading.tokens_duplicated, reading.out_of_order) == (0, 0, 2)


def test_no_tokens_at_all_are_all_lost() -> None:
    reading = judge([], 3, 0.0, 0.0)
    assert (reading.tokens_lost, reading.pause_ms, reading.token_ms_median) == (3, 0.0, 0.0)


def test_only_a_native_move_without_any_loss_is_a_success() -> None:
    assert succeeded(CLEAN)
    for name, value in (
        ("outcome", "completed_replay"),
        ("outcome", None),
        ("state", "failed"),
        ("tokens_lost", 1),
        ("tokens_duplicated", 1),
        ("tokens_out_of_order", 1),
        ("recomputed_tokens", 1),
        ("recomputed_tokens", None),
    ):
        assert not succeeded(CLEAN | {name: value})
