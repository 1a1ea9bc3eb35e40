"""A full disk, real and small: what is on its way is written in the room kept back, no more (B40, H160)."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio

from swapd.errors import Code, SwapdError
from swapd.store.ballast import Ballast, Disk, Room, room_of
from swapd.store.ledger import append_tokens, load_tokens
from swapd.store.writer import Store
from tests.store.disks import SmallDisk, small_disk
from tests.store.failing import GatedStore, running_store, stalled
from tests.store.records import append, running

MIB = 1 << 20
BALLAST = MIB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small", 6 * MIB) as disk:
        yield disk


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swapd.store.housekeeping.LOOK_AT_DISK_EVERY_S", 0.01)


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not holds():  # noqa: ASYNC110  # a file system tells nobody
            await trio.sleep(0.005)


async def add(store: Store, pos: int, count: int = 2000) -> int:
    """Append some 30 KiB of tokens; returns the next position."""
    batch = append("s", pos, tuple(range(pos, pos + count)))
    got = await store.commit(lambda db: append_tokens(db, batch))
    assert got.status == "accepted"
    return pos + count


async def fill_until_full(disk: SmallDisk, store: Store, pos: int) -> int:
    disk.fill(leave_bytes=64 << 10)
    while not store.full:
        pos = await add(store, pos)
    return pos


async def test_what_was_on_its_way_is_written_in_the_last_room_and_more_is_taken_when_there_is_room(
    disk: SmallDisk,
) -> None:
    """B40: no write is refused, none happens twice; without a restart the store is as before."""
    path = disk.path / "swapd.db"
    told: list[int] = []
    async with running_store(Store.open(path, ballast_bytes=BALLAST)) as store:
        store.on_room(lambda: told.append(1))
        assert (store.full, store.trouble()) == (False, ())
        await store.commit(running("s"))
        ran: list[int] = []
        pos = await fill_until_full(disk, store, 1)
        assert store.trouble() == (Code.DISK_FULL,)
        assert store.statistics().room is Room.FULL
        assert not store.failed
        pos = await add(store, pos)
        await store.commit(lambda db: ran.append(1))
        assert (store.full, told) == (True, [])
        disk.empty()
        await until(lambda: told == [1])
        assert store.trouble() == ()
        assert path.with_name("swapd.db-ballast").stat().st_size == BALLAST
        pos = await add(store, pos)
        tokens = await store.read(lambda db: load_tokens(db, "s"))
    assert tokens == list(range(1, pos))


async def test_the_group_that_met_the_full_disk_is_undone_and_made_once(disk: SmallDisk) -> None:
    """B40: an operation of the same group finds nothing of the first try."""
    async with running_store(GatedStore.open(disk.path / "swapd.db", ballast_bytes=BALLAST)) as store:
        await store.commit(running("s"))
        disk.fill()
        counts: list[object] = []

        def count(db: sqlite3.Connection) -> int:
            db.execute("INSERT INTO meta (name, value) VALUES ('once', 1)")
            return int(db.execute("SELECT count(*) FROM meta WHERE name = 'once'").fetchone()[0])

        batch = append("s", 1, tuple(range(1, 20_001)))
        async with stalled(store):
            store.post(count, counts.append)
            store.post(lambda db: append_tokens(db, batch), counts.append)
        await until(lambda: len(counts) == 2)
        assert store.full
        assert counts[0] == 1
        assert len(await store.read(lambda db: load_tokens(db, "s"))) == 20_000


async def test_a_disk_that_is_full_once_more_stops_the_store_and_loses_nothing(disk: SmallDisk) -> None:
    """H160: the room kept back is used up; the log stays, and after a restart with room all is there."""
    path = disk.path / "swapd.db"
    async with running_store(Store.open(path, ballast_bytes=BALLAST)) as store:
        await store.commit(running("s"))
        pos = await fill_until_full(disk, store, 1)
        refused: SwapdError | None = None
        while refused is None:
            disk.fill()
            try:
                pos = await add(store, pos)
            except SwapdError as error:
                refused = error
        assert refused.code is Code.STORE_FAILED
        assert "disk_full" in refused.sentence
        assert store.trouble() == (Code.STORE_FAILED, Code.DISK_FULL)
        disk.empty()
        with pytest.raises(SwapdError):
            await add(store, pos)
        assert len(await store.read(lambda db: load_tokens(db, "s"))) == pos - 1
    assert path.with_name("swapd.db-wal").stat().st_size > 0
    async with running_store(Store.open(path, ballast_bytes=BALLAST)) as store:
        assert await store.read(lambda db: load_tokens(db, "s")) == list(range(1, pos))
        await add(store, pos)
        assert store.trouble() == ()


async def test_without_room_to_keep_back_a_store_begins_as_full(disk: SmallDisk) -> None:
    """B40: and takes work as soon as there is room."""
    disk.fill(leave_bytes=2 * BALLAST - 4096)
    async with running_store(Store.open(disk.path / "swapd.db", ballast_bytes=BALLAST)) as store:
        assert store.trouble() == (Code.DISK_FULL,)
        await store.commit(running("s"))
        disk.empty()
        await until(lambda: not store.full)


async def test_a_disk_with_little_room_is_told_of_once(
    disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """B40: a warning at 10 %."""
    caplog.set_level(logging.INFO, "swapd.store")
    looks: list[int] = []
    original = Ballast.make

    def counted(self: Ballast) -> bool:
        looks.append(1)
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ballast, "make", counted)
        async with running_store(Store.open(disk.path / "swapd.db", ballast_bytes=BALLAST)) as store:
            disk.fill(leave_bytes=6 * MIB // 12)
            await until(lambda: store.statistics().room is Room.LOW)
            seen = len(looks)
            await until(lambda: len(looks) > seen + 2)
            disk.empty()
            await until(lambda: store.statistics().room is Room.ENOUGH)
    told = [record.__dict__["state"] for record in caplog.records if "room on the disk" in record.message]
    assert told == ["low", "enough"]


@pytest.mark.parametrize(
    ("free", "before", "now"),
    [
        (100, Room.ENOUGH, Room.ENOUGH),
        (99, Room.ENOUGH, Room.LOW),
        (119, Room.LOW, Room.LOW),
        (120, Room.LOW, Room.ENOUGH),
        (119, Room.FULL, Room.LOW),
    ],
)
def test_little_room_is_less_than_a_tenth(free: int, before: Room, now: Room) -> None:
    assert room_of(Disk(1000, free), before) is now


class _LiftedBallast(Ballast):
    """Gives up room where no disk can be mounted: the limit on the database's pages is lifted."""

    def release(self) -> bool:
        had = super().release()
        _LimitedConnection.limit_pages = 1 << 30
        return had


