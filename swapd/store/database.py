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

from swapd.errors import Code

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


def write_log_again(connection: sqlite3.Connection) -> None:
    """Copy what the last run left in the log into the database, before anybody is shown any of it.

    After a failed fsync the kernel may count pages of the log as written that never were: they can be read,
    and are gone after a power cut. Copied, they are written and confirmed once more (H160). A disk without
    room for it is left to the first write. Raises the `sqlite3.Error` of a disk that fails.
    """
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error as error:
        if not is_disk_full(error):
            raise


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


def is_disk_full(error: sqlite3.Error) -> bool:
    """Whether a write found no room, and nothing else is wrong.

    SQLite says so of a write alone, never of an fsync. The last thing that a commit writes is the frame that
    makes it one: if any write of it failed, that frame is not whole, so the transaction did not happen, and
    the next one begins where this one did and overwrites what it left behind.
    """
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL


def disk_fault(error: sqlite3.Error) -> Code | None:
    """What is wrong with the disk, as a code for the operator; None if that is not what the error says."""
    code = getattr(error, "sqlite_errorcode", 0)
    # The log's index could not grow: the one place where SQLite does not keep the two apart.
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE):
        return Code.DISK_FULL
    return Code.DISK_ERROR if code & 0xFF == sqlite3.SQLITE_IOERR else None


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
