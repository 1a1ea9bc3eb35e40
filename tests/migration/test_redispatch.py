"""Sessions of a drained worker of which nothing has come: they begin anew elsewhere (B18).

Nothing was delivered, so nothing is repeated and nobody's permission is needed. The store decides: one token
accepted, and the session is moved as others are.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import trio
import trio.testing

from swapd.errors import Code, SwapdError
from swapd.messages import to_worker as into
from swapd.messages.generation import Owner
from swapd.migration.drains import DrainBook
from swapd.migration.records import drain_record, redispatched, reopened
from swapd.sessions.live import LiveSession
from swapd.store.ledger import assign_owner
from swapd.store.moves import moves_of, plan_move
from swapd.views import DrainMode, DrainOrigin
from tests.migration.test_supervisor import by_session, drained, noted
from tests.migration.world import INFO, Deed, ScriptedLink, World, loss, open_world, refusal, silence


async def unbegun(world: World, name: str = "s", **fields: Any) -> LiveSession:
    """A session that waits for its first token."""
    return await world.session(name, tokens=0, **fields)


def nothing(db: sqlite3.Connection, target: Owner) -> None:
    """No row: these tests look at sessions."""


async def outcomes(world: World) -> list[tuple[Any, ...]]:
    """Of the moves in the store, in order, once each has one."""
    while True:
        rows = await world.rows("SELECT outcome, reason, state FROM moves ORDER BY key")
        if all(state == "finished" for _, _, state in rows):
            return [row[:2] for row in rows]
        await world.table.wait_activity(0.02)


@pytest.mark.parametrize("origin", get_args(DrainOrigin))
@pytest.mark.parametrize("mode", get_args(DrainMode))
async def test_what_has_not_begun_begins_at_the_target_whoever_drains_and_how(
    tmp_path: Path, origin: DrainOrigin, mode: DrainMode
) -> None:
    """B18, H49: a durable new epoch, the source drops it, the target starts from the prompt."""
    async with open_world(tmp_path, park_bytes=1 << 16) as world:
        session = await unbegun(world)
        begun = await world.supervisor.start("a", 60, origin, mode)
        view = await drained(world, begun.id)
        outcome = by_session(view)["s"]
        assert (outcome.outcome, outcome.reason, outcome.target) == ("completed_redispatch", None, "b")
        assert (outcome.recomputed_tokens, outcome.frozen_ms) == (0, None)
        stored = await world.stored()
        assert (stored.owner, stored.epoch) == (world.b.owner, 2)
        assert world.told(into.Start, into.Cancel, into.Reserve)[:2] == ["a Cancel", "b Start"]
        assert not world.told(into.Reserve)
        [start] = world.bodies(into.Start)
        assert (start.epoch, start.outputs) == (2, ())
        await world.until(lambda: session.durable > 0)
        assert await world.transcript() == session.outputs()
        assert await outcomes(world) == [("completed_redispatch", None)]
        await world.until(lambda: world.supervisor.tally.moves.total() > 0)
        assert world.supervisor.tally.moves == {"completed_redispatch": 1}
        assert world.recovery.replayed_tokens == 0
        await world.check_baseline()


async def test_what_the_old_owner_still_says_reaches_nobody(tmp_path: Path) -> None:
    """B18, H40: its tokens were of an epoch that is over."""
    async with open_world(tmp_path) as world:
        session = await unbegun(world)
        world.b.emits = False
        begun = await world.supervisor.start("a", 60, "operator")
        await drained(world, begun.id)
        world.a.speak("s", 666, epoch=1)
        assert world.table.fenced["owner"] == 1
        world.b.speak("s", 7)
        await world.until(lambda: session.durable == 1)
        assert await world.transcript() == [7]


async def test_no_arena_and_no_evidence_is_needed(tmp_path: Path) -> None:
    """B18: no KV goes anywhere."""
    async with open_world(tmp_path, arena_bytes=None, self_certify=False) as world:
        await unbegun(world)
        begun = await world.supervisor.start("a", 60, "operator")
        assert by_session(await drained(world, begun.id))["s"].outcome == "completed_redispatch"


async def test_without_room_it_waits_with_its_reason_and_goes_when_there_is_some(tmp_path: Path) -> None:
    """B18, H55: `blocked` at the deadline, as whatever is still in prefill."""
    async with open_world(tmp_path, workers=("a",)) as world:
        world.add_worker("b", msgspec.structs.replace(INFO, max_num_seqs=0))
        await unbegun(world)
        begun = await world.supervisor.start("a", 0, "operator")
        outcome = by_session(await drained(world, begun.id, "blocked"))["s"]
        assert (outcome.outcome, outcome.reason) == ("blocked", Code.NOT_ELIGIBLE)
        assert outcome.detail == "still in prefill"
        assert not world.told(into.Start)
        await world.check_baseline()
        world.ledger.set_worker("b", 256, 8, 4)
        world.table.notify()
        assert by_session(await drained(world, begun.id))["s"].outcome == "completed_redispatch"
        await world.check_baseline()


async def test_while_moves_are_off_nothing_leaves(tmp_path: Path) -> None:
    """H62, B18: what is not moved stays, also what could begin anew; its owner may still have the device."""
    async with open_world(tmp_path, migration_enabled=False) as world:
        session = await unbegun(world)
        begun = await world.supervisor.start("a", 0, "operator")
        outcome = by_session(await drained(world, begun.id, "blocked"))["s"]
        assert (outcome.outcome, outcome.reason) == ("blocked", Code.NOT_ELIGIBLE)
        assert session.record.owner == world.a.owner
        world.supervisor.begin_anew_soon(session)
        assert by_session(await drained(world, begun.id))["s"].outcome == "completed_redispatch"


async def test_a_first_token_that_comes_meanwhile_makes_it_a_session_like_others(tmp_path: Path) -> None:
    """B18: the store decides, in the order of what was asked of it; then the session moves with its KV."""
    async with open_world(tmp_path) as world:
        session = await unbegun(world)
        link = world.recovery.anew(session)
        world.a.speak("s", 101)  # on its way to the store before the new owner is
        how, why = await world.recovery.begin_anew(session, link, nothing)
        assert (how, why) == ("stayed", Code.NOT_ELIGIBLE)
        assert (session.record.owner, session.record.epoch, session.durable) == (world.a.owner, 1, 1)
        assert not world.told(into.Start, into.Cancel)
        await world.check_baseline()
        begun = await world.supervisor.start("a", 60, "operator")
        assert by_session(await drained(world, begun.id))["s"].outcome == "completed_native"
        assert (await world.transcript())[0] == 101


async def test_tokens_that_came_while_the_owner_did_not_change_come_again(tmp_path: Path) -> None:
    """H19: what is not taken meanwhile is asked for once more, or there would be a gap for ever."""
    async with open_world(tmp_path) as world:
        session = await unbegun(world)
        link = world.recovery.anew(session)
        world.a.speak("s", 101)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.recovery.begin_anew, session, link, nothing)
            while session.taking:
                await trio.lowlevel.checkpoint()
            world.a.speak("s", 102)
        assert session.outputs() == [101]
        assert world.bodies(into.Resend, "a") == [into.Resend("s", 1, 1, world.table.limit(session))]
        world.a.speak("s", 102)
        await world.until(lambda: session.durable == 2)
        assert await world.transcript() == [101, 102]


async def test_a_token_that_is_here_and_not_accepted_is_waited_for(tmp_path: Path) -> None:
    """B18, H56: it is about to be durable, and then it counts."""
    async with open_world(tmp_path) as world:
        session = await unbegun(world)
        session.received.append(7)
        begun = await world.supervisor.start("a", 60, "operator")
        assert (await noted(world, begun.id)).detail == "no accepted token"
        assert not world.told(into.Start)
        with pytest.raises(SwapdError) as refused:
            world.recovery.anew(session)
        assert refused.value.code == Code.NOT_ELIGIBLE
        session.received.clear()


@pytest.mark.parametrize("fault", [refusal(Code.CAPACITY), silence], ids=["refused", "silent"])
async def test_a_target_that_does_not_begin_it_gives_it_back(tmp_path: Path, fault: Deed) -> None:
    """B18, B22: a new epoch for the source, which begins it again; then the drain tries once more."""
    async with open_world(tmp_path) as world:
        world.a.emits = False
        session = await unbegun(world)
        world.b.on(into.Start, fault)
        begun = await world.supervisor.start("a", 60, "operator")
        view = await drained(world, begun.id)
        assert by_session(view)["s"].outcome == "completed_redispatch"
        starts = [(name, body.epoch) for name, body in world.journal if isinstance(body, into.Start)]
        assert starts == [("b", 2), ("a", 3), ("b", 4)]
        assert into.Cancel("s", 2) in world.bodies(into.Cancel, "b"), "whether it had begun is unknown"
        assert (session.record.owner, session.record.epoch) == (world.b.owner, 4)
        assert [outcome for outcome, _ in await outcomes(world)] == ["rehomed_source", "completed_redispatch"]
        await world.check_baseline()


async def test_a_target_that_dies_gives_it_back(tmp_path: Path) -> None:
    """B18: the source is there and draining; it begins it again rather than that it ends."""
    async with open_world(tmp_path) as world:
        session = await unbegun(world)
        world.b.on(into.Start, loss)
        await world.supervisor.start("a", 60, "operator")
        await world.until(lambda: session.durable == 1)
        assert (session.record.owner, session.record.epoch) == (world.a.owner, 3)
        assert await outcomes(world) == [("rehomed_source", Code.TARGET_LOST)]
        await world.check_baseline()


@pytest.mark.parametrize("third", [True, False], ids=["a third worker", "nobody"])
async def test_when_both_die_it_is_recoverys_as_any_session(tmp_path: Path, third: bool) -> None:
    """B18, H55, H70: nothing had come of it, so no permission is asked for; without a worker it fails."""

    async def all_die(link: ScriptedLink, body: object) -> object:
        link.world.lose("a")
        return await loss(link, body)

    async with open_world(tmp_path, workers=("a", "b", "c") if third else ("a", "b")) as world:
        session = await unbegun(world)
        world.b.always(into.Start, all_die)
        begun = await world.supervisor.start("a", 60, "operator")
        outcome = by_session(await drained(world, begun.id))["s"]
        if third:
            assert (outcome.outcome, outcome.reason) == ("completed_redispatch", Code.TARGET_FAILED)
            assert session.record.owner == world.link("c").owner
        else:
            assert (outcome.outcome, outcome.reason) == ("failed", Code.RECOVERY_UNAVAILABLE)
        assert [outcome for outcome, _ in await outcomes(world)] == ["failed"]
        await world.check_baseline()


async def test_a_source_that_dies_meanwhile_changes_nothing(tmp_path: Path) -> None:
    """B18: it is the target's already."""

    async def source_dies(link: ScriptedLink, body: object) -> object:
        link.world.lose("a")
        return await link.work(body)

    async with open_world(tmp_path) as world:
        session = await unbegun(world)
        world.b.on(into.Start, source_dies)
        begun = await world.supervisor.start("a", 60, "operator")
        assert by_session(await drained(world, begun.id))["s"].outcome == "completed_redispatch"
        assert (session.record.owner, session.record.epoch) == (world.b.owner, 2)
        await world.check_baseline()


