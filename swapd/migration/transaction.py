"""The move as a state machine: which phase may follow which, and how each phase ends when it fails.

    planned → reserved → precopying → frozen → prepared → committed → activated → released → finished

Before `committed` any failure aborts: the target discards, the source goes on under its epoch (H67).
After it there is no way back: the target owns the session under epoch + 1, and a failure is decided
forward (H69, H70): by a new transfer of ownership back to the pinned source (a re-home, B22) or as the
loss of an owner. A session can end in any phase; the move then ends `cancelled` with it.

Durable before the next step: planned, committed, finished. The other phases ride along (H66).
This file knows no messages and no clock; the supervisor does what it says.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Phase(StrEnum):
    """Where a move stands."""

    PLANNED = "planned"
    RESERVED = "reserved"
    PRECOPYING = "precopying"
    FROZEN = "frozen"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ACTIVATED = "activated"
    RELEASED = "released"
    FINISHED = "finished"


class Event(StrEnum):
    """What can happen to a move."""

    RESERVED = "reserved"
    COPYING = "copying"
    NOT_READY = "not_ready"
    FROZEN = "frozen"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ACTIVATED = "activated"
    RELEASED = "released"
    FAILED = "failed"
    """A step failed or timed out, or one of the workers is gone."""
    ENDED = "ended"
    """The session reached a terminal state."""
    FINISHED = "finished"


TRANSITIONS: Final[dict[Phase, dict[Event, Phase]]] = {
    Phase.PLANNED: {
        Event.RESERVED: Phase.RESERVED,
        Event.FAILED: Phase.FINISHED,
        Event.ENDED: Phase.FINISHED,
    },
    Phase.RESERVED: {
        Event.COPYING: Phase.PRECOPYING,
        Event.FAILED: Phase.FINISHED,
        Event.ENDED: Phase.FINISHED,
    },
    Phase.PRECOPYING: {
        Event.COPYING: Phase.PRECOPYING,
        Event.NOT_READY: Phase.PRECOPYING,
        Event.FROZEN: Phase.FROZEN,
        Event.FAILED: Phase.FINISHED,
        Event.ENDED: Phase.FINISHED,
    },
    Phase.FROZEN: {Event.PREPARED: Phase.PREPARED, Event.FAILED: Phase.FINISHED, Event.ENDED: Phase.FINISHED},
    Phase.PREPARED: {
        Event.COMMITTED: Phase.COMMITTED,
        Event.FAILED: Phase.FINISHED,
        Event.ENDED: Phase.FINISHED,
    },
    Phase.COMMITTED: {
        Event.ACTIVATED: Phase.ACTIVATED,
        Event.FAILED: Phase.FINISHED,
        Event.ENDED: Phase.FINISHED,
    },
    Phase.ACTIVATED: {
        Event.RELEASED: Phase.RELEASED,
        Event.FAILED: Phase.FINISHED,
        Event.ENDED: Phase.FINISHED,
    },
    Phase.RELEASED: {Event.FINISHED: Phase.FINISHED},
    Phase.FINISHED: {},
}


class IllegalMove(Exception):
    """An event that the phase does not know: a fault in the supervisor, never a reaction to input."""


class CleanUp(NamedTuple):
    """What a move that ends in this phase still owes: who must be told what."""

    discard_target: bool
    resume_source: bool
    decide_forward: bool


_CLEAN_UP: Final[dict[Phase, CleanUp]] = {
    Phase.PLANNED: CleanUp(False, False, False),
    Phase.RESERVED: CleanUp(True, False, False),
    Phase.PRECOPYING: CleanUp(True, False, False),
    Phase.FROZEN: CleanUp(True, True, False),
    Phase.PREPARED: CleanUp(True, True, False),
    Phase.COMMITTED: CleanUp(False, False, True),
    Phase.ACTIVATED: CleanUp(False, False, True),
    Phase.RELEASED: CleanUp(False, False, False),
    Phase.FINISHED: CleanUp(False, False, False),
}


def advance(phase: Phase, event: Event) -> Phase:
    """The phase after `event`. Raises `IllegalMove` naming both where the table has no such step."""
    try:
        return TRANSITIONS[phase][event]
    except KeyError:
        raise IllegalMove(f"{event} in phase {phase}") from None


def clean_up(phase: Phase) -> CleanUp:
    """What is owed when a move fails in `phase` (the abort of H67, the decision of H70)."""
    return _CLEAN_UP[phase]


def committed(phase: Phase) -> bool:
    """Whether the store has decided for the target."""
    return phase in (Phase.COMMITTED, Phase.ACTIVATED, Phase.RELEASED)
