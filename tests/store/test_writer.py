"""The writer: durable before acknowledged, grouped, in order, each operation for itself (H1, H18, H39)."""

from __future__ import annotations

import sqlite3
import stat
import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from swapd.errors import Code, SwapdError
from swapd.store.ledger import Append, Appended, append_tokens, load_tokens
from swapd.store.sessions import insert_session, load_session
from swapd.store.writer import GROUP_LIMIT, Store
from tests.store.failing import GatedStore, opened, stalled
from tests.store.records import ALICE, append, record, running


async def test_what_is_committed_is_seen_by_readers_and_after_a_restart(path: Path) -> None:
    """H1"""
    async with opened(path) as store:
        await store.commit(lambda db: insert_session(db, record("a")))
        assert await store.read(lambda db: load_session(db, "a")) == record("a")
    async with opened(path) as store:
        assert await store.read(lambda db: load_session(db, "a")) == record("a")


async def test_a_commit_returns_only_when_commit_has(path: Path, nursery: trio.Nursery) -> None:
    """H18: and until then no reader can see it either."""
    async with opened(path, GatedStore) as store:
        returned = trio.Event()

        async def commit() -> None:
            await store.commit(lambda db: insert_session(db, record("a")))
            returned.set()

        async with stalled(store):
            nursery.start_soon(commit)
            await trio.testing.wait_all_tasks_blocked()
            assert store.statistics().queue == 1
            assert not returned.is_set()
            assert await store.read(lambda db: load_session(db, "a")) is None
        await returned.wait()
        assert await store.read(lambda db: load_session(db, "a")) is not None


