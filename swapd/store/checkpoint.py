"""Bounding the write-ahead log without ever doing work in the writer's thread.

A passive checkpoint copies what is committed into the database beside readers and the writer, and makes
nobody wait. If it caught up, the writer's next commit starts the log from its beginning, so the file stops
growing. If the writer is so busy that it never catches up, a log over `WAL_LIMIT_BYTES` is ended the hard
way: once nearly all is copied, the rest is copied under the write lock, which costs the writer some
milliseconds instead of the disk its space.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Final

from swapd.errors import Code
from swapd.store.database import disk_fault, open_checkpointer, wal_bytes

CHECKPOINT_OPS: Final = 1024
"""An operation writes a few pages, so this is some MiB of log at most."""
CHECKPOINT_BYTES: Final = 4 << 20
"""For operations that write many pages: a log that grew to this is due, whatever they were."""
WAL_LIMIT_BYTES: Final = 32 << 20
_PASSIVE_TRIES: Final = 3
_RESTART_WAIT_MS: Final = 50

logger = logging.getLogger("swapd.store")


class Checkpointer:
    """Runs checkpoints when asked, one at a time, in whatever thread calls it.

    The size of the file alone does not say how much of it is waiting to be copied: a log that starts
    again keeps its size. Opening the file to look would be worse: closing it would take SQLite's locks away.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._copied_ops = 0
        self._copied_bytes = 0

    def due(self, ops: int) -> bool:
        """Whether there is much to copy, after `ops` operations since the store was opened."""
        size = wal_bytes(self._path)
        # Cut back to WAL_KEEP_BYTES meanwhile.
        self._copied_bytes = min(self._copied_bytes, size)
        grown = size >= CHECKPOINT_BYTES and size > self._copied_bytes
        return grown or ops - self._copied_ops >= CHECKPOINT_OPS

    def checkpoint(self, ops: int) -> bool:
        """Copy the log into the database; returns whether all of it was copied.

        `ops` is the number of operations at the time of the call.

        A full disk and a lock are logged and left to the writer, who meets them himself. Raises the
        `sqlite3.Error` of a disk that fails: whether the database has what was copied is unknown then.
        """
        try:
            if self._connection is None:
                self._connection = open_checkpointer(self._path)
            for _ in range(_PASSIVE_TRIES):
                if self._run("PASSIVE"):
                    return self._copied(ops)
            if wal_bytes(self._path) > WAL_LIMIT_BYTES:
                self._connection.execute(f"PRAGMA busy_timeout = {_RESTART_WAIT_MS}")
                try:
                    if self._run("RESTART"):
                        return self._copied(ops)
                finally:
                    self._connection.execute("PRAGMA busy_timeout = 0")
        except sqlite3.Error as error:
            if disk_fault(error) is Code.DISK_ERROR:
                raise
            logger.warning("checkpoint failed", extra={"error": type(error).__name__})
        return False

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _copied(self, ops: int) -> bool:
        self._copied_ops = ops
        self._copied_bytes = wal_bytes(self._path)
        return True

    def _run(self, mode: str) -> bool:
        assert self._connection is not None
        busy, in_log, copied = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        return not busy and in_log == copied
