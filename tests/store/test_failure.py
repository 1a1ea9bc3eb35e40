"""An error of COMMIT is an unknown outcome: stop, acknowledge nothing, leave the log (H160, decision 1)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from swapd.errors import Code, SwapdError
from swapd.store.sessions import insert_session, load_session
from swapd.store.writer import Store
from tests.store.failing import (
    CommitFails,
    CommitFailsStore,
    CommitLiesStore,
    GatedConnection,
    GatedStore,
    opened,
    stalled,
)
from tests.store.records import record


@pytest.fixture
def broken_disk() -> Iterator[None]:
    """COMMIT fails in this test, from when `CommitFails.armed` is set."""
    yield
    CommitFails.armed = False


@pytest.mark.usefixtures("broken_disk")
@pytest.mark.parametrize("kind", [CommitFailsStore, CommitLiesStore])
async def test_after_an_error_of_commit_nothing_is_acknowledged(path: Path, kind: type[Store]) -> None:
    """H160"""
    async with opened(path, kind) as store:
        await store.commit(lambda db: insert_session(db, record("before")))
        assert not store.failed
        CommitFails.armed = True
        results: list[object] = []
        # Nothing is taken before all three are there: they are one group, and share its unknown outcome.
        with store._arrived:
            for n in range(3):
                store.post(lambda db, n=n: insert_session(db, record(f"lost-{n}")), results.append)  # type: ignore[misc]
        await store.wait_failed()
        CommitFails.armed = False
        ran: list[int] = []
        with pytest.raises(SwapdError) as refusal:
            await store.commit(lambda db: ran.append(1))
        assert refusal.value.code == Code.STORE_FAILED
        assert [error.code for error in results if isinstance(error, SwapdError)] == [Code.STORE_FAILED] * 3
        assert ran == []
        assert store.failed
        assert store.statistics().failed == "OperationalError"
        assert await store.read(lambda db: load_session(db, "before")) is not None
    # The log is left for the next start, which finds out what the outcome was.
    assert path.with_name("swapd.db-wal").stat().st_size > 0
    async with opened(path) as store:
        found = await store.read(lambda db: [load_session(db, f"lost-{n}") is not None for n in range(3)])
        assert found == [kind is CommitLiesStore] * 3
        assert await store.read(lambda db: load_session(db, "before")) is not None
        await store.commit(lambda db: insert_session(db, record("after")))


@pytest.mark.usefixtures("broken_disk")
async def test_the_log_of_a_failed_store_is_left_even_if_nobody_ever_read(path: Path) -> None:
    """H160: the last connection to close would copy the log and delete it."""
    async with opened(path, CommitFailsStore) as store:
        await store.commit(lambda db: insert_session(db, record("before")))
        CommitFails.armed = True
        store.post(lambda db: None, lambda result: None)
        await store.wait_failed()
    assert path.with_name("swapd.db-wal").stat().st_size > 0


async def test_a_disk_error_within_an_operation_fails_the_whole_group(path: Path) -> None:
    """H160: SQLite may have undone the others' rows with it, so no part of the group is acknowledged."""

    def full(db: sqlite3.Connection) -> None:
        limit = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {limit}")
        db.executemany("INSERT INTO meta VALUES (?, 1)", ((str(n) * 500,) for n in range(100)))

    async with opened(path, GatedStore) as store:
        results: list[object] = []
        async with stalled(store):
            store.post(lambda db: insert_session(db, record("neighbour")), results.append)
            store.post(full, results.append)
            store.post(lambda db: insert_session(db, record("later")), results.append)
        await store.wait_failed()
        with pytest.raises(SwapdError):
            await store.commit(lambda db: None)
        assert [error.code for error in results if isinstance(error, SwapdError)] == [Code.STORE_FAILED] * 3
        assert store.statistics().failed == "SQLITE_FULL"
    async with opened(path) as store:
        assert await store.read(lambda db: load_session(db, "neighbour")) is None


@pytest.mark.parametrize("raises", [False, True])
async def test_an_operation_that_ends_the_transaction_itself_fails_the_store(
    path: Path, raises: bool
) -> None:
    def ends(db: sqlite3.Connection) -> None:
        db.execute("ROLLBACK")
        if raises:
            raise ValueError

    async with opened(path) as store:
        with pytest.raises(SwapdError) as refusal:
            await store.commit(ends)
        assert refusal.value.code == Code.STORE_FAILED
        assert store.failed


async def test_a_disk_that_hangs_holds_up_the_stop_only_for_so_long(
    path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the lock stays held: the writer may yet write."""
    monkeypatch.setattr("swapd.store.writer.STOP_S", 0.05)
    store = GatedStore.open(path)
    scope = trio.CancelScope()
    ended = trio.Event()

    async def run(task_status: trio.TaskStatus[None]) -> None:
        with scope:
            await store.run(task_status)
        ended.set()

    await nursery.start(run)
    async with stalled(store):
        scope.cancel()
        await ended.wait()
        with pytest.raises(SwapdError) as refusal:
            Store.open(path)
    assert refusal.value.code == Code.COORDINATOR_LOCK_HELD
    assert GatedConnection.gate.is_set()
    assert store._thread is not None
    await trio.to_thread.run_sync(store._thread.join, 10)
    store._connection.close()
    store._readers.close()
    store._lock.release()
