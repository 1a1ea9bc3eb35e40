"""How the database file is made and opened, and which of SQLite's errors mean that it cannot be trusted.

The writer's connection is WAL with `synchronous=FULL`: COMMIT returns after the log is on the disk (H18).
Its automatic checkpoints are off; `swapd.store.checkpoint` does them on a connection of its own.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

BUSY_TIMEOUT_S: Final = 10.0
"""How long the writer waits for a foreign writer (a person's script) before the store counts as failed."""
WAL_KEEP_BYTES: Final = 16 << 20
"""A log that had to grow beyond this is cut back to it when it starts again."""

_STORAGE_ERRORS: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)


def create_file(path: Path) -> None:
    """Make the file if it is not there, readable by nobody else.

    SQLite gives the log and the index the mode of the database.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # The name must be as durable as the first commit (H1).
        os.fsync(folder)
    finally:
        os.close(folder)


def open_writer(path: Path, connection_class: type[sqlite3.Connection]) -> sqlite3.Connection:
    """Open the one connection that writes."""
    return _tuned(
        _connect(path, "rw", BUSY_TIMEOUT_S, connection_class),
        "journal_mode = WAL",
        "synchronous = FULL",
        "wal_autocheckpoint = 0",
        f"journal_size_limit = {WAL_KEEP_BYTES}",
    )


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a connection that sees committed state and cannot change it."""
    return _connect(path, "ro", BUSY_TIMEOUT_S, sqlite3.Connection)


def open_checkpointer(path: Path) -> sqlite3.Connection:
    """Open a connection for checkpoints, which never waits for a lock."""
    return _tuned(_connect(path, "rw", 0.0, sqlite3.Connection), "synchronous = FULL")


def wal_bytes(path: Path) -> int:
    """The size of the write-ahead log now."""
    try:
        return os.stat(f"{path}-wal").st_size
    except FileNotFoundError:
        return 0


def is_storage_error(error: BaseException) -> bool:
    """Whether an error says that the storage failed, not that a statement was wrong."""
    return (
        isinstance(error, sqlite3.Error) and (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _STORAGE_ERRORS
    )


def _tuned(connection: sqlite3.Connection, *pragmas: str) -> sqlite3.Connection:
    """Set pragmas; the first to touch the file finds out that it is none of ours, and closes it again."""
    try:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(
    path: Path, mode: str, timeout_s: float, connection_class: type[sqlite3.Connection]
) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        # Each connection is used by one thread at a time; which one, may change.
        check_same_thread=False,
        factory=connection_class,
    )
