"""The rows of `moves`: planned, perhaps committed (by `swapd.store.ledger`), finished (H66)."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

import msgspec

from swapd.messages.generation import Owner
from swapd.sessions.record import MoveRecord
from swapd.views import Outcome, SessionOutcome

_COLUMNS: Final = (
    "id, session, drain, source_worker, source_incarnation, target_worker, target_incarnation, epoch,"
    " phase, state, outcome, reason, stats, created_at, finished_at"
)

_stats = msgspec.json.Decoder(SessionOutcome)


def plan_move(db: sqlite3.Connection, move: MoveRecord) -> None:
    """Write a new move; a repeat changes nothing.

    Raises `sqlite3.IntegrityError` while another move of the session is planned (H76).
    """
    db.execute(
        f"INSERT INTO moves ({_COLUMNS}) VALUES ({', '.join('?' * 15)}) ON CONFLICT (id) DO NOTHING",
        (
            move.id,
            move.session,
            move.drain,
            move.source.worker,
            move.source.incarnation,
            move.target.worker,
            move.target.incarnation,
            move.epoch,
            move.phase,
            move.state,
            move.outcome,
            move.reason,
            _encoded(move.stats),
            move.created_at,
            move.finished_at,
        ),
    )


def note_phase(db: sqlite3.Connection, move: str, phase: str) -> None:
    """Note how far a move is. It rides along with the next commit; nobody waits for it."""
    db.execute("UPDATE moves SET phase = ? WHERE id = ? AND state <> 'finished'", (phase, move))


def finish_move(
    db: sqlite3.Connection,
    move: str,
    outcome: Outcome,
    reason: str | None,
    stats: SessionOutcome | None,
    at: float,
) -> bool:
    """End a move and return whether it was this call that did: outcomes are counted once.

    The phase stays the last one noted: it says how far the move came.
    """
    changed = db.execute(
        "UPDATE moves SET state = 'finished', outcome = ?, reason = ?, stats = ?, finished_at = ?"
        " WHERE id = ? AND state <> 'finished'",
        (outcome, reason, _encoded(stats), at, move),
    )
    return changed.rowcount == 1


def load_move(db: sqlite3.Connection, move: str) -> MoveRecord | None:
    """Return the move, or None."""
    row = db.execute(f"SELECT {_COLUMNS} FROM moves WHERE id = ?", (move,)).fetchone()
    return None if row is None else _record(row)


def open_moves(db: sqlite3.Connection) -> list[MoveRecord]:
    """Return the moves that a restart has to resolve, oldest first: planned and committed ones."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM moves WHERE state <> 'finished' ORDER BY key")
    return [_record(row) for row in rows]


def moves_of(db: sqlite3.Connection, drain: str) -> list[MoveRecord]:
    """Return the moves of one drain, oldest first."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM moves WHERE drain = ? ORDER BY key", (drain,))
    return [_record(row) for row in rows]


def count_moves(db: sqlite3.Connection) -> dict[str, int]:
    """Return how many moves ended with each outcome."""
    return dict(db.execute("SELECT outcome, count(*) FROM moves WHERE state = 'finished' GROUP BY outcome"))


def _encoded(stats: SessionOutcome | None) -> str | None:
    return None if stats is None else msgspec.json.encode(stats).decode()


def _record(row: tuple[Any, ...]) -> MoveRecord:
    return MoveRecord(
        id=row[0],
        session=row[1],
        drain=row[2],
        source=Owner(row[3], row[4]),
        target=Owner(row[5], row[6]),
        epoch=row[7],
        phase=row[8],
        state=row[9],
        outcome=row[10],
        reason=row[11],
        stats=None if row[12] is None else _stats.decode(row[12]),
        created_at=row[13],
        finished_at=row[14],
    )
