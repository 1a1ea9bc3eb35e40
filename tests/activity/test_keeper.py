"""The actor that records what was lent and served, over a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from swapd.activity import keeper as keeper_module
from swapd.activity.keeper import ActivityKeeper
from swapd.errors import Code, SwapdError
from swapd.store.activity import recorded
from swapd.store.ledger import append_tokens
from swapd.store.writer import Store
from tests.lending.test_view import device
from tests.store.failing import CommitFails, CommitFailsStore
from tests.store.records import append, running

NOW = 1_700_000_100.0


@asynccontextmanager
async def open_store(path: Path) -> AsyncIterator[Store]:
    store = Store.open(path / "data" / "swapd.db")
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()


async def test_what_was_lent_and_served_is_there_after_a_restart(tmp_path: Path) -> None:
    lent = device(state="lent")
    async with open_store(tmp_path) as store:
        keeper = ActivityKeeper(store, {"gpu0": lent}, lambda: NOW)
        await store.commit(running("s", tokens=6))
        async with trio.open_nursery() as nursery:
            await nursery.start(keeper.run)
            await keeper.record()
            assert (await keeper.view(NOW - 10)).tokens == 6
            await store.commit(lambda db: append_tokens(db, append("s", 7, (1, 2))))
            nursery.cancel_scope.cancel()
    async with open_store(tmp_path) as store:
        again = ActivityKeeper(store, {"gpu0": lent}, lambda: NOW)
        view = await again.view(NOW)
        assert view.tokens == 8
        assert view.devices[0].lent_s >= 0.0


async def test_lent_time_is_that_of_lent_devices(tmp_path: Path) -> None:
    lent, not_lent = device(state="lent"), device(state="free")
    async with open_store(tmp_path) as store:
        keeper = ActivityKeeper(store, {"gpu0": lent, "gpu1": not_lent}, lambda: NOW)
        await keeper.record()
        await trio.sleep(0.06)
        await keeper.record()
        view = await keeper.view(NOW)
        assert [(one.device, one.lent_s > 0.05) for one in view.devices] == [("gpu0", True), ("gpu1", False)]
        assert (await store.read(lambda db: recorded(db, 0.0, (), 300.0))).lent_s["gpu0"] < 60.0


async def test_many_sessions_are_counted_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "SESSIONS_AT_ONCE", 2)
    async with open_store(tmp_path) as store:
        for name in "abcde":
            await store.commit(running(name, tokens=1))
        keeper = ActivityKeeper(store, {}, lambda: NOW)
        await keeper.record()
        assert (await keeper.view(NOW)).tokens == 5


async def test_a_view_is_read_once_until_the_record_changes(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        keeper = ActivityKeeper(store, {}, lambda: NOW)
        first = await keeper.view(NOW)
        assert await keeper.view(NOW + 1) is first
        await store.commit(running("s", tokens=1))
        await keeper.record()
        assert (await keeper.view(NOW)).tokens == 1


@pytest.mark.parametrize("since", [-1.0, float("nan"), float("inf"), NOW + 3600])
async def test_what_is_no_time_in_the_past_is_refused(tmp_path: Path, since: float) -> None:
    async with open_store(tmp_path) as store:
        with pytest.raises(SwapdError) as refused:
            await ActivityKeeper(store, {}, lambda: NOW).view(since)
        assert refused.value.code is Code.INVALID_REQUEST


async def test_visits_are_remembered_over_a_restart(tmp_path: Path) -> None:
    now = NOW
    async with open_store(tmp_path) as store:
        keeper = ActivityKeeper(store, {}, lambda: now)
        assert keeper.visit() is None
    now += 7200
    async with open_store(tmp_path) as store, trio.open_nursery() as nursery:
        keeper = ActivityKeeper(store, {}, lambda: now)
        await nursery.start(keeper.run)
        assert keeper.visit() == NOW
        assert keeper.visit() == NOW
        nursery.cancel_scope.cancel()


async def test_a_store_that_failed_ends_the_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H160"""
    monkeypatch.setattr(keeper_module, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(keeper_module, "RECORD_EVERY_S", 0.005)
    store = CommitFailsStore.open(tmp_path / "data" / "swapd.db")
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        keeper = ActivityKeeper(store, {}, lambda: NOW)
        CommitFails.armed = True
        try:
            with trio.fail_after(30):
                await keeper.run()
        finally:
            CommitFails.armed = False
        assert store.failed
        nursery.cancel_scope.cancel()


async def test_nothing_is_recorded_in_the_last_room_of_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B40: but the little that is posted at a stop."""
    monkeypatch.setattr(keeper_module, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(keeper_module, "RECORD_EVERY_S", 0.002)
    monkeypatch.setattr(Store, "full", property(lambda store: True))
    async with open_store(tmp_path) as store:
        before = store.statistics().ops
        async with trio.open_nursery() as nursery:
            await nursery.start(ActivityKeeper(store, {}, lambda: NOW).run)
            await trio.sleep(0.1)  # fifty times as long as it waits between two records
            nursery.cancel_scope.cancel()
        await store.commit(lambda db: None)
        assert store.statistics().ops - before == 2
