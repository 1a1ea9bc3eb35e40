"""Sessions that must leave their worker and for which the park has no room: freed, and replayed later."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from swapd.device_views import TakeBack
from swapd.errors import Code
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.messages.generation import PARK
from swapd.parking.setting_down import set_down
from swapd.sessions.live import LiveSession
from swapd.sessions.subscription import Reader
from tests.lending.world import OWNER, Lending, lending
from tests.migration.world import BLOCK_BYTES, PROMPT, TIMERS, World
from tests.parking.kv import KvWorld
from tests.parking.test_pausing import looks, world_of_the_impatient
from tests.parking.test_restarts import find, next_run
from tests.parking.world import PARK_BYTES, lend, shut, world_with_park

PARKS = msgspec.structs.replace(OWNER, when_full="park", finish_s=30.0)
SMALL = 4096
"""Room for one block: for none of the sessions here."""


async def take_back_both(lent: Lending) -> None:
    for device in ("of_a", "of_b"):
        await lent.desk.take_back(device, TakeBack())


async def replayed(world: World, session: LiveSession, tokens: int) -> None:
    await world.until(lambda: session.durable > tokens and not session.recovering)
    assert (session.view().state, session.waits_to_replay) == ("running", False)
    assert world.recovery.replayed_tokens == len(PROMPT) + tokens - 1


async def test_over_quota_who_permits_replay_is_freed_and_comes_back_with_the_device(tmp_path: Path) -> None:
    """B3, H73: the owner waits for nobody; the stream stays open, with the notices of a parked session."""
    async with lending(tmp_path, PARKS, park_bytes=SMALL, world_class=KvWorld) as lent:
        world = lent.world
        session = await world.session(worker="a", tokens=40, allow_replay_fallback=True)
        before = list(session.received)
        reader = Reader(session, 40, trio.Event(), notices=True)
        await take_back_both(lent)
        await lent.until_state(lent.a, "free")
        await lent.until_state(lent.b, "free")
        assert (session.view().state, session.view().worker, session.durable) == ("parked", None, 40)
        assert world.park is not None
        assert len(world.park.room) == 0
        assert world.ledger.total_charges() == 0
        stored = await world.stored()
        assert (stored.state, stored.epoch, stored.terminal) == ("parked", 2, False)
        told = [s for view in await world.supervisor.views() for s in view.sessions]
        assert [(s.outcome, s.reason) for s in told] == [("parked", Code.PARK_FULL)]
        assert [event.data for event in await anext(reader)] == [b'{"notice":"parked"}']
        for device in ("of_a", "of_b"):
            await lent.desk.lend(device)
        await replayed(world, session, 40)
        assert session.received[:40] == before
        assert [event.data for event in await anext(reader)] == [b'{"notice":"resumed"}']
        assert [event.name for event in await anext(reader)] == ["token"]
        await world.check_baseline()


@pytest.mark.parametrize(
    ("when_full", "permitted", "state"),
    [("park", False, "running"), ("finish", True, "running"), ("cancel", True, "failed")],
)
async def test_else_it_finishes_or_ends_with_the_stable_code_as_was_chosen(
    tmp_path: Path, when_full: str, permitted: bool, state: str
) -> None:
    """B3: its client chose no replay, or the owner that nobody waits; the owner's wait is bounded."""
    owner = msgspec.structs.replace(PARKS, when_full=when_full)
    async with lending(tmp_path, owner, park_bytes=SMALL, world_class=KvWorld) as lent:
        world = lent.world
        session = await world.session(worker="a", tokens=40, allow_replay_fallback=permitted)
        await take_back_both(lent)
        await lent.until_state(lent.b, "free")
        if state == "failed":
            await lent.until_state(lent.a, "free")
        assert session.view().state == state
        lent.clock.now += 31.0
        world.table.notify()
        await lent.until_state(lent.a, "free")
        assert (session.record.state, session.record.code) == ("failed", Code.DEVICE_TAKEN_BACK)
        assert (session.durable, world.recovery.replayed_tokens) == (40, 0)


async def test_a_move_that_never_succeeds_ends_in_waiting_where_that_is_permitted(tmp_path: Path) -> None:
    """B3: after `finish_s` the device is free, whatever was in the way."""
    async with lending(tmp_path, PARKS, park_bytes=PARK_BYTES, world_class=KvWorld) as lent:
        world = lent.world
        session = await world.session(worker="a", tokens=9, allow_replay_fallback=True)

        async def refuses(link: object, body: into.Freeze) -> object:
            items = tuple(out.FrozenItem(item.move, "not_ready") for item in body.items)
            return out.Frozen(body.batch, items, 0.0, 0.0)

        world.a.always(into.Freeze, refuses)
        await take_back_both(lent)
        await lent.until_state(lent.b, "free")
        assert session.view().state in ("running", "migrating")
        lent.clock.now += 31.0
        world.table.notify()
        await lent.until_state(lent.a, "free")
        assert (session.view().state, session.durable) == ("parked", 9)


