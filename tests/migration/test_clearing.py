"""When nothing of a drain's sessions is left on the device (B17)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.migration import clearing
from swapd.migration.clearing import is_clear
from swapd.migration.ledger import WorkerCapacity
from swapd.store.drains import load_drain
from swapd.views import DrainView
from tests.migration.world import ScriptedLink, World, open_world, silence

HELD = out.InventoryItem("s", 1, "frozen", 6, ())


def capacity(**charges: int) -> WorkerCapacity:
    return WorkerCapacity(100, 8, 4, dict(charges))


@pytest.mark.parametrize(
    ("items", "free", "promised", "clear"),
    [
        ((), 100, {}, True),
        ((), 99, {}, False),
        ((), None, {}, True),
        ((HELD,), 100, {}, False),
        ((out.InventoryItem("new", 1, "running", 6, ()),), 90, {"new": 10}, True),
        ((out.InventoryItem("new", 1, "running", 6, ()),), 89, {"new": 10}, False),
        ((HELD,), 95, {"s": 5}, True),
    ],
    ids=["empty", "blocks", "untold", "held", "new", "new and blocks", "came back"],
)
def test_clear_is_what_the_engine_says(items, free, promised, clear) -> None:
    """B17: no session of the drain, and the free blocks that there are without them."""
    assert is_clear({"s"}, out.Inventory(items, free), capacity(**promised)) == clear


async def drained(world: World, drain: str) -> DrainView:
    while (view := await world.supervisor.view(drain)).state != "drained":
        await world.table.wait_activity(0.02)
    return view


async def clear(world: World, drain: str) -> float:
    while (view := await world.supervisor.view(drain)).time_to_clear_s is None:
        await world.table.wait_activity(0.02)
    return view.time_to_clear_s


async def test_a_drain_is_over_when_its_sessions_are_away_and_clear_when_their_blocks_are(
    tmp_path: Path,
) -> None:
    """B17: not known before the engine says so; then durable, told and counted."""
    now = 1000.0
    asked, freed = trio.Event(), trio.Event()

    async def holds(link: ScriptedLink, body: into.InventoryQuery) -> out.Inventory:
        asked.set()
        if not freed.is_set():
            return out.Inventory((HELD,), 254)
        return out.Inventory((), 256)

    async with open_world(tmp_path, wall=lambda: now) as world:
        await world.session()
        world.a.always(into.InventoryQuery, holds)
        told: list[DrainView] = []
        world.supervisor.on_drain = told.append
        drain = (await world.supervisor.start("a", 60, "operator")).id
        view = await drained(world, drain)
        await asked.wait()
        assert (view.state, view.time_to_clear_s) == ("drained", None)
        assert world.admission.admitting("a"), "the worker does not wait for that"
        now += 2.5
        freed.set()
        assert await clear(world, drain) == 2.5
        assert told[-1].time_to_clear_s == 2.5
        await world.store.commit(lambda db: None)
        record = await world.store.read(lambda db: load_drain(db, drain))
        assert record is not None
        assert record.time_to_clear_s == 2.5
        assert world.supervisor.tally.clear_s.spread().total == 2.5
        assert world.supervisor.tally.drains["drained"] == 1, "it is no other drain for that"


async def test_a_process_that_has_ended_holds_nothing(tmp_path: Path) -> None:
    """B17, H64"""
    async with open_world(tmp_path) as world:
        await world.session()
        world.a.always(into.InventoryQuery, silence)
        drain = (await world.supervisor.start("a", 60, "operator")).id
        await drained(world, drain)
        await world.until(lambda: bool(world.bodies(into.InventoryQuery, "a")))
        assert (await world.supervisor.view(drain)).time_to_clear_s is None
        world.a.be_born()
        await clear(world, drain)


async def test_memory_that_does_not_come_back_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B17: then there is no figure."""
    monkeypatch.setattr(clearing, "CLEAR_WITHIN_S", 0.05)

    async def holds(link: ScriptedLink, body: into.InventoryQuery) -> out.Inventory:
        return out.Inventory((), 200)

    async with open_world(tmp_path) as world:
        await world.session()
        world.a.always(into.InventoryQuery, holds)
        drain = (await world.supervisor.start("a", 60, "operator")).id
        await drained(world, drain)
        watched = trio.current_time() + 1.0
        while trio.current_time() < watched:
            await world.table.wait_activity(0.05)
        assert (await world.supervisor.view(drain)).time_to_clear_s is None
