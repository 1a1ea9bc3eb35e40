"""Who gets a worker's next room: who was parked for want of it, or who asks for the first time (B3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from swapd.errors import Code, SwapdError
from swapd.messages import to_worker as into
from swapd.parking.setting_down import set_down
from swapd.sessions.live import LiveSession
from swapd.views import Caller, NewSession
from tests.migration.world import BLOCK_TOKENS, INFO, ScriptedLink, World, refusal
from tests.parking.world import lend, park, parked, resumed, shut, world_with_park

CALLER = Caller("tenant", False)
SMALL = NewSession(prompt=[1], max_new_tokens=2 * BLOCK_TOKENS - 1)
BIG_BLOCKS = -(-103 // BLOCK_TOKENS)
"""What a session of these worlds is charged."""


def room_of(world: World, worker: str, blocks: int) -> None:
    world.ledger.set_worker(worker, blocks, 8, INFO.block_tokens)


async def holding(world: World, worker: str, blocks: int, name: str = "holds") -> LiveSession:
    """A session that runs there and holds so many blocks."""
    return await world.session(name, worker, tokens=0, max_new_tokens=blocks * BLOCK_TOKENS - 3)


@asynccontextmanager
async def crowded(path: Path) -> AsyncIterator[tuple[World, LiveSession, LiveSession]]:
    """A big session waits in the park; its worker has room for small ones alone, until one ends."""
    async with world_with_park(path) as world:
        waits = await parked(world, "waits")
        room_of(world, "a", BIG_BLOCKS + 4)
        holds = await holding(world, "a", BIG_BLOCKS - 2)
        lend(world)
        await world.until(lambda: world.admission.admitting("a"))
        yield world, waits, holds
        for session in (waits, holds):
            await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)


async def admitted(world: World) -> LiveSession:
    session = await world.admission.admit(CALLER, SMALL)
    await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
    return session


async def test_a_new_session_does_not_take_the_room_that_a_parked_one_waits_for(tmp_path: Path) -> None:
    """B3: small ones would take each place as it comes free, and the big one would never come back."""
    async with crowded(tmp_path) as (world, waits, holds):
        with pytest.raises(SwapdError) as refused:
            await world.admission.admit(CALLER, SMALL)
        assert (refused.value.code, refused.value.retryable) == (Code.CAPACITY, True)
        assert "parked" in refused.value.sentence
        await world.table.finish(holds, "cancelled", Code.SESSION_CANCELLED)
        await resumed(world, waits)
        await admitted(world)


async def test_a_parked_session_does_not_overtake_one_that_waits_longer(tmp_path: Path) -> None:
    """B3: also where the later one is so small that it would fit at once."""
    async with world_with_park(tmp_path) as world:
        big = await parked(world, "big")
        lend(world, "a")
        room_of(world, "a", 0)
        small = await holding_parked(world)
        room_of(world, "a", BIG_BLOCKS + 4)
        holds = await holding(world, "a", BIG_BLOCKS - 2)
        lend(world)
        for _ in range(5):
            await world.table.wait_activity(0.01)
        assert (big.view().state, small.view().state) == ("parked", "parked")
        await world.table.finish(holds, "cancelled", Code.SESSION_CANCELLED)
        await resumed(world, big)
        await resumed(world, small)


async def holding_parked(world: World) -> LiveSession:
    """A small session that is parked after the others."""
    room_of(world, "a", 4)
    small = await world.session("small", tokens=3, max_new_tokens=2 * BLOCK_TOKENS - 3)
    shut(world)
    await park(world)
    assert small.view().state == "parked"
    return small


async def test_only_the_worker_that_is_nearest_to_having_the_room_is_kept(tmp_path: Path) -> None:
    """B3: new sessions go on elsewhere; an unequal worker could not take it and is not kept either."""
    async with crowded(tmp_path) as (world, _, _):
        other = world.add_worker("other")
        other.ready = msgspec.structs.replace(
            other.ready, info=msgspec.structs.replace(INFO, fingerprint="else")
        )
        assert (await admitted(world)).record.owner == other.owner
        world.admission.close("other", "device", "its owner has it")
        equal = world.add_worker("equal")
        room_of(world, "equal", BIG_BLOCKS)
        world.ledger.restore("equal", "somebody", (BIG_BLOCKS - 3) * BLOCK_TOKENS)
        assert (await admitted(world)).record.owner == equal.owner
        world.ledger.free("equal", "somebody")


@pytest.mark.parametrize(
    "why", ["nobody reads it", "moves are off", "its way back failed", "too big for all"]
)
async def test_room_is_kept_only_for_one_that_could_come_back(
    tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B3: else new sessions would be kept out in vain, for as long as it waits."""
    monkeypatch.setattr("swapd.parking.returning.RETRY_FIRST_S", 60.0)
    monkeypatch.setattr("swapd.parking.returning.RETRY_MAX_S", 60.0)
    async with crowded(tmp_path) as (world, waits, holds):
        if why == "nobody reads it":
            world.table.reader_left(waits)
        elif why == "moves are off":
            world.supervisor.migration_off = lambda: "by a test"
        elif why == "too big for all":
            room_of(world, "a", BIG_BLOCKS - 1)
            world.ledger.free("a", holds.id)
        else:
            world.a.always(into.Reserve, refusal(Code.TARGET_FULL))
            room_of(world, "a", 2 * BIG_BLOCKS + 2)
            world.table.notify()
            leases = world.leases
            assert leases is not None
            # When its lease is back, too, its failure has been noted.
            await world.until(lambda: len(world.bodies(into.Reserve)) == 1 and leases.active == 0)
            room_of(world, "a", BIG_BLOCKS + 4)
        await admitted(world)