async def test_a_paused_session_over_quota_is_freed_and_replayed_for_its_next_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 9, B3: after the grace, where the park is full and its client permits replay."""
    async with world_of_the_impatient(tmp_path, monkeypatch, park_bytes=2 * BLOCK_BYTES) as world:
        session = await world.session(tokens=40, allow_replay_fallback=True)
        await looks(world)
        assert session.view().state == "running"
        world.table.reader_left(session)
        await world.until(lambda: session.view().state == "parked")
        assert world.ledger.total_charges() == 0
        assert world.told(into.Cancel) == ["a Cancel"]
        await looks(world)
        assert (session.view().state, world.recovery.replayed_tokens) == ("parked", 0)
        assert world.supervisor.waits(session) == Code.NO_READER
        world.table.reader_came(session)
        world.table.notify()
        await replayed(world, session, 40)


async def test_what_waits_says_why_and_can_be_cancelled(tmp_path: Path) -> None:
    """H11, H16: no worker has room for it; its end is as any other's."""
    async with world_with_park(tmp_path) as world:
        session = await world.session(tokens=9, allow_replay_fallback=True)
        shut(world)
        await set_down(world.table, session)
        assert session.view().state == "parked"
        assert world.supervisor.waits(session) == Code.TARGET_FULL
        await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        assert (session.record.state, session.durable) == ("cancelled", 9)
        lend(world)
        await looks(world)
        assert world.recovery.replayed_tokens == 0


@pytest.mark.parametrize("why", ["no permission", "no token", "it moves", "it has ended"])
async def test_who_may_not_be_set_down_is_left_alone(tmp_path: Path, why: str) -> None:
    async with world_with_park(tmp_path) as world:
        session = await world.session(
            tokens=0 if why == "no token" else 9, allow_replay_fallback=why != "no permission"
        )
        if why == "it moves":
            session.move = "mov"
        if why == "it has ended":
            await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        before = await world.stored()
        await set_down(world.table, session)
        assert await world.stored() == before
        assert not session.waits_to_replay
        session.move = None


async def test_an_end_at_the_same_time_wins_whichever_is_written_first(tmp_path: Path) -> None:
    """H3, H16: one end, nothing charged, nobody waits."""
    async with world_with_park(tmp_path) as world:
        for number in range(8):
            session = await world.session(f"s{number}", tokens=5, allow_replay_fallback=True)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(set_down, world.table, session)
                nursery.start_soon(world.table.finish, session, "cancelled", Code.SESSION_CANCELLED)
            stored = await world.stored(session.id)
            assert session.record.state == stored.state == "cancelled"
            assert session.durable == stored.accepted == 5
        assert world.ledger.total_charges() == 0


# Restarts in the middle ------------------------------------------------------------------------


async def set_down_before(path: Path) -> list[int]:
    """A coordinator that sets a session down and ends; what its readers had."""
    async with world_with_park(path) as world:
        session = await world.session(tokens=9, allow_replay_fallback=True)
        shut(world)
        await set_down(world.table, session)
        return list(session.received)


SOON = msgspec.structs.replace(TIMERS, decide_s=0.05)


@pytest.mark.parametrize("phase", [None, "running", "held", "waiting"])
async def test_after_a_restart_it_waits_on_and_what_its_worker_still_has_is_dropped(
    tmp_path: Path, phase: out.Phase | None
) -> None:
    """B3, H142-H149: killed before its worker heard of it, or after; replayed once there is room."""
    before = await set_down_before(tmp_path)
    async with next_run(tmp_path, "s", timers=SOON) as (world, session):
        shut(world)
        held = () if phase is None else (out.InventoryItem("s", 1, phase, len(before), ()),)
        await find(world, *held)
        assert (session.view().state, session.record.epoch) == ("parked", 2)
        assert world.told(into.Cancel, worker="a") == ["a Cancel"] * len(held)
        [entry] = world.recovery.report().sessions
        assert (entry.session, entry.result, entry.reason) == ("s", "parked", "session_lost")
        lend(world)
        await replayed(world, session, len(before))
        assert session.received[: len(before)] == before


async def test_a_worker_that_has_it_frozen_takes_it_back_with_its_kv(tmp_path: Path) -> None:
    """B22: nothing was computed elsewhere meanwhile, so nothing is computed again."""
    before = await set_down_before(tmp_path)
    async with next_run(tmp_path, "s", timers=SOON) as (world, session):
        await find(world, out.InventoryItem("s", 1, "frozen", len(before), (), "mov"))
        assert (session.record.owner, session.record.epoch) == (world.a.owner, 3)
        assert session.view().state == "running"
        assert world.recovery.replayed_tokens == 0


async def test_killed_before_it_was_written_it_is_its_workers_as_before(tmp_path: Path) -> None:
    """H144: nothing was decided."""
    async with world_with_park(tmp_path) as world:
        session = await world.session(tokens=9, allow_replay_fallback=True)
        before = list(session.received)
    async with next_run(tmp_path, "s", timers=SOON) as (world, session):
        await find(world, out.InventoryItem("s", 1, "running", len(before), ()))
        assert (session.view().state, session.record.owner) == ("running", world.a.owner)
        assert PARK not in {entry.worker for entry in world.recovery.report().sessions}
