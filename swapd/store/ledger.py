"""Who may append what to a transcript, decided where it is written (H19, H40, H69; decision 1).

A session's tokens have positions 1, 2, …; `sessions.accepted` is the last of them. An append and a change
of owner are compare-and-sets on (owner, epoch, position) inside the writer's transaction, so that there
is one order of them, and the one that comes second sees the first. Functions take the writer's
connection and are run by `Store.commit` or `Store.post`; `load_tokens` may use a reader's.
"""

from __future__ import annotations

import sqlite3
from typing import Literal, NamedTuple

import msgspec

from swapd.messages.generation import PARK, Owner
from swapd.sessions.record import Terminal


class Append(msgspec.Struct, frozen=True):
    """Tokens `first_pos`… from the worker that owns the session under `epoch`, and perhaps its end."""

    session: str
    owner: Owner
    epoch: int
    first_pos: int
    ids: tuple[int, ...]
    terminal: Terminal | None


class Appended(msgspec.Struct, frozen=True):
    """What became of an append. `accepted` is the session's last durable position afterwards.

    stale: another owner or epoch. gap: not contiguous with, or not equal to, what was accepted before.
    terminal: the session had ended (H3). unknown: there is no such session.
    """

    status: Literal["accepted", "stale", "gap", "terminal", "unknown"]
    accepted: int


class MoveCommit(msgspec.Struct, frozen=True):
    """The point of no return of a move: `target` becomes owner under `epoch + 1` (H66, H69)."""

    move: str
    session: str
    source: Owner
    epoch: int
    position: int
    target: Owner
    at: float


class _Head(NamedTuple):
    """The part of a session that an append is checked against."""

    key: int
    finished_at: float | None
    worker: str | None
    incarnation: str | None
    epoch: int
    accepted: int

    def owned_by(self, owner: Owner, epoch: int) -> bool:
        return (self.worker, self.incarnation, self.epoch) == (owner.worker, owner.incarnation, epoch)


def append_tokens(db: sqlite3.Connection, append: Append) -> Appended:
    """Accept tokens and, in the same transaction, the end (H16, H19).

    Positions that are accepted already are skipped if they hold the same tokens: a worker sends what was
    not acknowledged again after a re-attach. An end counts only at the transcript's last position.
    """
    head = _head(db, append.session)
    if head is None:
        return Appended("unknown", 0)
    if head.finished_at is not None:
        return Appended("terminal", head.accepted)
    if not head.owned_by(append.owner, append.epoch):
        return Appended("stale", head.accepted)
    last = append.first_pos + len(append.ids) - 1
    if append.first_pos < 1 or append.first_pos > head.accepted + 1:
        return Appended("gap", head.accepted)
    if append.terminal is not None and last < head.accepted:
        return Appended("gap", head.accepted)
    repeated = append.ids[: head.accepted + 1 - append.first_pos]
    if repeated and repeated != _slice(db, head.key, append.first_pos, len(repeated)):
        return Appended("gap", head.accepted)

    fresh = append.ids[len(repeated) :]
    accepted = head.accepted + len(fresh)
    if fresh:
        db.executemany(
            "INSERT INTO tokens (session_key, pos, token_id) VALUES (?, ?, ?)",
            ((head.key, head.accepted + 1 + i, token_id) for i, token_id in enumerate(fresh)),
        )
    if append.terminal is not None:
        end = append.terminal
        db.execute(
            "UPDATE sessions SET accepted = ?, state = ?, finish_reason = ?, code = ?, finished_at = ?"
            " WHERE key = ?",
            (accepted, end.state, end.finish_reason, end.code, end.at, head.key),
        )
    elif fresh:
        db.execute("UPDATE sessions SET accepted = ? WHERE key = ?", (accepted, head.key))
    return Appended("accepted", accepted)


