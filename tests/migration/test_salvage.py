"""A source lost while its sessions are copied: what has come is used, whatever else goes wrong (B24)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from swapd.errors import Code
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.messages.from_worker import Frozen, FrozenItem
from swapd.messages.generation import Owner
from swapd.migration.drains import DrainBook
from swapd.migration.ledger import CapacityLedger
from swapd.migration.records import drain_record
from swapd.store.drains import load_drain, save_drain, unpriced_drains
from swapd.views import SessionOutcome
from tests.migration.test_supervisor import by_session, drained
from tests.migration.world import PROMPT, Deed, ScriptedLink, World, loss, open_world, refusal

TOKENS = 12
BELOW = len(PROMPT) + TOKENS - 1
COPIED = BELOW // 4 * 4


async def leave(world: World, *deeds: Deed) -> SessionOutcome:
    """Drain worker a, which is lost after its sessions' full blocks have been copied; what became of `s`."""
    world.a.on(into.Quiesce, *deeds)
    begun = await world.supervisor.start("a", 60, "operator")
    return by_session(await drained(world, begun.id))["s"]


async def test_a_session_goes_on_from_the_blocks_that_its_move_had_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B24, H73: rebuilt on the move's target, only the rest computed; it is a replay all the same."""
    freed: list[str] = []

    def free(worker: str, session: str) -> None:
        freed.append(worker)
        CapacityLedger.free(world.ledger, worker, session)

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=TOKENS, allow_replay_fallback=True)
        monkeypatch.setattr(world.ledger, "free", free)
        outcome = await leave(world, loss)
        # Nobody else could have been given its room in between.
        assert set(freed) == {"a"}
        (start,) = world.bodies(into.Start, "b")
        (reserve,) = world.bodies(into.Reserve, "b")
        assert (start.salvage, start.epoch, start.spec) == (reserve.move, reserve.epoch, reserve.spec)
        assert world.bodies(into.Discard) == []
        assert (outcome.outcome, outcome.reason) == ("completed_replay", Code.SOURCE_LOST)
        assert (outcome.recomputed_tokens, outcome.reuse) == (BELOW - COPIED, None)
        assert world.recovery.replayed_tokens == BELOW - COPIED
        assert world.recovery.salvaged_tokens == COPIED
        assert (session.record.owner, session.record.epoch) == (world.b.owner, 2)
        await world.check_baseline()


async def test_a_source_that_came_back_as_another_process_was_lost_all_the_same(tmp_path: Path) -> None:
    """B24: it has been started again before the move notices, and does not know the session."""

    async def unknown(link: ScriptedLink, body: into.Freeze) -> object:
        world.lose("a")
        world.a.be_born()
        return Frozen(body.batch, (FrozenItem(body.items[0].move, "unknown"),), 0.0, 0.0)

    async with open_world(tmp_path) as world:
        await world.session(tokens=TOKENS, allow_replay_fallback=True)
        world.a.on(into.Freeze, unknown)
        begun = await world.supervisor.start("a", 60, "operator")
        outcome = by_session(await drained(world, begun.id))["s"]
        assert (outcome.outcome, outcome.recomputed_tokens) == ("completed_replay", BELOW - COPIED)
        assert len(world.bodies(into.Start, "b")) == 1
        await world.check_baseline()


async def test_what_was_copied_of_a_session_that_forbids_replay_is_thrown_away(tmp_path: Path) -> None:
    """H74, H145: salvage is a replay, so it needs the permission for one."""
    async with open_world(tmp_path) as world:
        await world.session(tokens=TOKENS)
        outcome = await leave(world, loss)
        assert (outcome.outcome, outcome.reason) == ("failed", Code.RECOVERY_UNAVAILABLE)
        assert world.bodies(into.Start) == []
        assert len(world.bodies(into.Discard, "b")) == 1
        await world.check_baseline()


async def test_a_target_that_does_not_take_it_up_frees_it_and_the_session_is_replayed(tmp_path: Path) -> None:
    """B24, H49: in doubt all is computed again; the room of the copy is not promised twice."""
    async with open_world(tmp_path) as world:
        await world.session(tokens=TOKENS, allow_replay_fallback=True)
        world.b.on(into.Start, refusal(Code.CAPACITY))
        outcome = await leave(world, loss)
        first, second = world.bodies(into.Start, "b")
        assert (bool(first.salvage), second.salvage) == (True, "")
        assert world.told(into.Start, into.Cancel, into.Discard, worker="b") == [
            "b Start",
            "b Cancel",
            "b Discard",
            "b Start",
        ]
        assert (outcome.outcome, outcome.recomputed_tokens) == ("completed_replay", BELOW)
        assert world.recovery.salvaged_tokens == 0
        await world.check_baseline()


@pytest.mark.parametrize("how", ["lost", "closed"])
async def test_a_copy_whose_target_may_not_have_the_session_is_left(tmp_path: Path, how: str) -> None:
    """B24: gone with its worker, or freed there because its owner wants the device back."""

    async def both(link: ScriptedLink, body: Any) -> object:
        if how == "lost":
            world.b.lose()
        else:
            world.admission.close("b", "lending", "taken back")
        return await loss(link, body)

    async with open_world(tmp_path, ["a", "b", "c"]) as world:
        session = await world.session(tokens=TOKENS, allow_replay_fallback=True)
        world.ledger.charge("c", "big", 150)  # so that the move goes to b
        outcome = await leave(world, both)
        assert session.record.owner == world.link("c").owner
        (start,) = world.bodies(into.Start)
        assert start.salvage == ""
        assert len(world.bodies(into.Discard, "b")) == (how == "closed")
        assert (outcome.outcome, outcome.recomputed_tokens) == ("completed_replay", BELOW)
        world.ledger.free("c", "big")
        await world.check_baseline()


