"""Parked and resumed: the real store, arenas and actors, and scripted workers whose KV is real bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from swapd.messages import to_worker as into
from swapd.messages.generation import PARK
from tests.migration.world import World, open_world
from tests.parking.kv import KvWorld

PARK_BYTES = 1 << 20


@asynccontextmanager
async def world_with_park(path: Path, **changes: Any) -> AsyncIterator[World]:
    fields = {"workers": ("a",), "park_bytes": PARK_BYTES, "world_class": KvWorld}
    async with open_world(path, **(fields | changes)) as world:
        yield world


async def park(world: World, worker: str = "a") -> str:
    """Drain a worker so that what has nowhere to go is parked; returns the drain."""
    view = await world.supervisor.start(worker, 60.0, "operator", "park")
    return view.id


async def test_a_session_without_a_worker_waits_in_memory_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """B3: parked with its KV, the worker free; resumed by the same worker with nothing recomputed."""
    async with world_with_park(tmp_path) as world:
        session = await world.session(tokens=9)
        drain = await park(world)
        await world.until(lambda: session.record.state == "parked" and session.move is None)
        assert (session.view().state, session.view().worker) == ("parked", None)
        assert (await world.stored()).state == "parked"
        assert (await world.stored()).owner is not None
        assert world.told(into.Release) == ["a Release"]
        capacity = world.ledger.worker("a")
        assert capacity is not None
        assert not capacity.charges
        assert world.leases is not None
        assert world.leases.active == 0
        done = await world.supervisor.view(drain)
        assert [(s.outcome, s.target) for s in done.sessions] == [("parked", PARK)]
        before = list(session.received)
        await world.until(lambda: world.supervisor.draining("a") is None)
        await world.until(lambda: session.record.state != "parked" and session.move is None)
        assert session.durable == len(before) + 1
        assert session.received[: len(before)] == before
        assert session.record.epoch == 3
        assert (await world.stored()).state == "running"
        assert world.recovery.replayed_tokens == 0
        assert world.park is not None
        assert world.park.room.statistics()["sessions"] == 0
        await world.until(lambda: world.park is not None and world.park.room.at_rest)
        world.check_baseline()
