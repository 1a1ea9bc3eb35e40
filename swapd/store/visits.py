"""The visits to the console that have not ended; of the cookie only its SHA-256."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from swapd.visits.rules import VisitRecord


def add_visit(db: sqlite3.Connection, record: VisitRecord, ended: Iterable[bytes]) -> None:
    """Write a new visit; `ended` are those that it crowds out."""
    end_visits(db, ended)
    db.execute(
        "INSERT INTO visits (id, role, token, created_at, seen_at) VALUES (?, ?, ?, ?, ?)",
        (record.id, record.role, record.token, record.created_at, record.seen_at),
    )


def see_visit(db: sqlite3.Connection, visit: bytes, seen_at: float) -> None:
    """Write when a visit was last used; one that has ended meanwhile stays ended."""
    db.execute("UPDATE visits SET seen_at = ? WHERE id = ?", (seen_at, visit))


def end_visits(db: sqlite3.Connection, visits: Iterable[bytes]) -> None:
    """Forget visits."""
    db.executemany("DELETE FROM visits WHERE id = ?", [(visit,) for visit in visits])


def end_all_visits(db: sqlite3.Connection) -> None:
    """Forget every visit."""
    db.execute("DELETE FROM visits")


def load_visits(db: sqlite3.Connection) -> list[VisitRecord]:
    """All visits that were not ended."""
    rows = db.execute("SELECT id, role, token, created_at, seen_at FROM visits ORDER BY seen_at")
    return [VisitRecord(*row) for row in rows]
