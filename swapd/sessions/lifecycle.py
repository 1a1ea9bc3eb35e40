"""The states of a session and every way from one to another (H2). Pure.

Rules of this file:

- Every transition stands in `TRANSITIONS`; an event that is not listed for a state is an error.
- Terminal states absorb (H3): whatever happens to a finished session changes nothing.
- The state says what is being done about a session; who may append to it is decided by owner and
  epoch in the store alone (H19). A wrong state can confuse a reader, never a transcript.

    created --start--> running <--resume-- parked
                        |   ^                ^
             move_begun |   | move_ended     | park (also from migrating and recovering)
                        v   |                |
                      migrating --owner_lost--> recovering --replayed--> running

`complete`, `fail` and `cancel` end a session. A parked one cannot complete: it makes no tokens.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from swapd.views import SessionState

SessionEvent = Literal[
    "start",
    "move_begun",
    "move_ended",
    "owner_lost",
    "replayed",
    "park",
    "resume",
    "complete",
    "fail",
    "cancel",
]
TerminalState = Literal["completed", "failed", "cancelled"]

TERMINAL_STATES: Final[frozenset[SessionState]] = frozenset(get_args(TerminalState))
NONTERMINAL_STATES: Final[frozenset[SessionState]] = frozenset(get_args(SessionState)) - TERMINAL_STATES

TRANSITIONS: Final[dict[SessionState, dict[SessionEvent, SessionState]]] = {
    "created": {
        "start": "running",
        # A worker may be lost, or drained, before it said that the session has begun (B18).
        "owner_lost": "recovering",
        "complete": "completed",
        "fail": "failed",
        "cancel": "cancelled",
    },
    "running": {
        "start": "running",
        "move_begun": "migrating",
        "owner_lost": "recovering",
        "park": "parked",
        "complete": "completed",
        "fail": "failed",
        "cancel": "cancelled",
    },
    "migrating": {
        # Committed or aborted: either way one owner decodes on.
        "move_ended": "running",
        "owner_lost": "recovering",
        "park": "parked",
        "complete": "completed",
        "fail": "failed",
        "cancel": "cancelled",
    },
    "recovering": {
        # The source came back, or the move turned out to be the success it was (H72).
        "move_ended": "running",
        "replayed": "running",
        "owner_lost": "recovering",
        "park": "parked",
        "complete": "completed",
        "fail": "failed",
        "cancel": "cancelled",
    },
    "parked": {
        "resume": "running",
        "owner_lost": "recovering",
        "fail": "failed",
        "cancel": "cancelled",
    },
    "completed": {},
    "failed": {},
    "cancelled": {},
}

_EVENTS: Final = frozenset(get_args(SessionEvent))


class IllegalTransition(Exception):
    """A session cannot take this event in this state: a defect of the caller."""

    def __init__(self, state: str, event: str) -> None:
        self.state = state
        self.event = event
        super().__init__(f"a session that is {state} cannot take the event {event}")


def is_terminal(state: SessionState) -> bool:
    """Whether nothing can change any more (H3)."""
    return state in TERMINAL_STATES


def next_state(state: SessionState, event: SessionEvent) -> SessionState:
    """Return the state after `event`. Raises `IllegalTransition`; terminal states absorb (H3)."""
    if event not in _EVENTS:
        raise IllegalTransition(state, event)
    if state in TERMINAL_STATES:
        return state
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(state, event) from None
