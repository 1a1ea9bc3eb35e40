"""The rows of `sessions`: written at admission, ended once, removed after retention (H1, H3, H15, H16)."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

import msgspec

from swapd.errors import Code, SwapdError
from swapd.messages.generation import Owner, Sampling
from swapd.sessions.lifecycle import is_terminal
from swapd.sessions.record import SessionRecord, Terminal
from swapd.store.activity import count_before_deletion
from swapd.views import SessionState

_COLUMNS: Final = (
    "id, namespace, model, state, prompt, sampling, max_new_tokens, stop, allow_replay_fallback,"
    " on_disconnect, max_lifetime_s, worker, incarnation, epoch, accepted, created_at, finished_at,"
    " finish_reason, code"
)
_INSERT: Final = f"INSERT INTO sessions ({_COLUMNS}) VALUES ({', '.join('?' * 19)})"

_prompts = msgspec.msgpack.Decoder(tuple[int, ...])
_samplings = msgspec.json.Decoder(Sampling)
_stops = msgspec.json.Decoder(tuple[str, ...])


def insert_session(db: sqlite3.Connection, record: SessionRecord) -> None:
    """Write a new session. Raises `sqlite3.IntegrityError` for an id that exists."""
    owner = record.owner
    db.execute(
        _INSERT,
        (
            record.id,
            record.namespace,
            record.model,
            record.state,
            msgspec.msgpack.encode(record.prompt),
            msgspec.json.encode(record.sampling).decode(),
            record.max_new_tokens,
            msgspec.json.encode(record.stop).decode(),
            record.allow_replay_fallback,
            record.on_disconnect,
            record.max_lifetime_s,
            None if owner is None else owner.worker,
            None if owner is None else owner.incarnation,
            record.epoch,
            record.accepted,
            record.created_at,
            record.finished_at,
            record.finish_reason,
            record.code,
        ),
    )


def load_session(db: sqlite3.Connection, session: str) -> SessionRecord | None:
    """Return the session, or None."""
    row = db.execute(f"SELECT {_COLUMNS} FROM sessions WHERE id = ?", (session,)).fetchone()
    return None if row is None else _record(row)


def nonterminal_sessions(db: sqlite3.Connection) -> list[SessionRecord]:
    """Return what a coordinator has to take up again after a restart, oldest first."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM sessions WHERE finished_at IS NULL ORDER BY key")
    return [_record(row) for row in rows]


def finish_session(db: sqlite3.Connection, session: str, terminal: Terminal) -> SessionRecord:
    """End a session and return it; one that has ended is returned as it is (H3, H16).

    Raises `session_unknown`.
    """
    db.execute(
        "UPDATE sessions SET state = ?, finish_reason = ?, code = ?, finished_at = ?"
        " WHERE id = ? AND finished_at IS NULL",
        (terminal.state, terminal.finish_reason, terminal.code, terminal.at, session),
    )
    record = load_session(db, session)
    if record is None:
        raise SwapdError(Code.SESSION_UNKNOWN)
    return record


def set_state(db: sqlite3.Connection, session: str, state: SessionState) -> bool:
    """Note a nonterminal state; returns whether it holds now. A finished session keeps its own (H3)."""
    if is_terminal(state):
        raise ValueError(f"{state} needs finish_session")
    changed = db.execute(
        "UPDATE sessions SET state = ? WHERE id = ? AND finished_at IS NULL", (state, session)
    )
    return changed.rowcount == 1


def delete_expired(db: sqlite3.Connection, before: float, limit: int) -> int:
    """Remove up to `limit` sessions that had ended by `before`, oldest first, with their tokens (H15).

    How many tokens they had is kept: what of it was not counted yet is counted first.
    """
    keys = db.execute(
        "SELECT key FROM sessions WHERE finished_at <= ? ORDER BY finished_at LIMIT ?", (before, limit)
    ).fetchall()
    count_before_deletion(db, keys)
    db.executemany("DELETE FROM tokens WHERE session_key = ?", keys)
    db.executemany("DELETE FROM sessions WHERE key = ?", keys)
    return len(keys)


def _record(row: tuple[Any, ...]) -> SessionRecord:
    worker, incarnation = row[11], row[12]
    return SessionRecord(
        id=row[0],
        namespace=row[1],
        model=row[2],
        state=row[3],
        prompt=_prompts.decode(row[4]),
        sampling=_samplings.decode(row[5]),
        max_new_tokens=row[6],
        stop=_stops.decode(row[7]),
        allow_replay_fallback=bool(row[8]),
        on_disconnect=row[9],
        max_lifetime_s=row[10],
        owner=None if worker is None else Owner(worker, incarnation),
        epoch=row[13],
        accepted=row[14],
        created_at=row[15],
        finished_at=row[16],
        finish_reason=row[17],
        code=row[18],
    )