async def test_every_commit_waits_for_the_disk(path: Path) -> None:
    """H18: `synchronous=FULL` is in force, and no checkpoint runs in the writer's thread."""

    def pragmas(db: sqlite3.Connection) -> list[object]:
        names = ("synchronous", "journal_mode", "wal_autocheckpoint")
        return [db.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    async with opened(path) as store:
        assert await store.commit(pragmas) == [2, "wal", 0]


async def test_all_that_has_arrived_shares_one_commit(path: Path) -> None:
    """B5: across sessions and workers: one COMMIT for 300 operations of 30 sessions."""
    async with opened(path, GatedStore) as store:
        for n in range(30):
            await store.commit(running(f"s{n}"))
        got: list[Appended | BaseException] = []
        finished = trio.Event()

        def done(result: Appended | BaseException) -> None:
            got.append(result)
            if len(got) == 300:
                finished.set()

        async with stalled(store):
            before = store.statistics()
            for n in range(300):
                batch = append(f"s{n % 30}", 1 + n // 30, (n,))
                store.post(lambda db, batch=batch: append_tokens(db, batch), done)  # type: ignore[misc]
        await finished.wait()
        after = store.statistics()
        assert got == [Appended("accepted", 1 + n // 30) for n in range(300)]
        # One for the operation that the writer stalled with, one for all the others.
        assert after.commits - before.commits == 2
        assert after.ops - before.ops == 301
        assert after.largest_group == 300


async def test_the_acknowledgements_of_a_group_come_in_one_hop(path: Path) -> None:
    async with opened(path, GatedStore) as store:
        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        seen: list[int] = []
        finished = trio.Event()

        def done(result: object) -> None:
            seen.append(turns.count)
            if len(seen) == 50:
                finished.set()

        async with stalled(store):
            for _ in range(50):
                store.post(lambda db: None, done)
        await finished.wait()
        trio.lowlevel.remove_instrument(turns)
        assert len(set(seen)) == 1


class Turns(trio.abc.Instrument):
    """Counts the turns of Trio's loop."""

    count = 0

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_a_group_is_bounded(path: Path) -> None:
    async with opened(path, GatedStore) as store:
        results: list[int | BaseException] = []
        async with stalled(store):
            for n in range(GROUP_LIMIT + 10):
                store.post(lambda db, n=n: n, results.append)  # type: ignore[misc]
        await store.commit(lambda db: None)
        assert results == list(range(GROUP_LIMIT + 10))
        assert store.statistics().largest_group == GROUP_LIMIT


async def test_posts_and_commits_take_effect_in_the_order_in_which_they_were_made(path: Path) -> None:
    async with opened(path) as store:
        await store.commit(running("a"))
        results: list[Appended | BaseException] = []
        for n in range(5):
            batch = append("a", n + 1, (n,))
            store.post(lambda db, batch=batch: append_tokens(db, batch), results.append)  # type: ignore[misc]
        assert await store.commit(lambda db: load_tokens(db, "a")) == [0, 1, 2, 3, 4]
        assert results == [Appended("accepted", n + 1) for n in range(5)]


async def test_an_operation_that_raises_is_undone_and_harms_no_other(path: Path) -> None:
    class Refused(Exception):
        pass

    def half(db: sqlite3.Connection) -> None:
        insert_session(db, record("half"))
        raise Refused

    async with opened(path, GatedStore) as store:
        results: list[object] = []
        async with stalled(store):
            store.post(lambda db: insert_session(db, record("before")), results.append)
            store.post(half, results.append)
            store.post(lambda db: insert_session(db, record("before")), results.append)
            store.post(lambda db: insert_session(db, record("after")), results.append)
        with pytest.raises(Refused):
            await store.commit(half)
        assert [type(result) for result in results] == [
            type(None),
            Refused,
            sqlite3.IntegrityError,
            type(None),
        ]
        assert not store.failed
        names = ["before", "half", "after"]
        found = await store.read(lambda db: [load_session(db, name) is not None for name in names])
        assert found == [True, False, True]


async def test_a_slow_disk_slows_the_tokens_and_loses_none(path: Path) -> None:
    """H39: as many wait as the workers' windows allow, then the workers wait."""
    sessions, window, tokens = 6, 8, 40
    async with opened(path, GatedStore) as store:
        for n in range(sessions):
            await store.commit(running(f"s{n}"))
        accepted = dict.fromkeys(range(sessions), 0)
        sent = dict.fromkeys(range(sessions), 0)
        largest_queue = 0
        finished = trio.Event()

        def send(n: int) -> None:
            """What a worker does: one token at a time, and never more than a window ahead."""
            while sent[n] < tokens and sent[n] - accepted[n] < window:
                sent[n] += 1
                batch = Append(f"s{n}", ALICE, 1, sent[n], (sent[n],), None)

                def done(result: Appended | BaseException, n: int = n) -> None:
                    assert isinstance(result, Appended)
                    accepted[n] = result.accepted
                    send(n)
                    if all(count == tokens for count in accepted.values()):
                        finished.set()

                store.post(lambda db, batch=batch: append_tokens(db, batch), done)  # type: ignore[misc]

        async with stalled(store):
            for n in range(sessions):
                send(n)
            largest_queue = store.statistics().queue
        await finished.wait()
        assert largest_queue == sessions * window
        for n in range(sessions):
            assert await store.read(lambda db, n=n: load_tokens(db, f"s{n}")) == list(  # type: ignore[misc]
                range(1, tokens + 1)
            )


async def test_a_commit_cancelled_before_it_is_posted_does_nothing(path: Path) -> None:
    async with opened(path) as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.commit(lambda db: insert_session(db, record("a")))
        assert scope.cancelled_caught
        await store.commit(lambda db: None)
        assert await store.read(lambda db: load_session(db, "a")) is None


async def test_a_commit_cancelled_while_it_waits_still_takes_effect(
    path: Path, nursery: trio.Nursery
) -> None:
    async with opened(path, GatedStore) as store:
        scope = trio.CancelScope()

        async def commit() -> None:
            with scope:
                await store.commit(lambda db: insert_session(db, record("a")))

        async with stalled(store):
            nursery.start_soon(commit)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
        await store.commit(lambda db: None)
        assert scope.cancelled_caught
        assert await store.read(lambda db: load_session(db, "a")) is not None


async def test_a_stop_finishes_what_was_posted_before_it(path: Path) -> None:
    results: list[object] = []
    async with opened(path, GatedStore) as store:
        await store.commit(running("a"))
        async with stalled(store):
            for n in range(20):
                batch = append("a", n + 1, (n,))
                store.post(lambda db, batch=batch: append_tokens(db, batch), results.append)  # type: ignore[misc]
    assert len(results) == 20
    async with opened(path) as store:
        assert await store.read(lambda db: load_tokens(db, "a")) == list(range(20))


async def test_after_a_stop_operations_are_refused(path: Path) -> None:
    async with opened(path) as store:
        pass
    with pytest.raises(SwapdError) as refusal:
        await store.commit(lambda db: None)
    assert refusal.value.code == Code.STOPPING
    store.close()


async def test_a_callback_that_raises_ends_the_store_and_is_not_swallowed(path: Path) -> None:
    class Lost(Exception):
        pass

    def done(result: object) -> None:
        raise Lost

    async def run() -> None:
        async with opened(path) as store:
            store.post(lambda db: None, done)
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert caught.group_contains(Lost)


async def test_the_database_can_be_read_by_nobody_else(path: Path) -> None:
    async with opened(path) as store:
        await store.commit(running("a"))
        files = list(path.parent.iterdir())
        assert {file.name for file in files} >= {"swapd.db", "swapd.db-wal", "swapd.db-shm"}
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_database_that_others_could_read_is_closed_to_them(path: Path) -> None:
    path.parent.mkdir()
    path.touch(0o644)
    Store.open(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_reader_cannot_write(path: Path) -> None:
    async with opened(path) as store:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            await store.read(lambda db: insert_session(db, record("a")))
        # The connection was given back in order.
        assert await store.read(lambda db: load_session(db, "a")) is None


async def test_one_read_sees_one_moment(path: Path) -> None:
    between = threading.Event()
    written = threading.Event()

    def twice(db: sqlite3.Connection) -> list[list[int]]:
        first = load_tokens(db, "a")
        between.set()
        assert written.wait(10)
        return [first, load_tokens(db, "a")]

    async with opened(path) as store:
        await store.commit(running("a", 2))
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                assert await trio.to_thread.run_sync(between.wait, 10)
                await store.commit(lambda db: append_tokens(db, append("a", 3, (7,))))
                written.set()

            nursery.start_soon(write)
            assert await store.read(twice) == [[1001, 1002], [1001, 1002]]
        assert await store.read(lambda db: load_tokens(db, "a")) == [1001, 1002, 7]


async def test_a_store_runs_once(path: Path) -> None:
    async with opened(path) as store:
        with pytest.raises(RuntimeError, match="once"):
            await store.run()


def test_a_store_that_never_ran_can_be_closed(path: Path) -> None:
    Store.open(path).close()
    Store.open(path).close()
