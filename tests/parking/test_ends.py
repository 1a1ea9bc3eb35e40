"""Sessions that end, or are only waited for, while they are parked; and what their readers are told."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from swapd.errors import Code
from swapd.messages import to_worker as into
from swapd.sessions.keeper import Keeper
from swapd.sessions.subscription import Reader
from tests.migration.world import refusal
from tests.parking.world import PARK_BYTES, lend, park, parked, resumed, room, shut, world_with_park


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


async def test_nothing_is_left_behind_by_many_stays(tmp_path: Path) -> None:
    """H49, H97: there and back, cancelled there, and failed on the way back, over and over."""
    async with world_with_park(tmp_path) as world:
        for number in range(12):
            session = await parked(world, f"s{number}", tokens=5 + number)
            if number % 3 == 0:
                await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
                lend(world)
                continue
            if number % 3 == 1:
                world.a.on(into.Prepare, refusal(Code.TARGET_FULL))
            lend(world)
            await resumed(world, session)
            await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
            await world.until(lambda: room(world).at_rest)
            await world.check_baseline()
        assert room(world).park_bytes() == {"total": PARK_BYTES, "memory": 0, "disk": 0}
