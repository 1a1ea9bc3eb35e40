"""Parked sessions on disk, and over restarts of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swapd.errors import Code
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.parking import files
from swapd.sessions.live import LiveSession
from tests.migration.world import BLOCK_BYTES, PROMPT, TIMERS, World, open_world
from tests.parking.kv import KvWorld
from tests.parking.world import PARK_BYTES, lend, parked, resumed, room, shut, world_with_park


def on_disk(folder: Path) -> list[str]:
    return sorted(path.name.partition(".")[0] for path in folder.iterdir())


async def test_the_least_recently_used_goes_to_disk_when_the_memory_is_full(tmp_path: Path) -> None:
    """B3: LRU; all come back whole, from memory or from disk."""
    folder = tmp_path / "parked"
    folder.mkdir(mode=0o700)
    size = 12 * BLOCK_BYTES
    async with world_with_park(tmp_path, park_bytes=2 * size, park_dir=str(folder)) as world:
        sessions = {}
        for name in ("one", "two", "three"):
            sessions[name] = await world.session(name, tokens=33)
        shut(world)
        # One after another, so that the order is known; the first was asked for again meanwhile.
        for name, session in sessions.items():
            view = await world.supervisor.start("a", 60.0, "operator")
            world.supervisor.park_soon(session)
            await world.until(lambda session=session: session.record.state == "parked" and not session.move)  # type: ignore[misc]  # bound as a default
            await world.supervisor.cancel(view.id)
            if name == "two":
                world.table.regrant(sessions["one"])
        assert on_disk(folder) == ["two"]
        lend(world)
        for session in sessions.values():
            await resumed(world, session)
        await world.until(lambda: room(world).at_rest)
        assert on_disk(folder) == []


async def test_damage_on_disk_is_found_and_nothing_wrong_is_ever_resumed(tmp_path: Path) -> None:
    """B3, B21, H145: KV that does not check is given up: the session ends with its cursor."""
    folder = tmp_path / "parked"
    folder.mkdir(mode=0o700)
    async with world_with_park(tmp_path, park_dir=str(folder)) as world:
        session = await parked(world)
        await room(world).spill_all()
        (path,) = folder.iterdir()
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 0xFF
        path.write_bytes(raw)
        lend(world)
        await world.until(lambda: session.ended)
        assert (session.record.state, session.record.code) == ("failed", Code.RECOVERY_UNAVAILABLE)
        await world.until(lambda: room(world).at_rest)
        assert on_disk(folder) == []


async def test_a_disk_that_takes_nothing_more_refuses_and_keeps_what_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "parked"
    folder.mkdir(mode=0o700)
    async with world_with_park(tmp_path, park_dir=str(folder)) as world:
        session = await parked(world)

        def full(*_: object) -> Path:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(files, "write", full)
        await room(world).spill_all()
        lend(world)
        await resumed(world, session)


async def test_a_folder_at_its_limit_keeps_whom_it_has_and_takes_nobody(tmp_path: Path) -> None:
    """B3: over quota a session is refused before it is frozen, and runs on."""
    folder = tmp_path / "parked"
    folder.mkdir(mode=0o700)
    size = 12 * BLOCK_BYTES
    limits = {"park_bytes": size, "park_dir_bytes": size + BLOCK_BYTES}
    async with world_with_park(tmp_path, park_dir=str(folder), **limits) as world:
        sessions = [await world.session(name, tokens=33) for name in ("one", "two", "three")]
        shut(world)
        view = await world.supervisor.start("a", 60.0, "operator", "park")
        await world.until(
            lambda: (
                sum(session.record.state == "parked" for session in sessions) == 2
                and Code.PARK_FULL in world.supervisor.open_drains()[0].refused.values()
                and all(session.move is None for session in sessions)
            )
        )
        (left,) = (session for session in sessions if session.record.state != "parked")
        assert not world.supervisor.can_park(left)
        assert len(on_disk(folder)) == 1
        assert left.view().state == "running"
        assert len(world.bodies(into.Freeze)) == 2
        await world.supervisor.cancel(view.id)
        lend(world)
        for session in sessions:
            if session is not left:
                await resumed(world, session)


@asynccontextmanager
async def next_run(path: Path, name: str, **changes: Any) -> AsyncIterator[tuple[World, LiveSession]]:
    """The next coordinator on the same store; its worker is not found yet."""
    async with world_with_park(path, attach=False, stored=(name,), **changes) as world:
        session = world.table.get(name)
        assert session is not None
        world.table.reader_came(session)
        yield world, session


async def find(world: World, *items: out.InventoryItem) -> None:
    """The worker attaches, with what it holds."""
    world.recovery.introduced("a")
    await world.recovery.attached(world.a, out.Inventory(items))
    await world.until(lambda: world.recovery.reconciled)


async def test_what_is_on_disk_is_parked_again_after_a_restart(tmp_path: Path) -> None:
    """B3, H142, H143, H152: judged by the store as a worker's sessions are, and resumed natively."""
    folder = tmp_path / "parked"
    folder.mkdir(mode=0o700)
    async with world_with_park(tmp_path, park_dir=str(folder)) as world:
        before = list((await parked(world)).received)
        await room(world).spill_all()
    async with next_run(tmp_path, "s", park_dir=str(folder)) as (world, session):
        shut(world)
        await find(world)
        assert session.view().state == "parked"
        assert world.recovery.outcomes == {"parked": 1}
        [entry] = world.recovery.report().sessions
        assert (entry.result, entry.reason, entry.worker) == ("parked", "owner_has_it", "park")
        assert set(world.recovery.report().workers) == {"a"}
        lend(world)
        await resumed(world, session)
        assert session.received[:-1] == before