async def test_the_copy_of_a_session_that_ends_before_it_is_taken_up_is_thrown_away(tmp_path: Path) -> None:
    """H49: cancelled by its client while the rest of the wave comes to its end."""
    held, cancelled = trio.Event(), trio.Event()

    async def grow(link: ScriptedLink, body: into.Import) -> object:
        if body.manifest.session == "s":
            world.a.speak("s", *range(200, 208))
            world.a.on(into.Export, loss)
        else:
            held.set()
            await cancelled.wait()
        return await link.work(body)

    async with open_world(tmp_path) as world:
        other = await world.session("other", tokens=TOKENS, allow_replay_fallback=True)
        session = await world.session(tokens=TOKENS, allow_replay_fallback=True)
        world.b.always(into.Import, grow)
        begun = await world.supervisor.start("a", 60, "operator")
        await held.wait()
        await world.until(lambda: session.salvage is not None)
        left = session.salvage
        assert left is not None
        await world.table.finish(session, "cancelled", None)
        cancelled.set()
        told = by_session(await drained(world, begun.id))
        assert session.record.state == "cancelled"
        assert told["other"].outcome == "completed_replay"
        assert [discard.move for discard in world.bodies(into.Discard, "b")] == [left.move]
        assert isinstance(other.record.owner, Owner)
        assert other.record.owner == world.b.owner
        assert other.rebuilt_positions == BELOW - COPIED
        await world.check_baseline()


async def test_what_a_replay_cost_is_added_when_it_is_known(tmp_path: Path) -> None:
    """H54, H73: the worker is drained long before a rebuilt session has given its first token."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=TOKENS, allow_replay_fallback=True)
        world.b.emits = False
        world.a.on(into.Quiesce, loss)
        begun = await world.supervisor.start("a", 60, "operator")
        outcome = by_session(await drained(world, begun.id))["s"]
        assert (outcome.outcome, outcome.recomputed_tokens) == ("completed_replay", None)
        assert world.recovery.replayed_tokens == 0
        for _ in range(2):  # a new coordinator, or a resend, says it again
            world.b.speak("s", 700, recomputed=2)
        await world.until(lambda: session.durable > TOKENS)
        assert by_session(await world.supervisor.view(begun.id))["s"].recomputed_tokens == 2
        assert world.recovery.replayed_tokens == 2
        record = await world.store.read(lambda db: load_drain(db, begun.id))
        assert record is not None
        assert [each.recomputed_tokens for each in record.sessions] == [2]


@pytest.mark.parametrize("asked", [out.Done(7), loss], ids=["told", "gone"])
async def test_a_replay_that_comes_to_no_token_costs_what_its_worker_says(
    tmp_path: Path, asked: object
) -> None:
    """H54, H209: the session ends first; a worker that is gone can say nothing any more."""

    async def tell(link: ScriptedLink, body: object) -> object:
        return asked if isinstance(asked, out.Done) else await loss(link, body)

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=TOKENS, allow_replay_fallback=True)
        world.b.emits = False
        world.a.on(into.Quiesce, loss)
        begun = await world.supervisor.start("a", 60, "operator")
        assert by_session(await drained(world, begun.id))["s"].recomputed_tokens is None
        world.b.always(into.Cancel, tell)
        await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        expected = 7 if isinstance(asked, out.Done) else 0

        async def stored() -> list[int | None]:
            record = await world.store.read(lambda db: load_drain(db, begun.id))
            assert record is not None
            return [each.recomputed_tokens for each in record.sessions]

        while await stored() == [None]:  # noqa: ASYNC110  # the store is written behind
            await trio.sleep(0.02)
        assert await stored() == [expected]
        assert by_session(await world.supervisor.view(begun.id))["s"].recomputed_tokens == expected
        assert world.recovery.replayed_tokens == expected


async def test_a_restart_forgets_no_replay_whose_cost_is_owed(tmp_path: Path) -> None:
    """H54, H209: the drain was over; who still replays says it with the first token, of others nobody can."""
    owed = SessionOutcome("s", "completed_replay", None, "planned", recomputed_tokens=None)
    known = SessionOutcome("t", "completed_replay", None, "planned", recomputed_tokens=3)
    book = DrainBook("drn", "a", "operator", 1.0, 60.0)
    for outcome in (owed, known, msgspec.structs.replace(owed, session="gone")):
        book.note(outcome)
    assert book.cancel(2.0)
    other = DrainBook("other", "a", "operator", 3.0, 60.0)
    other.note(known)
    assert other.cancel(4.0)
    async with open_world(tmp_path) as world:
        session = await world.session(worker="b", tokens=TOKENS, allow_replay_fallback=True)
        for each in (book, other):
            record = drain_record(each)
            await world.store.commit(lambda db, record=record: save_drain(db, record))  # type: ignore[misc]
        [record] = await world.store.read(unpriced_drains)
        assert record == drain_record(book)
        world.supervisor.remember(record)

        async def told() -> dict[str, int | None]:
            view = await world.supervisor.view("drn")
            assert (view.state, view.finished_at) == ("cancelled", 2.0)
            return {each.session: each.recomputed_tokens for each in view.sessions}

        assert await told() == {"s": None, "t": 3, "gone": 0}
        world.b.speak("s", 700, recomputed=5)
        await world.until(lambda: session.durable > TOKENS)
        assert await told() == {"s": 5, "t": 3, "gone": 0}
        assert await world.store.read(unpriced_drains) == []
