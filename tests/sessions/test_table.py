"""The way of a token from its owner to its readers, and the ends of sessions."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from swapd.errors import Code, SwapdError
from swapd.messages import to_worker as into
from swapd.messages.from_worker import TokenRun, Tokens
from swapd.sessions.subscription import Reader
from tests.migration.world import open_world
from tests.store.failing import GatedConnection, GatedStore


async def test_a_token_is_shown_and_credited_once_it_is_durable(tmp_path: Path) -> None:
    """H18, H33"""
    try:
        async with open_world(tmp_path, store_class=GatedStore) as world:
            session = await world.session(tokens=0)
            world.a.credited.clear()
            GatedConnection.gate.clear()
            world.a.speak("s", 5)
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert (session.durable, session.received, world.a.credited) == (0, [5], [])
            GatedConnection.gate.set()
            await world.until(lambda: session.durable == 1)
            assert await world.transcript() == [5]
            assert world.a.credited == ["s"]
            (grant,) = world.table.grants(["s", "nobody"])
            assert (grant.accepted, grant.limit) == (1, 9)
    finally:
        GatedConnection.gate.set()


@pytest.mark.parametrize("fault", ["other worker", "old epoch", "new epoch", "dead incarnation", "gap"])
async def test_what_does_not_come_from_the_owner_is_fenced_and_counted(tmp_path: Path, fault: str) -> None:
    """H19, H40, H104"""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=2)
        link = world.b if fault == "other worker" else world.a
        if fault == "dead incarnation":
            link.be_born()
        epoch = {"old epoch": 0, "new epoch": 2}.get(fault, 1)
        first = 4 if fault == "gap" else 3
        world.table.take_tokens(link, Tokens(1, (TokenRun("s", epoch, first, (9,)),)))
        assert world.table.fenced.total() == 1
        assert session.received == [101, 102]


async def test_tokens_of_a_session_that_is_gone_hurt_nobody(tmp_path: Path) -> None:
    """H3, H40"""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=1)
        await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        world.table.take_tokens(world.a, Tokens(1, (TokenRun("s", 1, 2, (9,)), TokenRun("x", 1, 1, (9,)))))
        assert await world.transcript() == [101]


@pytest.mark.parametrize(("durable", "reading", "limit"), [(0, True, 8), (95, True, 100), (3, False, 3)])
async def test_an_owner_may_compute_a_window_past_what_is_durable(
    tmp_path: Path, durable: int, reading: bool, limit: int
) -> None:
    """H32, H33, H36, B9: never past the budget, and nothing while nobody reads."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=durable, reading=reading)
        assert world.table.limit(session) == limit


async def test_readers_that_come_and_go_change_what_the_owner_may_do(tmp_path: Path) -> None:
    """H32, H14: the first that comes and the last that leaves."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=0, reading=False)
        assert session.unread_since is not None
        world.table.reader_came(session)
        world.table.reader_came(session)
        assert (world.a.credited, session.unread_since) == (["s"], None)
        world.table.reader_left(session)
        assert world.a.credited == ["s"]
        world.table.reader_left(session)
        assert world.a.credited == ["s", "s"]
        assert session.unread_since is not None


async def test_an_end_frees_the_worker_the_charge_and_the_readers(tmp_path: Path) -> None:
    """H11, H16, H20, H43"""
    async with open_world(tmp_path) as world, trio.open_nursery() as nursery:
        session = await world.session(tokens=2)
        read: list[str] = []

        async def reading() -> None:
            async for batch in Reader(session, None, trio.Event()):
                read.extend(event.name for event in batch)

        nursery.start_soon(reading)
        await trio.testing.wait_all_tasks_blocked()
        await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        await trio.testing.wait_all_tasks_blocked()
        assert read == ["created", "token", "token", "cancelled"]
        assert world.bodies(into.Cancel) == [into.Cancel("s", 1)]
        assert world.ledger.total_charges() == 0
        assert list(world.table) == []
        assert world.table.get("s") is session


async def test_a_second_end_changes_nothing(tmp_path: Path) -> None:
    """H3, H16: also when both are under way at once."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=2)
        ended: list[str] = []
        world.table.on_event = lambda kind, of: ended.append(of.record.state)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.table.finish, session, "cancelled", Code.SESSION_CANCELLED)
            nursery.start_soon(world.table.finish, session, "failed", Code.LIFETIME_EXCEEDED)
        await world.table.finish(session, "failed", Code.LIFETIME_EXCEEDED)
        assert len(ended) == 1
        stored = await world.stored()
        assert (stored.state, stored.code) == (session.record.state, session.record.code)
        assert len(world.bodies(into.Cancel)) == 1


