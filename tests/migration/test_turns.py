"""Whose copy goes first: the shortest, and nobody for ever last (B13)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.errors import Code, SwapdError
from swapd.migration.departures import Departure, Sight, depart
from swapd.migration.planner import Assignment, Candidate, Refusal, Traveller
from swapd.migration.turns import LONGER_TOKENS, STARVED_S, Turn, convoys, in_turn

SOURCE = Candidate("a", True, False, "fp", 4, 0, 0)
TARGET = Candidate("b", True, True, "fp", 4, 100_000, 100)
SIGHT = Sight(SOURCE, [SOURCE, TARGET], True, lambda source, target: None)

sizes = st.integers(1, 20_000)
turns = st.lists(st.tuples(sizes, st.floats(0, 3 * STARVED_S)), max_size=12).map(
    lambda found: [Turn(f"s{n}", size, waited) for n, (size, waited) in enumerate(found)]
)


def look(
    travellers: Sequence[Traveller], borrow: Callable[[Assignment], None]
) -> tuple[list[Departure[None]], list[Refusal]]:
    """Nobody is parked, and nobody begins anew."""
    leave, _, stay = depart(
        SIGHT,
        travellers,
        parks=lambda session: False,
        borrow=borrow,
        begins=lambda session: False,
        begin=lambda session: None,
    )
    return leave, stay


def names(found: list[Turn]) -> list[str]:
    return [turn.session for turn in found]


def test_the_shortest_copy_goes_first() -> None:
    """B13"""
    assert names(in_turn([Turn("long", 900), Turn("short", 3), Turn("middle", 50)])) == [
        "short",
        "middle",
        "long",
    ]


def test_who_has_waited_too_long_goes_before_everybody() -> None:
    """B13: the longest waiting first, whatever there is to copy."""
    found = in_turn([Turn("short", 3), Turn("late", 900, STARVED_S), Turn("later", 5000, STARVED_S + 1)])
    assert names(found) == ["later", "late", "short"]
    assert names(in_turn([Turn("short", 3), Turn("soon", 900, STARVED_S - 0.1)])) == ["short", "soon"]


@given(turns)
def test_an_order_is_of_all_and_the_same_for_any_order_of_asking(found: list[Turn]) -> None:
    order = in_turn(found)
    assert sorted(order) == sorted(found)
    assert in_turn(reversed(found)) == order
    fresh = [turn for turn in order if not turn.starved]
    assert fresh == order[len(order) - len(fresh) :]
    assert [turn.copy_tokens for turn in fresh] == sorted(turn.copy_tokens for turn in fresh)


class Room:
    """An arena of so many bytes, and moves in it that end after as many ticks as they have bytes."""

    def __init__(self, size: int) -> None:
        self.free = size
        self.under_way: dict[str, tuple[int, int]] = {}

    def borrow(self, session: str, size: int, ends: int) -> None:
        if size > self.free:
            raise SwapdError(Code.ARENA_EXHAUSTED)
        self.free -= size
        self.under_way[session] = (size, ends)

    def tick(self, now: int) -> None:
        for session, (size, ends) in list(self.under_way.items()):
            if ends <= now:
                del self.under_way[session]
                self.free += size


@pytest.mark.parametrize("newcomers", [1, 3])
@given(st.integers(2, 8), st.integers(1, 4), st.data())
def test_nobody_is_passed_over_for_ever(newcomers: int, large: int, small: int, data: st.DataObject) -> None:
    """B13: the bound. Shorter ones come without end and take every free byte; the long one still leaves.

    A second is a tick; what is under way when it has waited `STARVED_S` ends within the longest copy.
    """
    room, numbers = Room(large), itertools.count()
    waiting: dict[str, tuple[int, int]] = {"long": (large, 0)}
    longest = small
    began = None
    for now in range(int(STARVED_S) + longest + 3):
        room.tick(now)
        for _ in range(newcomers):
            waiting[f"n{next(numbers)}"] = (data.draw(st.integers(1, small)) if small < large else 1, now)

        def borrow(assignment: Assignment, now: int = now) -> int:
            size, _ = waiting[assignment.session]
            room.borrow(assignment.session, size, now + min(size, longest))
            return size

        travellers = [
            Traveller(name, 4, copy_tokens=size, waited_s=float(now - since))
            for name, (size, since) in waiting.items()
        ]
        leave, _ = look(travellers, borrow)
        for departure in leave:
            del waiting[departure.session]
        if "long" not in waiting:
            began = now
            break
    assert began is not None


def test_who_waits_behind_one_that_waited_too_long_is_not_asked_for_and_told_so() -> None:
    """B13: what is given back collects until the large one fits."""
    asked: list[str] = []

    def borrow(assignment: Assignment) -> None:
        asked.append(assignment.session)
        if assignment.session == "large":
            raise SwapdError(Code.ARENA_EXHAUSTED)

    travellers = [
        Traveller("small", 4, copy_tokens=1),
        Traveller("large", 4, copy_tokens=900, waited_s=STARVED_S),
    ]
    leave, stay = look(travellers, borrow)
    assert (asked, leave) == (["large"], [])
    assert {(each.session, each.code, each.retry) for each in stay} == {
        ("small", Code.ARENA_EXHAUSTED, True),
        ("large", Code.ARENA_EXHAUSTED, True),
    }


def test_one_that_has_not_waited_long_lets_others_past() -> None:
    def borrow(assignment: Assignment) -> None:
        if assignment.session == "first":
            raise SwapdError(Code.ARENA_EXHAUSTED)

    travellers = [Traveller("first", 4, copy_tokens=1), Traveller("second", 4, copy_tokens=2)]
    leave, stay = look(travellers, borrow)
    assert [each.session for each in leave] == ["second"]
    assert [each.session for each in stay] == ["first"]


def test_a_short_session_does_not_travel_with_a_long_one() -> None:
    """B13: sessions of a wave stop together, so the short one would wait for the long one's copy."""
    found = convoys([Turn("long", 40_000), Turn("s1", 300), Turn("s2", 900), Turn("longer", 60_000)])
    assert [names(each) for each in found] == [["s1", "s2"], ["long", "longer"]]


@given(turns)
def test_waves_are_of_all_the_shortest_first_and_of_similar_length(found: list[Turn]) -> None:
    waves = convoys(found)
    assert sorted(itertools.chain(*waves)) == sorted(found)
    flat = [turn.copy_tokens for wave in waves for turn in wave]
    assert flat == sorted(flat)
    for wave in waves:
        shortest, longest = wave[0].copy_tokens, wave[-1].copy_tokens
        assert longest <= max(2 * shortest, shortest + LONGER_TOKENS)
    for one, other in itertools.pairwise(waves):
        assert other[0].copy_tokens > 2 * one[0].copy_tokens, "no more waves than that takes"
