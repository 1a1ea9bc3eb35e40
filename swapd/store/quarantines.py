"""Which incarnation of a worker is quarantined, and why (H79)."""

from __future__ import annotations

import sqlite3

import msgspec


class QuarantineRecord(msgspec.Struct, frozen=True):
    """One quarantined incarnation. `code` is what went wrong there; `at` is seconds since 1970."""

    worker: str
    incarnation: str
    code: str
    at: float


def save_quarantine(db: sqlite3.Connection, record: QuarantineRecord) -> None:
    """Write a quarantine; an earlier one of the same worker is replaced."""
    db.execute(
        "INSERT INTO quarantines (worker, incarnation, code, at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (worker) DO UPDATE SET incarnation = excluded.incarnation, code = excluded.code,"
        " at = excluded.at",
        (record.worker, record.incarnation, record.code, record.at),
    )


def lift_quarantine(db: sqlite3.Connection, record: QuarantineRecord) -> None:
    """Forget a quarantine, unless a later incarnation has one by now."""
    db.execute(
        "DELETE FROM quarantines WHERE worker = ? AND incarnation = ?", (record.worker, record.incarnation)
    )


def load_quarantines(db: sqlite3.Connection) -> list[QuarantineRecord]:
    """All quarantines in force."""
    rows = db.execute("SELECT worker, incarnation, code, at FROM quarantines ORDER BY worker")
    return [QuarantineRecord(*row) for row in rows]