@pytest.mark.parametrize("permitted", [True, False])
async def test_what_was_in_memory_alone_is_replayed_or_ends_with_its_cursor(
    tmp_path: Path, permitted: bool
) -> None:
    """B3, H145, H73: after a restart nobody has its KV."""
    async with world_with_park(tmp_path) as world:
        before = list((await parked(world, allow_replay_fallback=permitted)).received)
    async with next_run(tmp_path, "s") as (world, session):
        await find(world)
        await world.until(lambda: session.ended or session.durable > len(before))
        [entry] = world.recovery.report().sessions
        assert (entry.result, entry.reason) == ("replayed" if permitted else "failed", "session_lost")
        if permitted:
            assert session.view().state == "running"
            assert session.received[: len(before)] == before
            assert world.recovery.replayed_tokens == len(PROMPT) + len(before) - 1
        else:
            assert (session.record.code, session.durable) == (Code.RECOVERY_UNAVAILABLE, len(before))


async def test_what_lost_its_kv_waits_for_a_device_as_before_and_is_replayed_then(tmp_path: Path) -> None:
    """B3, H142, H152: its devices are still its owner's; the service is ready without having ended it."""
    timers = msgspec.structs.replace(TIMERS, decide_s=0.05)
    async with world_with_park(tmp_path) as world:
        before = list((await parked(world, allow_replay_fallback=True)).received)
    async with next_run(tmp_path, "s", timers=timers) as (world, session):
        shut(world)
        await find(world)
        assert (session.view().state, session.durable) == ("parked", len(before))
        [entry] = world.recovery.report().sessions
        assert (entry.result, entry.reason) == ("parked", "session_lost")
        world.table.reader_left(session)
        lend(world)
        for _ in range(5):
            await world.table.wait_activity(0.01)
        assert session.view().state == "parked"
        world.table.reader_came(session)
        world.table.notify()
        await world.until(lambda: session.durable > len(before) and not session.recovering)
        assert session.view().state == "running"
        assert session.received[: len(before)] == before
        assert world.recovery.replayed_tokens == len(PROMPT) + len(before) - 1


async def test_a_source_that_still_has_it_frozen_takes_it_back(tmp_path: Path) -> None:
    """B22: committed to the park, the coordinator killed before the release: the source has all of it."""
    async with world_with_park(tmp_path) as world:
        before = list((await parked(world)).received)
    async with next_run(tmp_path, "s") as (world, session):
        frozen = out.InventoryItem("s", 1, "frozen", len(before), (), "mov")
        await find(world, frozen)
        assert session.record.owner == world.a.owner
        assert (session.view().state, session.record.epoch) == ("running", 3)
        assert into.Resume("s", 1, 3) in world.bodies(into.Resume)


async def test_what_never_ran_where_it_was_sent_to_comes_home_to_the_disk(tmp_path: Path) -> None:
    """B22, H147: committed to a worker, then both coordinator and worker are gone; the park has it still."""
    folder = tmp_path / "parked"
    folder.mkdir(mode=0o700)
    settings = {"workers": ("a",), "park_bytes": PARK_BYTES, "park_dir": str(folder)}
    async with open_world(tmp_path, world_class=KvWorld, **settings) as world:
        before = list((await parked(world)).received)
        await room(world).spill_all()
        world.a.emits = False
        lend(world)
        await world.until(lambda: world.told(into.Activate) == ["a Activate"])
    async with next_run(tmp_path, "s", park_dir=str(folder)) as (world, session):
        assert session.record.epoch == 3
        world.a.be_born()
        shut(world)
        await find(world)
        assert (session.view().state, session.record.epoch) == ("parked", 4)
        lend(world)
        await resumed(world, session)
        assert session.received[:-1] == before


async def test_files_of_sessions_that_ended_or_went_on_are_removed(tmp_path: Path) -> None:
    """H149: nothing is left behind that the store does not know as parked."""
    folder = tmp_path / "parked"
    folder.mkdir(mode=0o700)
    async with world_with_park(tmp_path, park_dir=str(folder)) as world:
        session = await parked(world)
        await room(world).spill_all()
        (path,) = folder.iterdir()
        copy, name = path.read_bytes(), path.name
        lend(world)
        await resumed(world, session)
        await world.until(lambda: room(world).at_rest)
        assert on_disk(folder) == []
    path.write_bytes(copy)
    async with next_run(tmp_path, "s", park_dir=str(folder)) as (world, session):
        owner = session.record.owner
        assert owner is not None
        there = out.InventoryItem("s", 3, "running", session.durable, ())
        await find(world, there)
        await world.until(lambda: room(world).at_rest)
        assert on_disk(folder) == []
        assert session.view().state == "running"
    (folder / name).write_bytes(copy)
    async with world_with_park(tmp_path, park_dir=str(folder)) as world:
        await world.until(lambda: room(world).at_rest)
        assert on_disk(folder) == []
