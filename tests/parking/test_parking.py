"""Parked and resumed, and every way in which that may fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from swapd.errors import Code
from swapd.messages import to_worker as into
from swapd.messages.generation import PARK
from swapd.views import SessionOutcome
from tests.migration.world import BLOCK_BYTES, INFO, loss, refusal
from tests.parking.world import lend, moves, park, parked, resumed, room, shut, world_with_park


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
        await world.check_baseline()
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
        assert world.supervisor.waits(first) == Code.NO_TARGET
        lend(world)
        await resumed(world, by_name[order[0]])
        assert by_name[order[1]].view().state == "parked"
        assert world.supervisor.waits(by_name[order[1]]) == Code.TARGET_FULL
        assert world.supervisor.waits(by_name[order[0]]) is None
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
        assert world.supervisor.waits(quiet) == Code.NO_READER
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
