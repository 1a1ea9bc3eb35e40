"""Read-only connections, lent to threads one at a time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import trio

from swapd.errors import Code, SwapdError
from swapd.store.database import open_reader

T = TypeVar("T")

READERS: Final = 4
"""Reads at a time: a page of history for each of a few clients that reconnect; others wait."""


class Readers:
    """A few connections that see committed state, each read on one snapshot."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._limiter = trio.CapacityLimiter(READERS)
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    async def read(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Return `fn(connection)`, run in a thread. Not cancelled once it has begun."""
        return await trio.to_thread.run_sync(self._read, fn, limiter=self._limiter)

    def keep_one(self) -> None:
        """Have at least one connection open."""
        with self._lock:
            if not self._idle:
                self._idle.append(_opened(self._path))

    def close(self) -> None:
        """Close the idle connections now and the others when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _read(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = _opened(self._path)
        try:
            connection.execute("BEGIN")
            try:
                return fn(connection)
            finally:
                connection.execute("ROLLBACK")
        finally:
            with self._lock:
                if keep := not self._closed:
                    self._idle.append(connection)
            if not keep:
                connection.close()


def _opened(path: Path) -> sqlite3.Connection:
    connection = open_reader(path)
    # A connection that has read nothing yet holds no part of the log.
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return connection


@contextmanager
def readable() -> Iterator[None]:
    """Raise `disk_error` where the database cannot be read: a refusal, and no bug of ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise SwapdError(Code.DISK_ERROR, "the database cannot be read") from error
