"""Who moves where, and why not (H48, H55, H56, H85)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.certify.registry import Bar, End, Evidence, Terms
from swapd.errors import Code
from swapd.migration.planner import Assignment, Bars, Candidate, Refusal, Traveller, plan

SOURCE = Candidate("a", True, False, "fp", 4, 0, 0)
TARGET = Candidate("b", True, True, "fp", 4, 10, 2)


def equal(source: End, target: End) -> Bar | None:
    """As with `self_certify`."""
    return Evidence(Terms(None, "dev", True, 1)).bar(source, target, 0.0)


def none(source: End, target: End) -> Bar:
    """As without any evidence."""
    return Bar(Code.NO_EDGE, "no evidence")


def ask(
    *others: Candidate, travellers: list[Traveller], enabled: bool = True, bars: Bars = equal
) -> tuple[list[Assignment], list[Refusal]]:
    return plan(SOURCE, [SOURCE, *others], travellers, migration_enabled=enabled, bars=bars)


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
    ("traveller", "others", "enabled", "bars", "code", "retry"),
    [
        (Traveller("s", 4, finished=True), [TARGET], True, equal, Code.ALREADY_FINISHED, False),
        (Traveller("s", 4, eligible=False), [TARGET], True, equal, Code.NOT_ELIGIBLE, True),
        (Traveller("s", 4), [TARGET], False, equal, Code.MIGRATION_DISABLED, False),
        (Traveller("s", 4), [], True, equal, Code.NO_TARGET, True),
        (Traveller("s", 4), [changed(TARGET, alive=False)], True, equal, Code.NO_TARGET, True),
        (Traveller("s", 4), [changed(TARGET, admitting=False)], True, equal, Code.NO_TARGET, True),
        (Traveller("s", 4), [TARGET], True, none, Code.NO_EDGE, False),
        (Traveller("s", 4), [changed(TARGET, fingerprint="other")], True, equal, Code.NO_EDGE, False),
        (Traveller("s", 4), [changed(TARGET, free_slots=0)], True, equal, Code.TARGET_FULL, True),
    ],
)
def test_a_session_that_cannot_move_says_why_and_whether_to_try_again(
    traveller: Traveller, others: list[Candidate], enabled: bool, bars: Bars, code: Code, retry: bool
) -> None:
    """H55, H56, H85, H116, A24: draining workers are no targets."""
    moves, refusals = ask(*others, travellers=[traveller], enabled=enabled, bars=bars)
    assert (moves, [msgspec.structs.replace(each, detail=None) for each in refusals]) == (
        [],
        [Refusal("s", code, retry)],
    )


def test_of_several_barred_ways_the_gravest_reason_is_told_and_each_is_named() -> None:
    """H55: who and why; an edge that is allowed makes the others no reason at all."""
    reasons = {
        "b": Bar(Code.NO_EDGE, "a to b: fingerprint_mismatch"),
        "c": Bar(Code.CERTIFICATE_EXPIRED, "a to c: expired"),
        "d": Bar(Code.CERTIFICATE_REVOKED, "a to d: revoked"),
    }
    others = [changed(TARGET, worker=name) for name in "bcd"]

    def bars(source: End, target: End) -> Bar | None:
        return reasons.get(target.worker)

    for left, code in (
        ("bcd", Code.CERTIFICATE_REVOKED),
        ("bc", Code.CERTIFICATE_EXPIRED),
        ("b", Code.NO_EDGE),
    ):
        here = [each for each in others if each.worker in left]
        moves, [refusal] = ask(*here, travellers=[Traveller("s", 8)], bars=bars)
        assert (moves, refusal.code, refusal.retry) == ([], code, False)
        assert refusal.detail is not None
        assert all(reasons[name].detail in refusal.detail for name in left)
    others.append(changed(TARGET, worker="e"))
    assert ask(*others, travellers=[Traveller("s", 8)], bars=bars) == ([Assignment("s", "e")], [])


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
    bars=st.sampled_from([equal, none]),
)
def test_a_plan_never_promises_more_than_there_is(
    others: list[Candidate], travellers: list[Traveller], enabled: bool, bars: Bars
) -> None:
    """H46, H48, H55: each session has one answer; no worker gets more than its room; only edges are used."""
    moves, refusals = plan(SOURCE, others, travellers, migration_enabled=enabled, bars=bars)
    answered = [m.session for m in moves] + [r.session for r in refusals]
    assert sorted(answered) == sorted(t.session for t in travellers if not t.moving)
    by_name = {t.session: t for t in travellers}
    for other in others:
        here = [by_name[m.session] for m in moves if m.target == other.worker]
        assert sum(-(-t.budget_tokens // 4) for t in here) <= other.free_blocks
        assert len(here) <= other.free_slots
        if here:
            assert enabled
            assert bars is equal
            assert other.alive
            assert other.admitting
            assert other.worker != SOURCE.worker
            assert other.fingerprint == SOURCE.fingerprint
            assert all(t.eligible and not t.finished for t in here)
