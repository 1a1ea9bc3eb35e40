"""The log is bounded, and the writer does not do it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from swapd.store import checkpoint
from swapd.store.checkpoint import Checkpointer
from swapd.store.database import create_file, open_reader, open_writer, wal_bytes
from tests.store.failing import opened
from tests.store.records import running

MIB = 1 << 20


@pytest.fixture
def writer(path: Path) -> Iterator[sqlite3.Connection]:
    path.parent.mkdir()
    create_file(path)
    with closing(open_writer(path, sqlite3.Connection)) as connection:
        connection.execute("CREATE TABLE filler (content BLOB)")
        yield connection


@pytest.fixture
def checkpointer(path: Path) -> Iterator[Checkpointer]:
    with closing(Checkpointer(path)) as checkpointer:
        yield checkpointer


def write(writer: sqlite3.Connection, mib: int) -> None:
    for _ in range(mib):
        writer.execute("INSERT INTO filler VALUES (zeroblob(?))", (MIB,))


def test_the_log_stops_growing_when_it_is_copied(
    path: Path, writer: sqlite3.Connection, checkpointer: Checkpointer
) -> None:
    for _ in range(6):
        write(writer, 5)
        assert checkpointer.checkpoint(0)
    assert wal_bytes(path) < 7 * MIB


def test_a_log_is_due_when_it_has_grown_or_when_much_has_happened(
    writer: sqlite3.Connection, checkpointer: Checkpointer
) -> None:
    assert not checkpointer.due(checkpoint.CHECKPOINT_OPS - 1)
    assert checkpointer.due(checkpoint.CHECKPOINT_OPS)
    write(writer, 5)
    assert checkpointer.due(1)
    assert checkpointer.checkpoint(checkpoint.CHECKPOINT_OPS)
    assert not checkpointer.due(2 * checkpoint.CHECKPOINT_OPS - 1)
    # The file keeps its size and starts again from its beginning: now only the count can tell.
    write(writer, 3)
    assert checkpointer.due(2 * checkpoint.CHECKPOINT_OPS)


def test_without_checkpoints_it_would_grow(path: Path, writer: sqlite3.Connection) -> None:
    write(writer, 12)
    assert wal_bytes(path) > 12 * MIB


def test_a_reader_of_an_old_moment_is_waited_for_by_nobody(
    path: Path, writer: sqlite3.Connection, checkpointer: Checkpointer
) -> None:
    write(writer, 1)
    with closing(open_reader(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM filler").fetchone()
        write(writer, 5)
        assert not checkpointer.checkpoint(0)
        reader.execute("ROLLBACK")
    assert checkpointer.checkpoint(0)


def test_a_log_over_its_limit_is_ended_even_if_the_writer_never_rests(
    path: Path, writer: sqlite3.Connection, checkpointer: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "WAL_LIMIT_BYTES", 2 * MIB)
    # As if the writer had always added something before a passive one was finished.
    monkeypatch.setattr(checkpoint, "_PASSIVE_TRIES", 0)
    write(writer, 3)
    assert checkpointer.checkpoint(0)
    before = wal_bytes(path)
    write(writer, 2)
    assert wal_bytes(path) == before


async def test_a_running_store_copies_its_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_OPS", 1)
    monkeypatch.setattr("swapd.store.housekeeping.CHECKPOINT_EVERY_S", 0.001)
    copied = trio.Event()
    original = Checkpointer.checkpoint

    def watched(self: Checkpointer, ops: int) -> bool:
        done = original(self, ops)
        trio.from_thread.run_sync(copied.set)
        return done

    monkeypatch.setattr(Checkpointer, "checkpoint", watched)
    async with opened(path) as store:
        await store.commit(running("a"))
        await copied.wait()


def test_an_error_is_left_to_the_writer(path: Path) -> None:
    with closing(Checkpointer(path)) as checkpointer:
        assert not checkpointer.due(0)
        assert not checkpointer.checkpoint(0)


@pytest.mark.parametrize(("name", "raises"), [("SQLITE_IOERR_FSYNC", True), ("SQLITE_FULL", False)])
def test_a_disk_that_fails_is_told_and_a_full_one_is_left_to_the_writer(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, raises: bool
) -> None:
    """H160"""
    error = sqlite3.OperationalError("the disk")
    error.sqlite_errorcode = getattr(sqlite3, name)

    class Fails(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            raise error

    monkeypatch.setattr(checkpoint, "open_checkpointer", lambda path: Fails(":memory:"))
    with closing(Checkpointer(path)) as checkpointer:
        if raises:
            with pytest.raises(sqlite3.OperationalError):
                checkpointer.checkpoint(0)
        else:
            assert not checkpointer.checkpoint(0)
