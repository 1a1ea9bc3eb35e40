"""Devices that go and come while sessions are parked: the desk, its drains and the park together."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from swapd.device_views import TakeBack
from swapd.errors import Code
from tests.lending.world import OWNER, lending
from tests.parking.kv import KvWorld

PARKS = msgspec.structs.replace(OWNER, when_full="park")


async def test_the_last_device_goes_free_and_its_session_comes_back_with_it(tmp_path: Path) -> None:
    """B3, B17, p of the matrix: parked at once, no worker's process left; resumed when it is lent again."""
    async with lending(tmp_path, PARKS, park_bytes=1 << 20, world_class=KvWorld) as lent:
        world = lent.world
        session = await world.session(worker="a", tokens=9)
        for device in ("of_a", "of_b"):
            await lent.desk.take_back(device, TakeBack())
        await lent.until_state(lent.a, "free")
        await lent.until_state(lent.b, "free")
        assert session.view().state == "parked"
        assert world.a.at_rest
        assert world.b.at_rest
        for device in ("of_a", "of_b"):
            await lent.desk.lend(device)
        await lent.until(lambda: session.record.state == "running" and session.move is None)
        # The park's memory is overwritten after the session has left it.
        await lent.until(lambda: world.park is not None and world.park.room.at_rest)
        assert (session.durable, world.recovery.replayed_tokens) == (10, 0)
        await world.check_baseline()


async def test_a_move_that_failed_first_does_not_keep_it_from_being_parked(tmp_path: Path) -> None:
    """What is in the way now counts, not what was when it was tried."""
    async with lending(tmp_path, PARKS, park_bytes=1 << 20, world_class=KvWorld) as lent:
        world = lent.world
        session = await world.session(worker="a", tokens=9)

        async def taken(link: object, body: object) -> object:
            await lent.desk.take_back("of_b", TakeBack())
            await lent.until_state(lent.b, "free")
            return await KvWorld.link(world, "b").work(body)

        from swapd.messages import to_worker as into

        world.b.on(into.Reserve, taken)
        await lent.desk.take_back("of_a", TakeBack())
        await lent.until_state(lent.a, "free")
        assert session.view().state == "parked"


async def test_what_the_memory_has_no_room_for_ends_as_without_parking(tmp_path: Path) -> None:
    """B3: over quota it may finish for `finish_s`; then it ends with a stable code."""
    owner = msgspec.structs.replace(PARKS, finish_s=30.0)
    async with lending(tmp_path, owner, park_bytes=4096, world_class=KvWorld) as lent:
        world = lent.world
        session = await world.session(worker="a", tokens=40)
        for device in ("of_a", "of_b"):
            await lent.desk.take_back(device, TakeBack())
        await lent.until_state(lent.b, "free")
        assert session.view().state == "running"
        lent.clock.now += 31.0
        world.table.notify()
        await lent.until_state(lent.a, "free")
        assert (session.record.state, session.record.code) == ("failed", Code.DEVICE_TAKEN_BACK)


@pytest.mark.parametrize("permitted", [True, False])
async def test_only_who_may_be_rebuilt_is_rebuilt_on_an_unequal_worker(
    tmp_path: Path, permitted: bool
) -> None:
    """B3, H74: with room on a worker of another kind, a session that permits no replay is parked."""
    async with lending(tmp_path, PARKS, park_bytes=1 << 20, world_class=KvWorld) as lent:
        world = lent.world
        ready = world.b.ready
        assert ready is not None
        world.b.ready = msgspec.structs.replace(
            ready, info=msgspec.structs.replace(ready.info, fingerprint="another")
        )
        session = await world.session(worker="a", tokens=9, allow_replay_fallback=permitted)
        await lent.desk.take_back("of_a", TakeBack())
        await lent.until_state(lent.a, "free")
        assert session.view().state == ("running" if permitted else "parked")
        assert bool(world.recovery.replayed_tokens) is permitted
