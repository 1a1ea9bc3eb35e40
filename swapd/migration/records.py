"""Moves and drains between their shapes: in memory, in the store, for callers. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from swapd.messages.generation import Owner
from swapd.migration.askers import Askers, reason_of
from swapd.migration.drains import DrainBook, Landing
from swapd.migration.move import Move
from swapd.sessions.record import DrainRecord, MoveRecord
from swapd.views import Asker, DrainView, SessionOutcome

LANDED: Final = frozenset({"completed_native", "completed_redispatch"})
"""What a restart takes a committed move for."""


def redispatched(
    name: str, session: str, drain: str, source: Owner, target: Owner, epoch: int, now: float
) -> MoveRecord:
    """A session that begins anew (B18), as it is written beside its new owner: its outcome is decided."""
    return MoveRecord(
        id=name,
        session=session,
        drain=drain,
        source=source,
        target=target,
        epoch=epoch,
        phase="committed",
        state="committed",
        outcome="completed_redispatch",
        reason=None,
        stats=None,
        created_at=now,
        finished_at=None,
    )


def planned(move: Move, now: float) -> MoveRecord:
    """The durable plan of a move (H66)."""
    return MoveRecord(
        id=move.id,
        session=move.session.id,
        drain=move.drain,
        source=move.source,
        target=move.target,
        epoch=move.epoch,
        phase=str(move.phase),
        state="planned",
        outcome=None,
        reason=None,
        stats=None,
        created_at=now,
        finished_at=None,
    )


def drain_record(book: DrainBook) -> DrainRecord:
    """What is stored of a drain."""
    return DrainRecord(
        id=book.id,
        worker=book.worker,
        state=book.state,
        origin=book.origin,
        deadline_s=book.deadline_s,
        created_at=book.created_at,
        finished_at=book.finished_at,
        sessions=tuple(book.outcomes.values()),
        mode=book.mode,
        askers=book.askers,
        time_to_clear_s=book.time_to_clear_s,
    )


def reopened(record: DrainRecord, moves: Iterable[MoveRecord] = ()) -> DrainBook:
    """The book of a drain of an earlier run (decision 10, B16); `moves` are its own, finished.

    The drain's row is written when its state changes: what became of single sessions is in the moves (H54).
    """
    book = DrainBook(record.id, record.worker, record.origin, record.created_at, record.deadline_s)
    book.askers = askers_of(record)
    book.state = record.state
    book.mode = record.mode
    book.finished_at = record.finished_at
    book.time_to_clear_s = record.time_to_clear_s
    book.outcomes = {outcome.session: outcome for outcome in record.sessions}
    for move in moves:
        if move.stats is not None:
            book.note(move.stats)
            continue
        # Closed by the restart. A committed one has landed if the session is found there; that shows later.
        landed = move.outcome in LANDED
        if landed and move.outcome is not None:
            book.landed[move.session] = Landing(move.target, move.epoch + 1, move.outcome)
        book.note(
            SessionOutcome(
                session=move.session,
                outcome=None if landed else move.outcome,
                reason=move.reason,
                phase=move.phase,
                target=move.target.worker,
            )
        )
    return book


def askers_of(record: DrainRecord) -> Askers:
    """Who asked; a record from before askers were written knows of one."""
    return record.askers or (Asker(record.origin, record.created_at),)


def drain_view(record: DrainRecord) -> DrainView:
    """What callers see of a drain that is only in the store."""
    askers = askers_of(record)
    return DrainView(
        id=record.id,
        worker=record.worker,
        state=record.state,
        origin=record.origin,
        created_at=record.created_at,
        deadline_s=record.deadline_s,
        finished_at=record.finished_at,
        sessions=record.sessions,
        mode=record.mode,
        reason=reason_of(askers),
        askers=askers,
        time_to_clear_s=record.time_to_clear_s,
    )