async def test_a_source_that_is_lost_before_leaves_it_to_recovery(
    tmp_path: Path,
) -> None:
    """B18, H64: the same word for the same thing, and why."""
    async with open_world(tmp_path) as world:
        world.admission.close("b", "operator", "not yet")
        await unbegun(world)
        begun = await world.supervisor.start("a", 60, "operator")
        await noted(world, begun.id)
        world.admission.reopen("b", "operator")
        world.lose("a")
        outcome = by_session(await drained(world, begun.id))["s"]
        assert (outcome.outcome, outcome.reason) == ("completed_redispatch", Code.SOURCE_LOST)
        await world.check_baseline()


@pytest.mark.parametrize("first", ["end", "owner"])
async def test_a_client_that_cancels_meanwhile_has_its_end(tmp_path: Path, first: str) -> None:
    """B18, x3: the order in the store decides, and room is given back whichever it was."""
    async with open_world(tmp_path) as world:
        session = await unbegun(world)
        link = world.recovery.anew(session)
        ends: list[Any] = []

        async def begin() -> None:
            ends.append(await world.recovery.begin_anew(session, link, nothing))

        async with trio.open_nursery() as nursery:
            if first == "owner":
                nursery.start_soon(begin)
                while session.taking:
                    await trio.lowlevel.checkpoint()
            nursery.start_soon(world.table.finish, session, "cancelled", Code.SESSION_CANCELLED)
            while session.ending is None:
                await trio.lowlevel.checkpoint()
            if first == "end":
                nursery.start_soon(begin)
        stored = await world.stored()
        assert (stored.state, stored.code) == ("cancelled", Code.SESSION_CANCELLED)
        assert stored.epoch == (1 if first == "end" else 2)
        [(how, _)] = ends
        assert how in (["stayed"] if first == "end" else ["ended", "begun"])
        told = [name for name, body in world.journal if isinstance(body, into.Cancel)]
        assert "a" in told
        assert not world.told(into.Start) or "b" in told, "whoever may have begun it is told"
        assert not any(capacity.charges for capacity in map(world.ledger.worker, "ab") if capacity)


