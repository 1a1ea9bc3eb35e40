"""One look of a drain: who leaves a worker now and where to, who stays for now and why. Pure.

A drain looks through this again and again, and borrows what each move needs; its pre-flight looks through it,
too, and borrows from copies of the same books. So what the one says is what the other does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from swapd.errors import Code, SwapdError
from swapd.messages.generation import PARK
from swapd.migration.planner import Assignment, Bars, Candidate, Refusal, Traveller, plan
from swapd.migration.turns import Turn, in_turn

PARKABLE: Final = frozenset({Code.NO_TARGET, Code.TARGET_FULL, Code.NO_EDGE})
"""Refusals for which a session may be parked instead: it is no worker's fault, and time may change it."""

L = TypeVar("L")
W = TypeVar("W")


class Sight(NamedTuple):
    """The workers as they are now, and what the service allows."""

    source: Candidate
    workers: Sequence[Candidate]
    migration_enabled: bool
    bars: Bars


class Departure(NamedTuple, Generic[L]):
    """A session that leaves now. `loan` is what was borrowed for it."""

    session: str
    target: str
    loan: L


class Parting(NamedTuple, Generic[L, W]):
    """Who leaves with its KV, who begins anew on which worker, and who stays for now."""

    leave: list[Departure[L]]
    anew: list[tuple[str, W]]
    stay: list[Refusal]


def depart(
    sight: Sight,
    travellers: Sequence[Traveller],
    *,
    parks: Callable[[str], bool],
    borrow: Callable[[Assignment], L],
    begins: Callable[[str], bool],
    begin: Callable[[str], W],
) -> Parting[L, W]:
    """Plan for all, park whom no worker takes, borrow for each, short copies first (B13); begin the rest.

    `parks`: whether a session goes to the park if no worker can take it (B3). `borrow` raises why a move that
    is planned cannot begin yet. `begins`: whether a session of which nothing has come may begin elsewhere;
    `begin` takes room for that, and raises why there is none (B18).
    """
    assignments, refusals = plan(
        sight.source,
        sight.workers,
        travellers,
        migration_enabled=sight.migration_enabled,
        bars=sight.bars,
    )
    fresh = {each.session for each in travellers if each.fresh}
    unbegun: list[Refusal] = []
    stay: list[Refusal] = []
    for refusal in refusals:
        if refusal.code in PARKABLE and parks(refusal.session):
            assignments.append(Assignment(refusal.session, PARK))
        elif refusal.code is Code.NOT_ELIGIBLE and refusal.session in fresh and begins(refusal.session):
            unbegun.append(refusal)
        else:
            stay.append(refusal)
    leave: list[Departure[L]] = []
    targets = {assignment.session: assignment for assignment in assignments}
    turns = in_turn(_turn(each) for each in travellers if each.session in targets)
    behind = False
    """Whether somebody who has waited too long finds no room: nobody is let past."""
    for turn in turns:
        assignment = targets[turn.session]
        if behind:
            stay.append(Refusal(turn.session, Code.ARENA_EXHAUSTED, True))
            continue
        try:
            loan = borrow(assignment)
        except SwapdError as error:
            refusal = Refusal(assignment.session, error.code, error.retryable, error.detail or None)
            stay.append(refusal)
            behind = turn.starved and error.code is Code.ARENA_EXHAUSTED
        else:
            leave.append(Departure(assignment.session, assignment.target, loan))
    anew: list[tuple[str, W]] = []
    for refusal in unbegun:
        try:
            anew.append((refusal.session, begin(refusal.session)))
        except SwapdError:
            stay.append(refusal)  # till its first token: then it is looked at as others are
    return Parting(leave, anew, stay)


def _turn(traveller: Traveller) -> Turn:
    return Turn(traveller.session, traveller.copy_tokens, traveller.waited_s)
