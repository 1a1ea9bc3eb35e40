"""A coordinator with a park: real store, arenas and actors; scripted workers whose KV is real bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from swapd.parking.room import ParkRoom
from swapd.sessions.live import LiveSession
from swapd.views import SessionOutcome
from tests.migration.world import World, open_world
from tests.parking.kv import KvWorld

PARK_BYTES = 1 << 20


@asynccontextmanager
async def world_with_park(path: Path, **changes: Any) -> AsyncIterator[World]:
    fields = {"workers": ("a",), "park_bytes": PARK_BYTES, "world_class": KvWorld}
    async with open_world(path, **(fields | changes)) as world:
        yield world
        await at_rest(world)
        await world.check_baseline()


def room(world: World) -> ParkRoom:
    assert world.park is not None
    return world.park.room


async def at_rest(world: World) -> None:
    """Nothing of a move or a stay is still being given back, once the last tasks have had their turn."""
    leases = world.leases
    assert leases is not None
    await world.until(lambda: room(world).at_rest and leases.active == 0)


def shut(world: World, *workers: str) -> None:
    """The owner keeps the device: nothing may go there."""
    for worker in workers or ("a",):
        world.admission.close(worker, "device", "its owner has it")


def lend(world: World, *workers: str) -> None:
    for worker in workers or ("a",):
        world.admission.reopen(worker, "device")
    world.table.notify()


async def park(world: World, worker: str = "a") -> dict[str, SessionOutcome]:
    """Drain a worker so that what has nowhere to go is parked; returns what became of each session."""
    view = await world.supervisor.start(worker, 60.0, "operator", "park")
    await world.until(lambda: world.supervisor.draining(worker) is None)
    return {s.session: s for s in (await world.supervisor.view(view.id)).sessions}


async def parked(world: World, name: str = "s", tokens: int = 9, **changes: Any) -> LiveSession:
    """A session that waits in the park, its device taken."""
    session = await world.session(name, tokens=tokens, **changes)
    shut(world)
    await park(world)
    assert session.view().state == "parked"
    return session


async def resumed(world: World, session: LiveSession) -> None:
    await world.until(lambda: session.record.state == "running" and session.move is None)


async def moves(world: World) -> list[tuple[Any, ...]]:
    """Source, target and outcome of each move that is recorded."""
    await world.store.commit(lambda db: None)  # after all that was posted
    return await world.rows("SELECT source_worker, target_worker, outcome FROM moves ORDER BY key")
