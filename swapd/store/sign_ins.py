"""The sign-ins to the console that have not ended; of the cookie only its SHA-256."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from swapd.signin.rules import SignInRecord


def add_sign_in(db: sqlite3.Connection, record: SignInRecord, ended: Iterable[bytes]) -> None:
    """Write a new sign-in; `ended` are those that it crowds out."""
    end_sign_ins(db, ended)
    db.execute(
        "INSERT INTO sign_ins (id, role, token, created_at, seen_at) VALUES (?, ?, ?, ?, ?)",
        (record.id, record.role, record.token, record.created_at, record.seen_at),
    )


def see_sign_in(db: sqlite3.Connection, sign_in: bytes, seen_at: float) -> None:
    """Write when a sign-in was last used; one that has ended meanwhile stays ended."""
    db.execute("UPDATE sign_ins SET seen_at = ? WHERE id = ?", (seen_at, sign_in))


def end_sign_ins(db: sqlite3.Connection, sign_ins: Iterable[bytes]) -> None:
    """Forget sign-ins."""
    db.executemany("DELETE FROM sign_ins WHERE id = ?", [(each,) for each in sign_ins])


def end_all_sign_ins(db: sqlite3.Connection) -> None:
    """Forget every sign-in."""
    db.execute("DELETE FROM sign_ins")


def load_sign_ins(db: sqlite3.Connection) -> list[SignInRecord]:
    """All sign-ins that were not ended."""
    rows = db.execute("SELECT id, role, token, created_at, seen_at FROM sign_ins ORDER BY seen_at")
    return [SignInRecord(*row) for row in rows]
