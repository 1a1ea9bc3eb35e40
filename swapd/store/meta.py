"""Single numbers about the store as a whole."""

from __future__ import annotations

import sqlite3


def next_generation(db: sqlite3.Connection) -> int:
    """Return this start's coordinator generation: larger than that of any start before, so that workers
    can tell the new coordinator from a late message of the old one."""
    rows: list[tuple[int]] = db.execute(
        "INSERT INTO meta (name, value) VALUES ('generation', 1)"
        " ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value"
    ).fetchall()
    return rows[0][0]
