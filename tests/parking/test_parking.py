"""Parked and resumed: the real store, arenas and actors, and scripted workers whose KV is real bytes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from swapd.api import SessionOutcome
from swapd.errors import Code
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.messages.generation import PARK
from swapd.parking import files
from swapd.parking.room import ParkRoom
from swapd.sessions.keeper import Keeper
from swapd.sessions.live import LiveSession
from swapd.sessions.subscription import Reader
from tests.migration.world import BLOCK_BYTES, INFO, PROMPT, World, loss, open_world, refusal
from tests.parking.kv import KvWorld

PARK_BYTES = 1 << 20


@asynccontextmanager
async def world_with_park(path: Path, **changes: Any) -> AsyncIterator[World]:
    fields = {"workers": ("a",), "park_bytes": PARK_BYTES, "world_class": KvWorld}
    async with open_world(path, **(fields | changes)) as world:
        yield world
        await world.until(lambda: room(world).at_rest)
        world.check_baseline()


def room(world: World) -> ParkRoom:
    assert world.park is not None
    return world.park.room


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


# The way there and back -----------------------------------------------------------------------------


async def test_a_session_without_a_worker_waits_in_memory_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """B3, H49, H97: parked with its KV and the worker empty; resumed there with nothing recomputed."""
    async with world_with_park(tmp_path) as world:
        session = await world.session(tokens=9)
        shut(world)
        outcomes = await park(world)
        assert [(s.outcome, s.target) for s in outcomes.values()] == [("parked", PARK)]
        assert (session.view().state, session.view().worker) == ("parked", None)
        stored = await world.stored()
        assert (stored.state, stored.epoch) == ("parked", 2)
        assert world.told(into.Release) == ["a Release"]
        world.check_baseline()
        before = list(session.received)

        lend(world)
        await resumed(world, session)
        assert session.received[: len(before)] == before
        assert session.durable == len(before) + 1
        assert ((await world.stored()).state, session.record.epoch) == ("running", 3)
        assert await moves(world) == [("a", PARK, "parked"), (PARK, "a", "completed_native")]
        (stats,) = await world.rows("SELECT stats FROM moves WHERE outcome = 'completed_native'")
        back = msgspec.json.decode(stats[0], type=SessionOutcome)
        assert (back.reuse, back.recomputed_tokens) == (1.0, 0)
        assert world.recovery.replayed_tokens == 0
        assert len(room(world)) == 0


@pytest.mark.parametrize("tokens", [1, 2, 5, 6, 7, 30])
async def test_every_length_of_the_last_block_is_carried(tmp_path: Path, tokens: int) -> None:
    """H83: one position, a full block, one more than full."""
    async with world_with_park(tmp_path) as world:
        session = await parked(world, tokens=tokens)
        lend(world)
        await resumed(world, session)
        assert session.durable == tokens + 1


async def test_it_may_come_back_to_another_worker_but_only_to_an_equal_one(tmp_path: Path) -> None:
    """B3, H75: fingerprints decide; the first one that could take it is not of its kind."""
    async with world_with_park(tmp_path) as world:
        session = await parked(world)
        other = world.add_worker("other")
        other.ready = msgspec.structs.replace(
            other.ready, info=msgspec.structs.replace(INFO, fingerprint="else")
        )
        world.table.notify()
        world.add_worker("b")
        await resumed(world, session)
        assert session.record.owner is not None
        assert session.record.owner.worker == "b"
        assert world.bodies(into.Reserve, "other") == []


async def test_the_oldest_comes_first_where_not_all_have_room(tmp_path: Path) -> None:
    """B3: level-triggered, by who waits longest; the next when there is room again."""
    one_slot = msgspec.structs.replace(INFO, max_num_seqs=1)
    async with world_with_park(tmp_path) as world:
        first = await world.session("first", tokens=9)
        second = await world.session("second", tokens=9)
        shut(world)
        await park(world)
        order = [kept.header.session for kept in room(world)]
        by_name = {"first": first, "second": second}
        world.ledger.set_worker("a", INFO.usable_blocks, one_slot.max_num_seqs, INFO.block_tokens)
        lend(world)
        await resumed(world, by_name[order[0]])
        assert by_name[order[1]].view().state == "parked"
        await world.table.finish(by_name[order[0]], "cancelled", Code.SESSION_CANCELLED)
        await resumed(world, by_name[order[1]])


async def test_who_reads_not_stays_parked_until_it_reads(tmp_path: Path) -> None:
    """B3, H32: it would hold a place and make no token; `continue` needs no reader."""
    async with world_with_park(tmp_path) as world:
        quiet = await world.session("quiet", tokens=5)
        alone = await world.session("alone", tokens=5, on_disconnect="continue")
        for session in (quiet, alone):
            world.table.reader_left(session)
        shut(world)
        await park(world)
        lend(world)
        await resumed(world, alone)
        assert quiet.view().state == "parked"
        assert len(world.bodies(into.Reserve, "a")) == 1
        world.table.reader_came(quiet)
        await resumed(world, quiet)


async def test_nothing_is_parked_while_another_worker_has_room(tmp_path: Path) -> None:
    async with world_with_park(tmp_path, workers=("a", "b")) as world:
        await world.session(tokens=9)
        outcomes = await park(world)
        assert outcomes["s"].outcome == "completed_native"


async def test_a_drain_that_does_not_ask_for_it_parks_nothing(tmp_path: Path) -> None:
    async with world_with_park(tmp_path) as world:
        session = await world.session(tokens=9)
        view = await world.supervisor.start("a", 60.0, "operator")
        await world.until(lambda: world.supervisor.open_drains()[0].refused.get("s") is not None)
        assert session.view().state == "running"
        assert (await world.supervisor.cancel(view.id)).state == "cancelled"


@pytest.mark.parametrize("setting", ["migration_enabled", "self_certify"])
async def test_what_could_not_come_back_natively_is_not_parked(tmp_path: Path, setting: str) -> None:
    """H62: parking is a native move twice; where none is allowed the session stays where it is."""
    async with world_with_park(tmp_path, **{setting: False}) as world:
        session = await world.session(tokens=9)
        assert not world.supervisor.can_park(session)
        await world.supervisor.start("a", 60.0, "operator", "park")
        await world.until(lambda: world.supervisor.open_drains()[0].refused.get("s") is not None)
        assert session.view().state == "running"
        assert world.bodies(into.Export) == []


# Failures -------------------------------------------------------------------------------------------


async def test_a_session_that_the_memory_has_no_room_for_is_never_frozen(tmp_path: Path) -> None:
    """B3: over quota it is refused with a stable code before anything is copied, and runs on."""
    async with world_with_park(tmp_path, park_bytes=2 * BLOCK_BYTES) as world:
        session = await world.session(tokens=40)
        assert not world.supervisor.can_park(session)
        view = await world.supervisor.start("a", 60.0, "operator", "park")
        await world.until(lambda: world.supervisor.open_drains()[0].refused.get("s") == Code.PARK_FULL)
        (said,) = (await world.supervisor.view(view.id)).sessions
        assert said.reason == Code.PARK_FULL
        assert world.bodies(into.Freeze) == world.bodies(into.Export) == []
        assert session.view().state == "running"


async def test_blocks_that_do_not_check_are_not_kept(tmp_path: Path) -> None:
    """H67, H78, B21: damaged on the way to the park: the source goes on, nothing stays behind."""
    async with world_with_park(tmp_path) as world:
        session = await world.session(tokens=9)

        async def damaged(link: Any, body: into.Freeze) -> object:
            answer = await link.work(body)
            assert world.arena is not None
            with world.arena.region(body.items[0].lease) as view:
                view[0] ^= 0xFF
            return answer

        world.a.on(into.Freeze, damaged)
        shut(world)
        outcomes = await park(world)
        assert outcomes["s"].outcome == "parked"  # at the second try
        assert world.told(into.Resume) == ["a Resume"]
        first, second = await moves(world)
        assert (first[2], second[2]) == ("aborted_source_resumed", "parked")
        lend(world)
        await resumed(world, session)


async def test_a_worker_that_dies_before_its_first_token_gives_the_session_back_to_the_park(
    tmp_path: Path,
) -> None:
    """B3, B22: the park stays pinned until the first token under the new epoch is durable."""
    async with world_with_park(tmp_path) as world:
        session = await parked(world)
        world.a.emits = False
        lend(world)
        await world.until(lambda: session.record.epoch == 3)
        shut(world)
        world.lose("a")
        await world.until(lambda: session.record.state == "parked" and session.move is None)
        assert session.record.epoch == 4
        assert (await moves(world))[-1] == (PARK, "a", "rehomed_source")
        assert room(world).get("s") is not None
        world.a.emits = True
        world.a.be_born()
        lend(world)
        await resumed(world, session)
        assert session.record.epoch == 5


@pytest.mark.parametrize("step", [into.Reserve, into.Import, into.Prepare])
async def test_a_way_back_that_fails_leaves_it_parked_and_is_tried_again(tmp_path: Path, step: type) -> None:
    """H67: whatever the worker refuses, nothing is lost, and the next try brings it back."""
    async with world_with_park(tmp_path) as world:
        session = await parked(world)
        world.a.on(step, refusal(Code.TARGET_FULL))
        lend(world)
        await resumed(world, session)
        assert [outcome for _, _, outcome in await moves(world)] == [
            "parked",
            "aborted_source_resumed",
            "completed_native",
        ]


async def test_a_worker_lost_while_it_is_parked_is_decided_as_ever(tmp_path: Path) -> None:
    """H145: before the commit the source is the owner, and nobody else has its KV."""
    async with world_with_park(tmp_path) as world:
        session = await world.session(tokens=9)

        async def dies(link: Any, body: object) -> object:
            link.world.recovery.lost(link.owner)
            return await loss(link, body)

        world.a.on(into.Freeze, dies)
        await world.supervisor.start("a", 60.0, "operator", "park")
        await world.until(lambda: session.ended)
        assert session.record.code == Code.RECOVERY_UNAVAILABLE


# Ends -----------------------------------------------------------------------------------------------


async def test_a_cancel_ends_a_parked_session_and_frees_its_memory(tmp_path: Path) -> None:
    """H11, H49, H97: bytes are overwritten before the memory is lent again."""
    async with world_with_park(tmp_path) as world:
        session = await parked(world)
        kept = room(world).get("s")
        assert kept is not None
        assert kept.lease is not None
        lease, arena = kept.lease, room(world)._arena
        with arena.region(lease) as view:
            assert any(view)
        await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        await world.until(lambda: room(world).at_rest)
        assert room(world).get("s") is None
        assert not any(arena._slice(lease))
        assert room(world).park_bytes()["memory"] == 0


async def test_time_parked_counts_for_lifetime_and_grace(tmp_path: Path) -> None:
    """A1, H13, H14: the clocks do not stop."""
    async with world_with_park(tmp_path) as world:
        old = await world.session("old", tokens=5)
        gone = await world.session("gone", tokens=5, on_disconnect="cancel")
        shut(world)
        await park(world)
        world.table.reader_left(gone)
        gone.unread_since = trio.current_time() - world.config.limits.disconnect_grace_s
        keeper = Keeper(world.config, world.table, wall=lambda: time.time())
        old.record = msgspec.structs.replace(old.record, max_lifetime_s=0.0)
        await keeper._end_due()
        assert (old.record.state, old.record.code) == ("failed", Code.LIFETIME_EXCEEDED)
        assert (gone.record.state, gone.record.code) == ("cancelled", Code.DISCONNECT_GRACE_EXPIRED)
        assert len(room(world)) == 0


@pytest.mark.parametrize("step", [into.Reserve, into.Prepare, into.Activate])
async def test_a_cancel_on_the_way_back_ends_it_once(tmp_path: Path, step: type) -> None:
    """H3, x1 to x4: whatever the step, both copies are freed."""
    async with world_with_park(tmp_path) as world:
        session = await parked(world)
        world.a.emits = False

        async def cancelled(link: Any, body: object) -> object:
            answer = await link.work(body)
            await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
            return answer

        world.a.on(step, cancelled)
        lend(world)
        await world.until(lambda: session.ended and session.move is None)
        assert session.record.state == "cancelled"
        await world.until(lambda: room(world).at_rest)
        assert len(room(world)) == 0
        told = world.told(into.Discard, into.Cancel, worker="a")
        assert told


# Disk and restarts ----------------------------------------------------------------------------------


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
    """B3, H142, H143: judged by the store as a worker's sessions are, and resumed natively."""
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
        if permitted:
            assert session.view().state == "running"
            assert session.received[: len(before)] == before
            assert world.recovery.replayed_tokens == len(PROMPT) + len(before) - 1
        else:
            assert (session.record.code, session.durable) == (Code.RECOVERY_UNAVAILABLE, len(before))


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


# Notices --------------------------------------------------------------------------------------------


async def test_a_reader_that_asks_is_told_and_the_others_see_tokens_alone(tmp_path: Path) -> None:
    """B3, B6, H20: id-less notices between the tokens; whoever comes while it is parked is told at once."""
    async with world_with_park(tmp_path) as world:
        session = await world.session(tokens=5)
        stopping = trio.Event()
        asked = Reader(session, 5, stopping, notices=True)
        plain = Reader(session, 5, stopping)
        shut(world)
        await park(world)
        (told,) = await anext(asked)
        assert (told.name, told.data, told.id, asked.cursor) == ("notice", b'{"notice":"parked"}', 5, 5)
        (late,) = await anext(Reader(session, 5, stopping, notices=True))
        assert late == told
        lend(world)
        await resumed(world, session)
        (over,) = await anext(asked)
        assert over.data == b'{"notice":"resumed"}'
        names = [[event.name for event in await anext(reader)] for reader in (asked, plain)]
        assert names == [["token"], ["token"]]
        await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        assert [event.name for event in await anext(asked)] == ["cancelled"]
        assert [event.name for event in await anext(plain)] == ["cancelled"]