async def test_an_engines_end_that_was_first_wins_over_a_cancel(tmp_path: Path) -> None:
    """H3, x3: one store order decides; the client's cancel finds a completed session."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=2)
        world.a.speak("s", 7, finish="length")
        await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        assert (session.record.state, session.record.finish_reason) == ("completed", "length")
        assert session.cursor == 4
        assert (await world.stored()).state == "completed"


async def test_a_caller_that_goes_while_its_cancel_is_written_leaves_an_ended_session(tmp_path: Path) -> None:
    """H11, H16: else it would be over for ever and never end: no terminal event, its worker never freed."""
    try:
        async with open_world(tmp_path, store_class=GatedStore) as world, trio.open_nursery() as nursery:
            session = await world.session(tokens=2)
            GatedConnection.gate.clear()
            nursery.start_soon(world.table.finish, session, "cancelled", Code.SESSION_CANCELLED)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            GatedConnection.gate.set()
            with trio.CancelScope(shield=True):
                await world.until(lambda: session.ended)
            assert world.bodies(into.Cancel) == [into.Cancel("s", 1)]
    finally:
        GatedConnection.gate.set()


async def test_a_session_that_ends_while_it_moves_keeps_its_charges_for_the_move_to_free(
    tmp_path: Path,
) -> None:
    """H49: whoever charged twice frees twice."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=2)
        session.move = "mov"
        assert world.ledger.charge("b", "s", 4)
        await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        assert world.ledger.total_charges() == 2


async def test_a_stop_string_ends_the_session_at_its_worker(tmp_path: Path) -> None:
    """H17, H36: the worker has decoded on; it is told."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=0, stop=("6 7",))
        world.a.speak("s", 5, 6, 7, 8)
        await world.until(lambda: session.ended)
        assert await world.transcript() == [5, 6, 7]
        assert world.bodies(into.Cancel) == [into.Cancel("s", 1)]


async def test_a_session_is_found_in_memory_or_in_the_store(tmp_path: Path) -> None:
    """H23, H15: an ended one that memory has let go is read again, the same bytes."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=3)
        await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        before = session.events(-1, 100)
        world.table.forget_before(float("inf"))
        assert world.table.get("s") is None
        again = await world.table.find("s")
        assert again is not session
        assert again.events(-1, 100) == before
        with pytest.raises(SwapdError) as unknown:
            await world.table.find("nobody")
        assert unknown.value.code == Code.SESSION_UNKNOWN


async def test_memory_keeps_so_many_tokens_of_ended_sessions_and_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B48: a few long ones must not cost what many short ones may; each is still found in the store."""
    monkeypatch.setattr("swapd.sessions.table.ENDED_TOKENS_KEPT", 20)
    async with open_world(tmp_path) as world:
        for name in ("one", "two", "three", "long"):
            session = await world.session(name, tokens=50 if name == "long" else 6)
            assert session.tokens == len(session.record.prompt) + (50 if name == "long" else 6)
            await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
            kept = [each for each in ("one", "two", "three", "long") if world.table.get(each)]
            expected = {"one": ["one"], "two": ["one", "two"], "three": ["two", "three"], "long": ["long"]}
            assert kept == expected[name]
        assert len((await world.table.find("one")).outputs()) == 6


# Readers -----------------------------------------------------------------------------------------------


async def test_a_reader_sees_each_event_once_and_then_the_end(tmp_path: Path) -> None:
    """H20, H21: strictly after its cursor."""
    async with open_world(tmp_path) as world, trio.open_nursery() as nursery:
        session = await world.session(tokens=3)
        read: list[int] = []
        reader = Reader(session, 2, trio.Event())
        assert reader.cursor == 2

        async def reading() -> None:
            async for batch in reader:
                read.extend(event.id for event in batch)

        nursery.start_soon(reading)
        await trio.testing.wait_all_tasks_blocked()
        world.a.speak("s", 7, finish="length")
        await world.until(lambda: read == [3, 4, 5])
        assert reader.cursor == 5


async def test_a_cursor_past_the_last_durable_event_is_refused(tmp_path: Path) -> None:
    """H24: to the event; tokens that are received and not durable do not count."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=3)
        session.received.append(9)
        Reader(session, 3, trio.Event())
        with pytest.raises(SwapdError) as refused:
            Reader(session, 4, trio.Event())
        assert refused.value.code == Code.CURSOR_AHEAD


async def test_readers_end_with_their_cursor_when_the_service_stops(tmp_path: Path) -> None:
    """H230"""
    async with open_world(tmp_path) as world, trio.open_nursery() as nursery:
        session = await world.session(tokens=3)
        stopping = trio.Event()
        reader = Reader(session, None, stopping)
        left = trio.Event()

        async def reading() -> None:
            async for _ in reader:
                pass
            left.set()

        nursery.start_soon(reading)
        await trio.testing.wait_all_tasks_blocked()
        stopping.set()
        session.wake()
        await left.wait()
        assert reader.cursor == 3