class _LimitedConnection(sqlite3.Connection):
    """A database that may not grow beyond some pages: SQLite's own full disk, on any machine."""

    limit_pages: ClassVar[int] = 1 << 30

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "BEGIN IMMEDIATE":
            super().execute(f"PRAGMA max_page_count = {self.limit_pages}")
        return super().execute(sql, parameters)


class _LimitedStore(Store):
    connection_class = _LimitedConnection


async def test_a_database_that_may_not_grow_uses_the_last_room(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B40, H160: as on a small disk, where none can be mounted."""
    monkeypatch.setattr("swapd.store.housekeeping.Ballast", _LiftedBallast)
    monkeypatch.setattr(_LimitedConnection, "limit_pages", 1 << 30)
    # The disk has room: a look would lay the ballast down again.
    monkeypatch.setattr("swapd.store.housekeeping.LOOK_AT_DISK_EVERY_S", 60.0)
    async with running_store(_LimitedStore.open(path, ballast_bytes=4096)) as store:
        await store.commit(running("s"))
        found: list[int] = []
        store.post(lambda db: found.append(db.execute("PRAGMA page_count").fetchone()[0]), lambda _: None)
        await until(lambda: bool(found))
        _LimitedConnection.limit_pages = found[0] + 4
        pos = 1
        while not store.full:
            pos = await add(store, pos)
        assert store.trouble() == (Code.DISK_FULL,)
        pos = await add(store, pos)
        _LimitedConnection.limit_pages = 1
        with contextlib.suppress(SwapdError):
            while True:
                pos = await add(store, pos)
        assert store.trouble() == (Code.STORE_FAILED, Code.DISK_FULL)
        assert await store.read(lambda db: load_tokens(db, "s")) == list(range(1, pos))


async def test_a_checkpoint_that_the_disk_fails_fails_the_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H160: whether the database has what was copied is unknown, and nobody asks again."""

    def fails(self: object, ops: int) -> bool:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
        raise error

    monkeypatch.setattr("swapd.store.housekeeping.CHECKPOINT_EVERY_S", 0.001)
    monkeypatch.setattr("swapd.store.checkpoint.CHECKPOINT_OPS", 1)
    monkeypatch.setattr("swapd.store.checkpoint.Checkpointer.checkpoint", fails)
    async with running_store(Store.open(path)) as store:
        await store.commit(running("s"))
        await store.wait_failed()
        assert store.trouble() == (Code.STORE_FAILED, Code.DISK_ERROR)
        assert store.statistics().failed == "SQLITE_IOERR_FSYNC"
