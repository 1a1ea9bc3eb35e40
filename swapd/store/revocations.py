"""Which certificates were revoked, and when (H137)."""

from __future__ import annotations

import sqlite3


def save_revocation(db: sqlite3.Connection, certificate: str, at: float) -> None:
    """Write that a certificate holds nowhere any more; nothing takes that back, and the first time stays."""
    db.execute(
        "INSERT INTO revocations (certificate, at) VALUES (?, ?) ON CONFLICT (certificate) DO NOTHING",
        (certificate, at),
    )


def load_revocations(db: sqlite3.Connection) -> dict[str, float]:
    """All of them: id to when, in seconds since 1970."""
    rows: list[tuple[str, float]] = db.execute("SELECT certificate, at FROM revocations").fetchall()
    return dict(rows)
