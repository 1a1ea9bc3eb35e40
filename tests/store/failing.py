"""Stores whose disk waits or fails on purpose, by the seam that `Store.connection_class` is."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import trio

from swapd.store.writer import Store


class GatedConnection(sqlite3.Connection):
    """A connection whose COMMIT waits while the gate is closed: a slow disk, without a clock."""

    gate: ClassVar[threading.Event] = threading.Event()
    reached: ClassVar[threading.Event] = threading.Event()

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT":
            self.reached.set()
            self.gate.wait()
        return super().execute(sql, parameters)


# Open unless a test closes it.
GatedConnection.gate.set()


class GatedStore(Store):
    connection_class = GatedConnection


def all_disks_work() -> None:
    """No gate is closed and nothing is armed: what a test that was broken off did not put back itself."""
    GatedConnection.gate.set()
    CommitFails.armed = False


class CommitFails(sqlite3.Connection):
    """COMMIT reports an error, having done nothing."""

    armed: ClassVar[bool] = False

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.armed:
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, parameters)


class CommitLies(CommitFails):
    """COMMIT reports an error, having made everything durable: the other way to be unknown."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.armed:
            super(CommitFails, self).execute(sql, parameters)
        return super().execute(sql, parameters)


class CommitFailsStore(Store):
    connection_class = CommitFails


class CommitLiesStore(Store):
    connection_class = CommitLies


@asynccontextmanager
async def opened(path: Path, kind: type[Store] = Store) -> AsyncIterator[Store]:
    """A store that runs while the block does, and has stopped and closed after it."""
    async with running_store(kind.open(path)) as store:
        yield store


@asynccontextmanager
async def running_store(store: Store) -> AsyncIterator[Store]:
    """Run an open store while the block does."""
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def stalled(store: Store) -> AsyncIterator[None]:
    """While the block runs, the writer stands in COMMIT with one operation that does nothing."""
    try:
        await close_gate(store)
        yield
    finally:
        GatedConnection.gate.set()


async def close_gate(store: Store) -> None:
    """Return when the writer stands in COMMIT with one operation that does nothing, and nothing is queued."""
    # What was posted before is written first: else the gate could hold that, and this would stay queued.
    await store.commit(lambda db: None)
    GatedConnection.reached.clear()
    GatedConnection.gate.clear()
    store.post(lambda db: None, lambda result: None)
    assert await trio.to_thread.run_sync(GatedConnection.reached.wait, 10)
