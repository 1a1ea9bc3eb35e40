"""The states of a session (H2, H3)."""

from __future__ import annotations

from typing import get_args

import pytest

from swapd.sessions.lifecycle import (
    NONTERMINAL_STATES,
    TERMINAL_STATES,
    TRANSITIONS,
    IllegalTransition,
    SessionEvent,
    TerminalState,
    is_terminal,
    next_state,
)
from swapd.views import SessionState

STATES = get_args(SessionState)
EVENTS = get_args(SessionEvent)


def test_the_table_has_exactly_the_states_of_the_interface() -> None:
    """H2"""
    assert set(TRANSITIONS) == set(STATES)
    assert set(get_args(TerminalState)) == TERMINAL_STATES
    assert set(STATES) == TERMINAL_STATES | NONTERMINAL_STATES


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_every_event_in_every_state_leads_to_a_known_state_or_is_refused_by_name(
    state: SessionState, event: SessionEvent
) -> None:
    """H2"""
    if is_terminal(state) or event in TRANSITIONS[state]:
        assert next_state(state, event) in STATES
    else:
        with pytest.raises(IllegalTransition, match=rf"{state}.*{event}"):
            next_state(state, event)


@pytest.mark.parametrize("state", sorted(TERMINAL_STATES))
@pytest.mark.parametrize("event", EVENTS)
def test_a_finished_session_stays_as_it_is(state: SessionState, event: SessionEvent) -> None:
    """H3"""
    assert next_state(state, event) == state


@pytest.mark.parametrize("state", sorted(NONTERMINAL_STATES))
def test_every_unfinished_session_can_fail_and_be_cancelled(state: SessionState) -> None:
    assert next_state(state, "fail") == "failed"
    assert next_state(state, "cancel") == "cancelled"


def test_every_state_can_be_reached_from_created() -> None:
    reached: set[str] = set()
    ahead: list[SessionState] = ["created"]
    while ahead:
        state = ahead.pop()
        if state not in reached:
            reached.add(state)
            ahead.extend(TRANSITIONS[state].values())
    assert reached == set(STATES)


def test_a_move_ends_in_running_whether_it_was_committed_or_aborted() -> None:
    assert next_state(next_state("running", "move_begun"), "move_ended") == "running"


def test_a_parked_session_cannot_complete_because_it_makes_no_tokens() -> None:
    with pytest.raises(IllegalTransition):
        next_state("parked", "complete")


def test_an_unknown_event_is_refused_even_of_a_finished_session() -> None:
    with pytest.raises(IllegalTransition, match=r"completed.*explode"):
        next_state("completed", "explode")  # type: ignore[arg-type]  # the point of the test
