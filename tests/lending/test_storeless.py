"""Giving a device back after the store has failed: the owner's wait is bounded all the same."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from swapd.device_views import TakeBack
from swapd.errors import Code, SwapdError
from swapd.lending.giveback import LOOK_EVERY_S
from swapd.lending.view import device_view
from swapd.messages import to_worker as into
from swapd.store.devices import load_take_backs
from tests.lending.world import OWNER, Clock, Lending, lending
from tests.migration.world import ScriptedLink
from tests.store.failing import CommitFails, CommitFailsStore, GatedStore, stalled

FINISH_S = 120.0


def owner(**changes: Any) -> Any:
    return msgspec.structs.replace(OWNER, **({"finish_s": FINISH_S} | changes))


@pytest.fixture(autouse=True)
def mended() -> Iterator[None]:
    """Whatever a test does to the disk, the next one finds it whole."""
    yield
    CommitFails.armed = False


async def break_disk(lent: Lending) -> None:
    CommitFails.armed = True
    with pytest.raises(SwapdError):
        await lent.world.store.commit(lambda db: None)
    assert lent.world.store.failed


async def looked() -> None:
    """The give-backs have had time to do what they should not."""
    await trio.sleep(5 * LOOK_EVERY_S)


async def take_back(lent: Lending, name: str) -> SwapdError:
    """The owner asks, and is told that it could not be written down."""
    with pytest.raises(SwapdError) as told:
        await lent.desk.take_back(name, TakeBack())
    assert told.value.code is Code.STORE_FAILED
    return told.value


async def test_what_was_accepted_outlives_a_worker_that_is_ended_for_its_owner(tmp_path: Path) -> None:
    """H160, decision 1: held up for `finish_s`, then free; the store has every token that a client has."""
    clock = Clock()
    async with lending(tmp_path, owner(), store_class=CommitFailsStore, clock=clock) as lent:
        await lent.world.session(worker="a", allow_replay_fallback=True)
        had = await lent.world.transcript()
        await break_disk(lent)
        error = await take_back(lent, "of_a")
        assert "it is taken back, until swapd is started again" in error.sentence
        assert lent.a.state == "vacating"
        await lent.until(lambda: lent.a.held_up is not None)
        held = device_view(lent.a, lent.world.config, clock.now, clock.now).held_up
        assert held is not None
        assert held.ends_at == pytest.approx(clock.now + FINISH_S)
        clock.now += FINISH_S - 1
        await looked()
        assert (lent.a.state, lent.world.a.at_rest) == ("vacating", False)
        clock.now += 2
        await lent.until_state(lent.a, "free")
        assert lent.world.a.at_rest
        assert lent.a.held_up is None
    CommitFails.armed = False
    async with lending(tmp_path, owner(), lent=False, stored=["s"], clock=clock) as lent:
        assert had == await lent.world.transcript() == list(range(101, 107))
        record = await lent.world.stored()
        assert (record.terminal, record.accepted) == (False, len(had))


async def test_an_empty_worker_is_not_waited_for(tmp_path: Path) -> None:
    """Nothing on it could be lost, so its owner does not wait for `finish_s`."""
    async with lending(tmp_path, owner(), store_class=CommitFailsStore) as lent:
        await lent.world.session(worker="b")
        await break_disk(lent)
        await take_back(lent, "of_a")
        await lent.until_state(lent.a, "free")
        assert lent.world.a.at_rest


async def test_with_cancel_sessions_are_not_waited_for_either(tmp_path: Path) -> None:
    """`cancel`: they have nowhere to go, so they end with their worker at once."""
    async with lending(tmp_path, owner(when_full="cancel"), store_class=CommitFailsStore) as lent:
        await lent.world.session(worker="a")
        await break_disk(lent)
        await take_back(lent, "of_a")
        await lent.until_state(lent.a, "free")


async def test_keep_ends_only_the_worker_that_has_sessions(tmp_path: Path) -> None:
    """`release = "keep"`: a session that cannot end would hold the device for ever."""
    keeping = owner(release="keep")
    async with lending(tmp_path, keeping, store_class=CommitFailsStore) as lent:
        await lent.world.session(worker="a")
        await break_disk(lent)
        await take_back(lent, "of_a")
        await take_back(lent, "of_b")
        await lent.until_state(lent.b, "free")
        assert not lent.world.b.at_rest
        await lent.until(lambda: lent.a.held_up is not None)
        lent.clock.now += FINISH_S + 1
        await lent.until_state(lent.a, "free")
        assert lent.world.a.at_rest


@pytest.mark.parametrize("side", ["of_a", "of_b"])
async def test_neither_side_of_an_unknown_move_is_ended(tmp_path: Path, side: str) -> None:
    """SF, decision 1: whether the move is committed only a restart can tell, so neither copy is released."""
    async with lending(tmp_path, owner(), store_class=CommitFailsStore) as lent:
        world = lent.world

        async def last_words(link: ScriptedLink, body: into.Prepare) -> object:
            """The target has it all, and the commit that would make it the owner fails."""
            CommitFails.armed = True
            return await link.work(body)

        world.b.on(into.Prepare, last_words)
        session = await world.session(worker="a")
        await world.supervisor.start("a", 60.0, "operator")
        await lent.until(lambda: world.store.failed and session.move is None)
        await take_back(lent, side)
        device = lent.desk.devices[side]
        await lent.until(lambda: device.held_up is not None)
        assert device.held_up is not None
        assert device.held_up.ends_at is None
        lent.clock.now += FINISH_S + 1
        await looked()
        worker = world.link(device.workers[0])
        assert (device.state, worker.at_rest) == ("vacating", False)
        # The owner may: that is a process that died.
        worker.end()
        await lent.until_state(device, "free")
        assert device.held_up is None


async def test_moves_that_cannot_be_read_are_taken_for_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the disk does not tell is no reason to end a worker."""
    async with lending(tmp_path, owner(), store_class=CommitFailsStore) as lent:
        await break_disk(lent)

        async def unreadable(fn: object) -> object:
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(lent.world.store, "read", unreadable)
        await take_back(lent, "of_a")
        await lent.until(lambda: lent.a.held_up is not None)
        assert not lent.world.a.at_rest
        monkeypatch.undo()
        await lent.until_state(lent.a, "free")


async def test_a_disk_that_hangs_does_not_stop_the_clock_of_other_devices(tmp_path: Path) -> None:
    """What only time changes is noticed whatever the disk does; the next start sees the time by itself."""
    async with lending(tmp_path, owner(), store_class=GatedStore) as lent:
        for name in ("of_a", "of_b"):
            await lent.desk.take_back(name, TakeBack(for_s=60.0))
            await lent.until_state(lent.desk.devices[name], "free")
        async with stalled(lent.world.store):
            lent.clock.now += 61
            await lent.until(lambda: lent.a.taken_back is None and lent.b.taken_back is None)


async def test_a_take_back_that_ends_is_forgotten_by_the_store_too(tmp_path: Path) -> None:
    """Else it would be in force again after a restart."""
    async with lending(tmp_path, owner()) as lent:
        await lent.desk.take_back("of_a", TakeBack(for_s=60.0))
        assert await lent.world.store.read(load_take_backs)
        lent.clock.now += 61
        await lent.until(lambda: lent.a.taken_back is None)
        await lent.world.store.commit(lambda db: None)
        assert not await lent.world.store.read(load_take_backs)