async def test_a_client_that_cancels_while_the_target_begins_is_told_so(tmp_path: Path) -> None:
    """B18, x5: the target has it, and drops it."""

    async def cancelled(link: ScriptedLink, body: object) -> object:
        session = link.world.table.get("s")
        assert session is not None
        await link.world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        return await link.work(body)

    async with open_world(tmp_path) as world:
        session = await unbegun(world)
        world.b.on(into.Start, cancelled)
        begun = await world.supervisor.start("a", 60, "operator")
        await drained(world, begun.id)
        assert session.record.state == "cancelled"
        assert into.Cancel("s", 2) in world.bodies(into.Cancel, "b")
        await world.check_baseline()


async def test_a_drain_that_is_cancelled_lets_it_come_to_its_end(tmp_path: Path) -> None:
    """B18, H61: neither here nor there is no end."""
    gate = trio.Event()

    async def slowly(link: ScriptedLink, body: object) -> object:
        await gate.wait()
        return await link.work(body)

    async with open_world(tmp_path) as world:
        session = await unbegun(world)
        world.b.on(into.Start, slowly)
        begun = await world.supervisor.start("a", 60, "operator")
        await world.until(lambda: bool(world.told(into.Start)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.supervisor.cancel, begun.id)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
        view = await world.supervisor.view(begun.id)
        assert view.state == "cancelled"
        assert by_session(view)["s"].outcome == "completed_redispatch"
        assert session.record.owner == world.b.owner
        assert world.admission.admitting("a")
        await world.check_baseline()


async def test_a_worker_that_still_has_it_is_not_drained(tmp_path: Path) -> None:
    """B18, H57: it is asked until it says that it has dropped it; its client does not wait for that."""
    async with open_world(tmp_path) as world:
        session = await unbegun(world)
        world.a.always(into.Cancel, silence)
        begun = await world.supervisor.start("a", 60, "operator")
        await world.until(lambda: session.durable == 1)
        await world.until(lambda: len(world.bodies(into.Cancel, "a")) >= 4)
        view = await world.supervisor.view(begun.id)
        assert (view.state, by_session(view)["s"].outcome) == ("running", "completed_redispatch")
        world.a.always(into.Cancel, ScriptedLink.work)
        await drained(world, begun.id)


async def test_a_drain_shows_who_is_on_the_way(tmp_path: Path) -> None:
    """H54: where to, and that the store has it there already."""
    gate = trio.Event()

    async def slowly(link: ScriptedLink, body: object) -> object:
        await gate.wait()
        return await link.work(body)

    async with open_world(tmp_path) as world:
        await unbegun(world)
        world.b.on(into.Start, slowly)
        begun = await world.supervisor.start("a", 60, "operator")
        await world.until(lambda: bool(world.told(into.Start)))
        now = by_session(await world.supervisor.view(begun.id))["s"]
        assert (now.outcome, now.target, now.phase) == (None, "b", "committed")
        gate.set()
        await drained(world, begun.id)


@pytest.mark.parametrize("begun_at", ["target", "elsewhere", "nobody"])
async def test_after_a_restart_the_row_says_what_it_was(tmp_path: Path, begun_at: str) -> None:
    """B18, H65, H180: written beside the new owner, so it is known whenever a coordinator dies after that."""
    async with open_world(tmp_path, attach=False) as world:
        session = await unbegun(world, worker="b")
        source, target = world.a.owner, world.b.owner
        assert source is not None
        assert target is not None
        row = redispatched("m", "s", "drn_1", source, target, 1, 1.0)

        def write(db: sqlite3.Connection) -> object:
            plan_move(db, row)
            return moves_of(db, "drn_1")

        [found] = await world.store.commit(write)  # type: ignore[misc]
        assert (found.state, found.outcome) == ("committed", "completed_redispatch")
        closed = msgspec.structs.replace(found, state="finished", reason=Code.COORDINATOR_RESTART)
        world.table.change(session, epoch=2 if begun_at == "target" else 3)
        if begun_at == "nobody":
            await world.table.finish(session, "failed", Code.RECOVERY_UNAVAILABLE)
        book = DrainBook("drn_1", "a", "operator", 1.0, 1e12)
        assert reopened(drain_record(book), [closed]).landed["s"].outcome == "completed_redispatch"
        world.supervisor.resume(drain_record(book), [closed])
        for name in ("a", "b"):
            world.recovery.introduced(name)
        outcome = by_session(await drained(world, "drn_1"))["s"]
        expected = "failed" if begun_at == "nobody" else "completed_redispatch"
        assert outcome.outcome == expected
        assert outcome.reason == (
            Code.RECOVERY_UNAVAILABLE if begun_at == "nobody" else Code.COORDINATOR_RESTART
        )


async def test_the_store_lets_only_an_unbegun_session_begin_anew(tmp_path: Path) -> None:
    """B18: a compare-and-set on (epoch, nothing accepted), with the row of its move in one transaction."""
    async with open_world(tmp_path) as world:
        target = world.b.owner
        assert target is not None
        owner = target
        await unbegun(world, "new")
        await world.session("old", tokens=1)

        def assign(db: sqlite3.Connection) -> list[int | None]:
            return [assign_owner(db, name, 1, owner, unbegun=True) for name in ("new", "old", "new")]

        assert await world.store.commit(assign) == [2, None, None]
        assert await world.store.commit(lambda db: assign_owner(db, "old", 1, owner)) == 2


async def test_a_preflight_says_what_begins_anew_and_what_has_no_room(tmp_path: Path) -> None:
    """B15, B18: the same rules on copies of the books, in the drain's order."""
    async with open_world(tmp_path, workers=("a",)) as world:
        world.add_worker("b", msgspec.structs.replace(INFO, max_num_seqs=3))
        await world.session("runs")
        for name in ("new1", "new2", "new3"):
            await unbegun(world, name, reading=False)
        told = {each.session: each for each in (await world.supervisor.preflight("a")).sessions}
        assert (told["runs"].would, told["runs"].target) == ("move", "b")
        assert {name for name, each in told.items() if each.would == "anew"} == {"new1", "new2"}
        assert {each.target for each in told.values() if each.would == "anew"} == {"b"}
        assert (told["new3"].would, told["new3"].reason) == ("stay", Code.TARGET_FULL)
        assert not world.told(into.Start)
        await world.check_baseline()
        begun = await world.supervisor.start("a", 60, "operator")
        await world.until(lambda: {s.id for s in world.table.owned_by("b")} == {"runs", "new1", "new2"})
        assert (await noted(world, begun.id, "new3")).reason == Code.NOT_ELIGIBLE


@pytest.mark.parametrize("mode", ["replay", "cold_replay"])
async def test_a_preflight_of_a_rebuild_says_so_too(tmp_path: Path, mode: DrainMode) -> None:
    """B15, B18"""
    async with open_world(tmp_path) as world:
        await unbegun(world)
        await world.session("may", allow_replay_fallback=True)
        told = {each.session: each for each in (await world.supervisor.preflight("a", mode)).sessions}
        assert {name: (each.would, each.target) for name, each in told.items()} == {
            "s": ("anew", "b"),
            "may": ("replay", "b"),
        }
