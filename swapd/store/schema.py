"""The tables, and the migrations that make them (by sqlite-utils, one function a version).

Sessions have an integer key, so that a row of `tokens` is three small integers. A database that knows a
migration which this build does not know was written by a newer swapd: it is refused before anything is
written to it (H162).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Final

from sqlite_utils import Database, Migrations

from swapd.errors import Code, SwapdError

MIGRATIONS: Final = Migrations("swapd")


@MIGRATIONS(name="0001_initial")
def _initial(db: Database) -> None:
    for statement in _INITIAL:
        db.execute(statement)


_INITIAL: Final = (
    """
    CREATE TABLE sessions (
      key INTEGER PRIMARY KEY,
      id TEXT NOT NULL UNIQUE,
      namespace TEXT NOT NULL,
      model TEXT NOT NULL,
      state TEXT NOT NULL CHECK (state IN ('created', 'running', 'migrating', 'recovering', 'parked',
                                           'completed', 'failed', 'cancelled')),
      prompt BLOB NOT NULL,
      sampling TEXT NOT NULL,
      max_new_tokens INTEGER NOT NULL,
      stop TEXT NOT NULL,
      allow_replay_fallback INTEGER NOT NULL,
      on_disconnect TEXT NOT NULL,
      max_lifetime_s REAL NOT NULL,
      worker TEXT,
      incarnation TEXT,
      epoch INTEGER NOT NULL,
      accepted INTEGER NOT NULL,
      created_at REAL NOT NULL,
      finished_at REAL,
      finish_reason TEXT,
      code TEXT,
      CHECK ((worker IS NULL) = (incarnation IS NULL)),
      CHECK ((finished_at IS NULL) = (state NOT IN ('completed', 'failed', 'cancelled')))
    )
    """,
    "CREATE INDEX sessions_open ON sessions (key) WHERE finished_at IS NULL",
    "CREATE INDEX sessions_finished ON sessions (finished_at) WHERE finished_at IS NOT NULL",
    """
    CREATE TABLE tokens (
      session_key INTEGER NOT NULL,
      pos INTEGER NOT NULL CHECK (pos >= 1),
      token_id INTEGER NOT NULL,
      PRIMARY KEY (session_key, pos)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE moves (
      key INTEGER PRIMARY KEY,
      id TEXT NOT NULL UNIQUE,
      session TEXT NOT NULL,
      drain TEXT,
      source_worker TEXT NOT NULL,
      source_incarnation TEXT NOT NULL,
      target_worker TEXT NOT NULL,
      target_incarnation TEXT NOT NULL,
      epoch INTEGER NOT NULL,
      phase TEXT NOT NULL,
      state TEXT NOT NULL CHECK (state IN ('planned', 'committed', 'finished')),
      is_committed INTEGER NOT NULL DEFAULT 0,
      outcome TEXT,
      reason TEXT,
      stats TEXT,
      created_at REAL NOT NULL,
      finished_at REAL,
      CHECK ((finished_at IS NULL) = (state <> 'finished'))
    )
    """,
    # H76: never two moves of one session that could both still commit.
    "CREATE UNIQUE INDEX moves_planned ON moves (session) WHERE state = 'planned'",
    "CREATE INDEX moves_open ON moves (key) WHERE state <> 'finished'",
    """
    CREATE TABLE drains (
      key INTEGER PRIMARY KEY,
      id TEXT NOT NULL UNIQUE,
      worker TEXT NOT NULL,
      state TEXT NOT NULL CHECK (state IN ('running', 'drained', 'blocked', 'cancelled')),
      origin TEXT NOT NULL,
      mode TEXT NOT NULL,
      deadline_s REAL NOT NULL,
      created_at REAL NOT NULL,
      finished_at REAL,
      sessions TEXT NOT NULL
    )
    """,
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
)


@MIGRATIONS(name="0002_devices")
def _devices(db: Database) -> None:
    for statement in _DEVICES:
        db.execute(statement)


_DEVICES: Final = (
    """
    CREATE TABLE take_backs (
      device TEXT PRIMARY KEY,
      since REAL NOT NULL,
      until TEXT NOT NULL CHECK (until IN ('told', 'unlock', 'time')),
      ends_at REAL
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE give_backs (
      device TEXT NOT NULL,
      began_at REAL NOT NULL,
      view TEXT NOT NULL,
      PRIMARY KEY (device, began_at)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE device_events (
      key INTEGER PRIMARY KEY,
      device TEXT NOT NULL,
      at REAL NOT NULL,
      kind TEXT NOT NULL,
      why TEXT,
      seconds REAL
    )
    """,
    "CREATE INDEX device_events_of ON device_events (device, key)",
    """
    CREATE TABLE samples (
      key INTEGER PRIMARY KEY,
      device TEXT NOT NULL,
      at REAL NOT NULL,
      result TEXT NOT NULL,
      attendance TEXT NOT NULL,
      reading_pct REAL,
      threshold_pct REAL,
      engaged INTEGER NOT NULL
    )
    """,
    "CREATE INDEX samples_of ON samples (device, at)",
    "CREATE INDEX samples_age ON samples (at)",
)


@MIGRATIONS(name="0003_quarantines")
def _quarantines(db: Database) -> None:
    db.execute(
        """
        CREATE TABLE quarantines (
          worker TEXT PRIMARY KEY,
          incarnation TEXT NOT NULL,
          code TEXT NOT NULL,
          at REAL NOT NULL
        ) WITHOUT ROWID
        """
    )


@MIGRATIONS(name="0004_activity")
def _activity(db: Database) -> None:
    for statement in _ACTIVITY:
        db.execute(statement)


_ACTIVITY: Final = (
    """
    CREATE TABLE activity (
      at INTEGER NOT NULL,
      what TEXT NOT NULL CHECK (what IN ('tokens', 'lent_s', 'engaged')),
      device TEXT NOT NULL,
      value REAL NOT NULL,
      PRIMARY KEY (at, what, device)
    ) WITHOUT ROWID
    """,
    "ALTER TABLE sessions ADD COLUMN counted INTEGER NOT NULL DEFAULT 0",
    # What was served before there were buckets belongs to no known time.
    "UPDATE sessions SET counted = accepted",
    "CREATE INDEX moves_finished ON moves (finished_at) WHERE finished_at IS NOT NULL",
)


@MIGRATIONS(name="0005_sign_ins")
def _sign_ins(db: Database) -> None:
    db.execute(
        """
        CREATE TABLE sign_ins (
          id BLOB PRIMARY KEY,
          role TEXT NOT NULL CHECK (role IN ('owner', 'viewer')),
          token BLOB NOT NULL,
          created_at REAL NOT NULL,
          seen_at REAL NOT NULL
        ) WITHOUT ROWID
        """
    )


@MIGRATIONS(name="0006_askers")
def _askers(db: Database) -> None:
    db.execute("ALTER TABLE drains ADD COLUMN askers TEXT NOT NULL DEFAULT '[]'")
    db.execute("ALTER TABLE drains ADD COLUMN time_to_clear_s REAL")


@MIGRATIONS(name="0007_revocations")
def _revocations(db: Database) -> None:
    db.execute("CREATE TABLE revocations (certificate TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date. Raises `schema_newer`, having changed nothing."""
    db = Database(connection, execute_plugins=False)
    with closing(sqlite3.connect(":memory:")) as empty:
        blank = Database(empty, execute_plugins=False)
        known = {migration.name for migration in MIGRATIONS.pending(blank)}
    newer = sorted({applied.name for applied in MIGRATIONS.applied(db)} - known)
    if newer:
        raise SwapdError(Code.SCHEMA_NEWER, f"it has {newer[-1]}")
    MIGRATIONS.apply(db)