@asynccontextmanager
async def crowded_without_kv(path: Path) -> AsyncIterator[tuple[World, LiveSession, LiveSession]]:
    """As `crowded`, but the park had no room for the big one: it is to be computed again."""
    async with world_with_park(path) as world:
        waits = await world.session("waits", tokens=9, allow_replay_fallback=True)
        shut(world)
        await set_down(world.table, waits)
        room_of(world, "a", BIG_BLOCKS + 4)
        holds = await holding(world, "a", BIG_BLOCKS - 2)
        lend(world, "a")
        await world.until(lambda: world.admission.admitting("a"))
        assert (waits.view().state, waits.view().without_kv) == ("parked", True)
        yield world, waits, holds
        for session in (waits, holds):
            await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)


async def test_a_session_that_waits_without_its_kv_comes_before_a_new_one(tmp_path: Path) -> None:
    """B3: it has nowhere else to go either."""
    async with crowded_without_kv(tmp_path) as (world, waits, holds):
        with pytest.raises(SwapdError) as refused:
            await world.admission.admit(CALLER, SMALL)
        assert (refused.value.code, refused.value.retryable) == (Code.CAPACITY, True)
        await world.table.finish(holds, "cancelled", Code.SESSION_CANCELLED)
        await world.until(lambda: waits.durable > 9)
        assert (waits.view().state, waits.view().without_kv) == ("running", False)
        await admitted(world)


@pytest.mark.parametrize("why", ["nobody reads it", "too big for all", "it has ended", "it is refused"])
async def test_room_is_not_kept_in_vain_for_one_without_its_kv(tmp_path: Path, why: str) -> None:
    """B3: new sessions are not kept out for one that could not come."""
    async with crowded_without_kv(tmp_path) as (world, waits, holds):
        if why == "nobody reads it":
            world.table.reader_left(waits)
        elif why == "too big for all":
            room_of(world, "a", BIG_BLOCKS - 1)
            world.ledger.free("a", holds.id)
        elif why == "it has ended":
            await world.table.finish(waits, "cancelled", Code.SESSION_CANCELLED)
        else:
            asked = trio.Event()

            async def refuse_it(link: ScriptedLink, body: into.Start) -> object:
                if body.spec.session != waits.id:
                    return await link.work(body)
                asked.set()
                raise SwapdError(Code.CAPACITY)

            world.a.always(into.Start, refuse_it)
            room_of(world, "a", 2 * BIG_BLOCKS + 2)
            world.table.notify()
            await asked.wait()
            capacity = world.ledger.worker("a")
            assert capacity is not None
            await world.until(lambda: waits.id not in capacity.charges)
            room_of(world, "a", BIG_BLOCKS + 4)
        await admitted(world)
