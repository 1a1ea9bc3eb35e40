"""The book of one drain (H53, H54, H57, H58, H60, H61, B14)."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from swapd.migration.drains import DRAIN_TRANSITIONS, FINAL_OUTCOMES, RETRY_MAX_S, DrainBook
from swapd.views import DrainState, Outcome, SessionOutcome

CREATED = 100.0


def book(deadline_s: float = 10.0) -> DrainBook:
    return DrainBook("drn", "a", "operator", CREATED, deadline_s)


def test_the_states_of_a_drain_and_the_ways_between_them_are_these() -> None:
    """H53, B14: a blocked drain can still be drained; drained and cancelled are the ends."""
    assert set(DRAIN_TRANSITIONS) == set(get_args(DrainState))
    assert DRAIN_TRANSITIONS["running"] == {"drained", "blocked", "cancelled"}
    assert DRAIN_TRANSITIONS["blocked"] == {"drained", "cancelled"}
    assert not DRAIN_TRANSITIONS["drained"] | DRAIN_TRANSITIONS["cancelled"]
    for state in get_args(DrainState):
        made = book(0)
        made.state = state
        assert made.over == (state in ("drained", "cancelled"))


def test_an_empty_worker_is_drained() -> None:
    """H52, H57"""
    made = book()
    assert made.evaluate(set(), CREATED)
    assert (made.state, made.finished_at, made.over) == ("drained", CREATED, True)


@pytest.mark.parametrize(("at", "state"), [(109.9, "running"), (110.0, "blocked")])
def test_the_deadline_blocks_and_ends_nothing(at: float, state: str) -> None:
    """H58: to the instant; what was in the way becomes the reason."""
    made = book()
    made.waiting("s", "target_full", "planned", "2 of 2")
    assert made.evaluate({"s", "t"}, at) == (state == "blocked")
    assert (made.state, made.over, made.finished_at) == (state, False, None)
    if state == "blocked":
        found = {o.session: (o.outcome, o.reason, o.detail) for o in made.view().sessions}
        assert found == {"s": ("blocked", "target_full", "2 of 2"), "t": ("blocked", "deadline", None)}


def test_a_blocked_drain_becomes_drained_when_it_is_empty_after_all() -> None:
    """B14: and says when."""
    made = book(0)
    made.evaluate({"s"}, CREATED)
    assert not made.evaluate({"s"}, CREATED + 1)
    assert made.evaluate(set(), CREATED + 2)
    assert (made.state, made.finished_at) == ("drained", CREATED + 2)


def test_a_blocked_session_keeps_its_reason_current_and_can_still_succeed() -> None:
    """H54, B14"""
    made = book(0)
    made.waiting("s", "not_eligible", "planned")
    made.evaluate({"s"}, CREATED)
    assert made.waiting("s", "target_full", "planned")
    assert (made.outcomes["s"].outcome, made.outcomes["s"].reason) == ("blocked", "target_full")
    assert made.note(SessionOutcome("s", "completed_native", None, "finished"))
    assert made.outcomes["s"].outcome == "completed_native"


def test_a_cancelled_drain_is_over() -> None:
    """H60, H61: also from blocked; a second cancel changes nothing."""
    made = book(0)
    made.evaluate({"s"}, CREATED)
    assert made.cancel(CREATED + 1)
    assert not made.cancel(CREATED + 2)
    assert not made.evaluate(set(), CREATED + 3)
    assert (made.state, made.finished_at) == ("cancelled", CREATED + 1)


@pytest.mark.parametrize("final", sorted(FINAL_OUTCOMES))
def test_a_final_outcome_stays(final: Outcome) -> None:
    """H54: exactly one outcome a session."""
    made = book(0)
    made.note(SessionOutcome("s", final, None, "finished"))
    assert not made.note(SessionOutcome("s", "aborted_source_resumed", "timeout", "frozen"))
    assert not made.ended("s", "failed", "recovery_unavailable")
    assert not made.waiting("s", "target_full", "planned")
    made.evaluate({"s"}, CREATED)
    assert made.outcomes["s"].outcome == final


def test_what_did_not_change_is_no_news() -> None:
    made = book()
    assert made.waiting("s", "target_full", "planned")
    assert not made.waiting("s", "target_full", "planned")


def test_a_session_that_failed_to_move_waits_longer_each_time() -> None:
    """H67: a target that always refuses is not asked at every token."""
    made = book()
    assert made.may_try("s", 0.0)
    now, waits = 0.0, []
    for _ in range(8):
        made.put_off("s", now)
        assert not made.may_try("s", now)
        began = now
        while not made.may_try("s", now):
            now += 0.25
        waits.append(now - began)
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, RETRY_MAX_S, RETRY_MAX_S, RETRY_MAX_S]
    assert made.may_try("other", 0.0)


class DrainMachine(RuleBasedStateMachine):
    """Any history of one drain."""

    def __init__(self) -> None:
        super().__init__()
        self.book = book(20)
        self.now = CREATED
        self.state = self.book.state
        self.final: dict[str, str | None] = {}

    sessions = st.sampled_from("stu")
    outcomes = st.sampled_from(
        [*sorted(FINAL_OUTCOMES), "aborted_source_resumed", "rehomed_source", "blocked", None]
    )

    @rule(session=sessions, outcome=outcomes)
    def note(self, session: str, outcome: Outcome | None) -> None:
        self.book.note(SessionOutcome(session, outcome, "r", "frozen"))

    @rule(session=sessions)
    def waiting(self, session: str) -> None:
        self.book.waiting(session, "target_full", "planned")

    @rule(left=st.sets(sessions), passed=st.floats(0, 15))
    def evaluate(self, left: set[str], passed: float) -> None:
        self.now += passed
        changed = self.book.evaluate(left, self.now)
        assert changed == (self.book.state != self.state)

    @rule()
    def cancel(self) -> None:
        self.book.cancel(self.now)

    @invariant()
    def only_known_ways(self) -> None:
        """H53"""
        state = self.book.state
        assert state == self.state or state in DRAIN_TRANSITIONS[self.state]
        self.state = state
        assert (self.book.finished_at is not None) == self.book.over

    @invariant()
    def final_outcomes_stay(self) -> None:
        """H54"""
        for session, outcome in self.book.outcomes.items():
            if session in self.final:
                assert outcome.outcome == self.final[session]
            elif outcome.outcome in FINAL_OUTCOMES:
                self.final[session] = outcome.outcome


TestDrainMachine = DrainMachine.TestCase
