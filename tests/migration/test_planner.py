"""Who moves where, and why not (H48, H55, H56, H85)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.errors import Code
from swapd.migration.planner import Assignment, Candidate, Refusal, Traveller, plan

SOURCE = Candidate("a", True, False, "fp", 4, 0, 0)
TARGET = Candidate("b", True, True, "fp", 4, 10, 2)


def ask(
    *others: Candidate, travellers: list[Traveller], enabled: bool = True, certified: bool = True
) -> tuple[list[Assignment], list[Refusal]]:
    return plan(SOURCE, [SOURCE, *others], travellers, migration_enabled=enabled, certified=certified)


def changed(candidate: Candidate, **changes: object) -> Candidate:
    return msgspec.structs.replace(candidate, **changes)


def test_a_session_goes_to_the_emptiest_worker() -> None:
    emptier = changed(TARGET, worker="c", free_blocks=20)
    moves, refusals = ask(TARGET, emptier, travellers=[Traveller("s", 8)])
    assert (moves, refusals) == ([Assignment("s", "c")], [])


@pytest.mark.parametrize(("blocks", "fits"), [(10, True), (9, False)])
def test_a_session_needs_room_for_its_whole_budget(blocks: int, fits: bool) -> None:
    """H46: prompt and max_new_tokens, to the last block."""
    moves, refusals = ask(changed(TARGET, free_blocks=blocks), travellers=[Traveller("s", 40)])
    assert bool(moves) == fits
    assert [r.code for r in refusals] == ([] if fits else [Code.TARGET_FULL])


def test_choices_of_one_plan_count_together() -> None:
    """H48: two slots are two slots, however many want one."""
    moves, refusals = ask(TARGET, travellers=[Traveller(f"s{i}", 4) for i in range(3)])
    assert [m.session for m in moves] == ["s0", "s1"]
    assert refusals == [Refusal("s2", Code.TARGET_FULL, True)]


def test_the_largest_session_chooses_first() -> None:
    moves, _ = ask(TARGET, travellers=[Traveller("small", 8), Traveller("large", 40)])
    assert [m.session for m in moves] == ["large"]


@pytest.mark.parametrize(
    ("traveller", "others", "enabled", "certified", "code", "retry"),
    [
        (Traveller("s", 4, finished=True), [TARGET], True, True, Code.ALREADY_FINISHED, False),
        (Traveller("s", 4, eligible=False), [TARGET], True, True, Code.NOT_ELIGIBLE, True),
        (Traveller("s", 4), [TARGET], False, True, Code.MIGRATION_DISABLED, False),
        (Traveller("s", 4), [], True, True, Code.NO_TARGET, True),
        (Traveller("s", 4), [changed(TARGET, alive=False)], True, True, Code.NO_TARGET, True),
        (Traveller("s", 4), [changed(TARGET, admitting=False)], True, True, Code.NO_TARGET, True),
        (Traveller("s", 4), [TARGET], True, False, Code.NO_EDGE, False),
        (Traveller("s", 4), [changed(TARGET, fingerprint="other")], True, True, Code.NO_EDGE, False),
        (Traveller("s", 4), [changed(TARGET, free_slots=0)], True, True, Code.TARGET_FULL, True),
    ],
)
def test_a_session_that_cannot_move_says_why_and_whether_to_try_again(
    traveller: Traveller, others: list[Candidate], enabled: bool, certified: bool, code: Code, retry: bool
) -> None:
    """H55, H56, H85, H116, A24: draining workers are no targets."""
    moves, refusals = ask(*others, travellers=[traveller], enabled=enabled, certified=certified)
    assert (moves, refusals) == ([], [Refusal("s", code, retry)])


def test_a_draining_worker_is_passed_over_however_empty_it_is() -> None:
    """A24, H44"""
    draining = changed(TARGET, worker="c", admitting=False, free_blocks=20)
    moves, refusals = ask(draining, TARGET, travellers=[Traveller("s", 8)])
    assert (moves, refusals) == ([Assignment("s", "b")], [])


def test_a_session_that_moves_already_is_left_alone() -> None:
    """H76, H77: never two moves of one session."""
    assert ask(TARGET, travellers=[Traveller("s", 4, moving=True)]) == ([], [])


candidates = st.builds(
    Candidate,
    worker=st.sampled_from("abcd"),
    alive=st.booleans(),
    admitting=st.booleans(),
    fingerprint=st.sampled_from(["fp", "other"]),
    block_tokens=st.just(4),
    free_blocks=st.integers(0, 20),
    free_slots=st.integers(0, 3),
)
travellers_of = st.builds(
    Traveller,
    session=st.text("st0123456789", min_size=1, max_size=4),
    budget_tokens=st.integers(1, 60),
    finished=st.booleans(),
    eligible=st.booleans(),
    moving=st.booleans(),
)


@given(
    others=st.lists(candidates, max_size=4, unique_by=lambda c: c.worker),
    travellers=st.lists(travellers_of, max_size=8, unique_by=lambda t: t.session),
    enabled=st.booleans(),
    certified=st.booleans(),
)
def test_a_plan_never_promises_more_than_there_is(
    others: list[Candidate], travellers: list[Traveller], enabled: bool, certified: bool
) -> None:
    """H46, H48, H55: each session has one answer; no worker gets more than its room; only edges are used."""
    moves, refusals = plan(SOURCE, others, travellers, migration_enabled=enabled, certified=certified)
    answered = [m.session for m in moves] + [r.session for r in refusals]
    assert sorted(answered) == sorted(t.session for t in travellers if not t.moving)
    by_name = {t.session: t for t in travellers}
    for other in others:
        here = [by_name[m.session] for m in moves if m.target == other.worker]
        assert sum(-(-t.budget_tokens // 4) for t in here) <= other.free_blocks
        assert len(here) <= other.free_slots
        if here:
            assert enabled
            assert certified
            assert other.alive
            assert other.admitting
            assert other.worker != SOURCE.worker
            assert other.fingerprint == SOURCE.fingerprint
            assert all(t.eligible and not t.finished for t in here)
