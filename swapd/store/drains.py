"""The rows of `drains`, each with the outcomes of its sessions as JSON (H54, H65)."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

import msgspec

from swapd.sessions.record import DrainRecord
from swapd.views import Asker, SessionOutcome

_COLUMNS: Final = (
    "id, worker, state, origin, mode, deadline_s, created_at, finished_at, sessions, askers, time_to_clear_s"
)

_outcomes = msgspec.json.Decoder(tuple[SessionOutcome, ...])
_askers = msgspec.json.Decoder(tuple[Asker, ...])


def save_drain(db: sqlite3.Connection, drain: DrainRecord) -> bool:
    """Write a drain as it is now; return whether its state is a new one: states are counted once (H180)."""
    old = db.execute("SELECT state FROM drains WHERE id = ?", (drain.id,)).fetchone()
    db.execute(
        f"INSERT INTO drains ({_COLUMNS}) VALUES ({', '.join('?' * 11)}) ON CONFLICT (id) DO UPDATE SET"
        " state = excluded.state, origin = excluded.origin, deadline_s = excluded.deadline_s,"
        " finished_at = excluded.finished_at, sessions = excluded.sessions, askers = excluded.askers,"
        " time_to_clear_s = excluded.time_to_clear_s",
        (
            drain.id,
            drain.worker,
            drain.state,
            drain.origin,
            drain.mode,
            drain.deadline_s,
            drain.created_at,
            drain.finished_at,
            msgspec.json.encode(drain.sessions).decode(),
            msgspec.json.encode(drain.askers).decode(),
            drain.time_to_clear_s,
        ),
    )
    return old is None or old[0] != drain.state


def load_drain(db: sqlite3.Connection, drain: str) -> DrainRecord | None:
    """Return the drain, or None."""
    row = db.execute(f"SELECT {_COLUMNS} FROM drains WHERE id = ?", (drain,)).fetchone()
    return None if row is None else _record(row)


def recent_drains(db: sqlite3.Connection, limit: int, before: str | None = None) -> list[DrainRecord]:
    """Return up to `limit` drains, newest first; with `before`, of those that began before that drain."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM drains WHERE ? IS NULL OR key < (SELECT key FROM drains WHERE id = ?)"
        " ORDER BY key DESC LIMIT ?",
        (before, before, limit),
    )
    return [_record(row) for row in rows]


def open_drains(db: sqlite3.Connection) -> list[DrainRecord]:
    """Return the drains whose worker is closed because of them, oldest first (decision 10)."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM drains WHERE state IN ('running', 'blocked') ORDER BY key")
    return [_record(row) for row in rows]


def unpriced_drains(db: sqlite3.Connection) -> list[DrainRecord]:
    """Return the drains that are over and do not say what a replay of theirs cost, oldest first (H54)."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM drains WHERE state IN ('drained', 'cancelled')"
        " AND EXISTS (SELECT 1 FROM json_each(drains.sessions)"
        " WHERE json_type(value, '$.recomputed_tokens') = 'null') ORDER BY key"
    )
    return [_record(row) for row in rows]


def count_drains(db: sqlite3.Connection) -> dict[str, int]:
    """Return how many drains there are in each state."""
    return dict(db.execute("SELECT state, count(*) FROM drains GROUP BY state"))


def _record(row: tuple[Any, ...]) -> DrainRecord:
    return DrainRecord(
        id=row[0],
        worker=row[1],
        state=row[2],
        origin=row[3],
        mode=row[4],
        deadline_s=row[5],
        created_at=row[6],
        finished_at=row[7],
        sessions=_outcomes.decode(row[8]),
        askers=_askers.decode(row[9]),
        time_to_clear_s=row[10],
    )