def load_tokens(db: sqlite3.Connection, session: str, after: int = 0, limit: int | None = None) -> list[int]:
    """Return the accepted tokens at positions after `after`, at most `limit` of them."""
    rows = db.execute(
        "SELECT token_id FROM tokens WHERE session_key = (SELECT key FROM sessions WHERE id = ?)"
        " AND pos > ? ORDER BY pos LIMIT ?",
        (session, after, -1 if limit is None else limit),
    )
    return [token_id for (token_id,) in rows]


def commit_move(
    db: sqlite3.Connection, commit: MoveCommit
) -> Literal["committed", "finished", "stale", "position"]:
    """Hand a session over, once. A repeat of what was committed answers `committed` and changes nothing.

    A move without a row of its own is a re-home: back to the source, because the target was lost before a
    token of its own was accepted (B22). A move with a row must be the one that was planned.

    finished: the session has ended, or is gone. stale: the source is not its owner any more, or the move
    was planned otherwise, or was ended without a commit. position: the source's frozen frontier is not
    what was accepted. Only `committed` changes anything.
    """
    move = db.execute(
        "SELECT is_committed, state, session, epoch, source_worker, source_incarnation, target_worker,"
        " target_incarnation FROM moves WHERE id = ?",
        (commit.move,),
    ).fetchone()
    if move is not None and move[2:] != _plan_of(commit):
        return "stale"
    if move is not None and move[0]:
        return "committed"
    head = _head(db, commit.session)
    if head is None or head.finished_at is not None:
        return "finished"
    if move is None and head.owned_by(commit.target, commit.epoch + 1):
        # Only one transfer can lead from an epoch to the next: it was this one.
        return "committed"
    if (move is not None and move[1] != "planned") or not head.owned_by(commit.source, commit.epoch):
        return "stale"
    if head.accepted != commit.position:
        return "position"
    _set_owner(db, head.key, commit.target, commit.epoch + 1)
    db.execute(
        "UPDATE moves SET state = 'committed', is_committed = 1, phase = 'committed' WHERE id = ?",
        (commit.move,),
    )
    return "committed"


def assign_owner(
    db: sqlite3.Connection, session: str, expected_epoch: int, owner: Owner, *, unbegun: bool = False
) -> int | None:
    """Give a session to `owner` under a new epoch, without its KV: first dispatch, replay, re-dispatch.

    Returns the new epoch; None if the session ended, is gone, or its epoch is not `expected_epoch`, and with
    `unbegun` if a token of it is accepted (B18).
    """
    head = _head(db, session)
    if head is None or head.finished_at is not None or head.epoch != expected_epoch:
        return None
    if unbegun and head.accepted:
        return None
    _set_owner(db, head.key, owner, expected_epoch + 1)
    return expected_epoch + 1


def _plan_of(commit: MoveCommit) -> tuple[str | int, ...]:
    source, target = commit.source, commit.target
    owners = (source.worker, source.incarnation, target.worker, target.incarnation)
    return (commit.session, commit.epoch, *owners)


def _head(db: sqlite3.Connection, session: str) -> _Head | None:
    row = db.execute(
        "SELECT key, finished_at, worker, incarnation, epoch, accepted FROM sessions WHERE id = ?", (session,)
    ).fetchone()
    return None if row is None else _Head(*row)


def _set_owner(db: sqlite3.Connection, key: int, owner: Owner, epoch: int) -> None:
    # `parked` is whom it is with: the state changes with the owner, in the same write (B3).
    db.execute(
        "UPDATE sessions SET worker = ?, incarnation = ?, epoch = ?, state = CASE"
        " WHEN ? THEN 'parked' WHEN state = 'parked' THEN 'running' ELSE state END WHERE key = ?",
        (owner.worker, owner.incarnation, epoch, owner.worker == PARK, key),
    )


def _slice(db: sqlite3.Connection, key: int, first_pos: int, count: int) -> tuple[int, ...]:
    rows = db.execute(
        "SELECT token_id FROM tokens WHERE session_key = ? AND pos >= ? ORDER BY pos LIMIT ?",
        (key, first_pos, count),
    )
    return tuple(token_id for (token_id,) in rows)
