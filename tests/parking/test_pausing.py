"""A paused session that nobody reads gives up its place after the grace (decision 9, B3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from swapd.config import LimitConfig
from swapd.errors import Code
from swapd.messages import to_worker as into
from swapd.messages.generation import PARK
from tests.migration.world import BLOCK_BYTES, World, refusal
from tests.parking.world import moves, resumed, world_with_park

SOON = LimitConfig(disconnect_grace_s=0.01)


@asynccontextmanager
async def world_of_the_impatient(
    path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> AsyncIterator[World]:
    monkeypatch.setattr("swapd.parking.pausing.LOOK_EVERY_S", 0.01)
    monkeypatch.setattr("swapd.parking.pausing.RETRY_S", 0.01)
    async with world_with_park(path, **({"limits": SOON} | changes)) as world:
        yield world


async def looks(world: World, count: int = 5) -> None:
    for _ in range(count):
        await world.table.wait_activity(0.02)


async def test_after_the_grace_it_is_parked_and_it_comes_back_with_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 9: others get its place meanwhile, and nothing is computed again."""
    async with world_of_the_impatient(tmp_path, monkeypatch) as world:
        session = await world.session(tokens=9)
        before = list(session.received)
        await looks(world)
        assert session.view().state == "running"
        world.table.reader_left(session)
        await world.until(lambda: session.view().state == "parked" and session.move is None)
        assert await moves(world) == [("a", PARK, "parked")]
        assert world.ledger.total_charges() == 0
        world.table.reader_came(session)
        await resumed(world, session)
        assert session.received[: len(before)] == before
        assert world.recovery.replayed_tokens == 0


@pytest.mark.parametrize(
    ("why", "settings", "changes"),
    [
        ("the grace is not over", {"limits": LimitConfig(disconnect_grace_s=60.0)}, {}),
        ("it goes on alone", {}, {"on_disconnect": "continue"}),
        ("the park has no room", {"park_bytes": 2 * BLOCK_BYTES}, {}),
    ],
)
async def test_else_it_keeps_its_place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
    settings: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    """Decision 9, B3"""
    async with world_of_the_impatient(tmp_path, monkeypatch, **settings) as world:
        session = await world.session(tokens=40, **changes)
        world.table.reader_left(session)
        await looks(world)
        assert session.view().state == "running", why
        assert world.bodies(into.Export) == world.bodies(into.Freeze) == []


async def test_a_worker_that_drains_is_left_to_its_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world_of_the_impatient(tmp_path, monkeypatch) as world:
        session = await world.session(tokens=9)
        view = await world.supervisor.start("a", 60.0, "operator")
        world.table.reader_left(session)
        await looks(world)
        assert session.view().state == "running"
        await world.supervisor.cancel(view.id)
        await world.until(lambda: session.view().state == "parked" and session.move is None)


async def test_a_move_that_fails_leaves_it_where_it_is_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H67"""
    async with world_of_the_impatient(tmp_path, monkeypatch) as world:
        session = await world.session(tokens=9)
        world.a.on(into.Freeze, refusal(Code.NOT_ELIGIBLE))
        world.table.reader_left(session)
        await world.until(lambda: session.view().state == "parked" and session.move is None)
        assert [outcome for _, _, outcome in await moves(world)] == ["aborted_source_resumed", "parked"]
