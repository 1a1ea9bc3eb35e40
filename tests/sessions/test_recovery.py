"""Lost owners and restarts: each session is resolved once, by what is durable (H142-H158)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from swapd.errors import Code
from swapd.messages import to_worker as into
from swapd.messages.from_worker import Inventory, InventoryItem, Phase
from swapd.sessions.live import LiveSession
from tests.migration.world import TIMERS, ScriptedLink, World, open_world, refusal, silence
from tests.store.failing import GatedConnection, GatedStore, close_gate


def holding(
    phase: Phase, epoch: int = 1, position: int = 6, session: str = "s", move: str = "m"
) -> Inventory:
    moved = move if phase in ("frozen", "prepared", "reserved") else None
    return Inventory((InventoryItem(session, epoch, phase, position, (), moved),))


async def attach(world: World, **held: Inventory) -> None:
    """All workers are found; those that are named hold something. They introduce themselves together."""
    async with trio.open_nursery() as nursery:
        for link in world.links.values():
            nursery.start_soon(world.recovery.attached, link, held.get(link.name, Inventory(())))
    await world.until(lambda: world.recovery.reconciled)


async def commit(world: World, session: LiveSession, worker: str = "b", epoch: int = 2) -> None:
    """As if a move had been committed before the restart."""
    owner = world.link(worker).owner
    assert owner is not None

    def op(db: Any) -> None:
        db.execute(
            "UPDATE sessions SET worker = ?, incarnation = ?, epoch = ? WHERE id = ?",
            (owner.worker, owner.incarnation, epoch, session.id),
        )

    await world.store.commit(op)
    world.table.change(session, owner=owner, epoch=epoch)


# After a restart ----------------------------------------------------------------------------------------


async def test_the_service_is_not_reconciled_before_every_session_is_resolved(tmp_path: Path) -> None:
    """H142, H143"""
    async with open_world(tmp_path, attach=False) as world:
        await world.session()
        await trio.testing.wait_all_tasks_blocked()
        assert not world.recovery.reconciled
        world.recovery.introduced("b")
        await trio.testing.wait_all_tasks_blocked()
        assert not world.recovery.reconciled
        await attach(world, a=holding("running"))
        assert world.recovery.outcomes == {"resumed": 1}


async def test_a_session_that_its_owner_still_has_goes_on(tmp_path: Path) -> None:
    """H144: what was not accepted is asked for again; the charge is restored."""
    async with open_world(tmp_path, attach=False) as world:
        session = await world.session()
        world.ledger.free("a", "s")
        await attach(world, a=holding("running", position=9))
        assert world.bodies(into.Resend) == [into.Resend("s", 1, 6, 14)]
        assert world.told(into.Start, into.Cancel) == []
        assert session.record.epoch == 1
        await world.check_baseline()


async def test_sessions_of_healthy_workers_go_on_while_a_slow_worker_is_waited_for(tmp_path: Path) -> None:
    """B38: running, frozen without a commit, committed; only what another worker may have waits."""
    async with open_world(tmp_path, ("a", "b", "c"), attach=False) as world, trio.open_nursery() as nursery:
        runs = await world.session("runs")
        await world.session("frozen")
        arrives = await world.session("arrives", worker="c")
        await world.session("away", worker="c")
        await commit(world, arrives, "a")
        held = [
            *holding("running", session="runs").items,
            *holding("frozen", session="frozen").items,
            *holding("prepared", 2, session="arrives", move="n").items,
            *holding("prepared", 2, session="away", move="o").items,
        ]
        nursery.start_soon(world.recovery.attached, world.a, Inventory(tuple(held)))
        nursery.start_soon(world.recovery.attached, world.b, Inventory(()))
        await world.until(lambda: len(world.bodies(into.Resend)) == 3)
        assert {told.session for told in world.bodies(into.Resend)} == {"runs", "frozen", "arrives"}
        assert world.bodies(into.Resume) == [into.Resume("frozen", 1)]
        assert world.told(into.Discard, into.Release, into.Cancel) == []
        world.a.speak("runs", 107)
        await world.until(lambda: runs.durable == 7)
        assert not world.recovery.reconciled
        nursery.start_soon(world.recovery.attached, world.link("c"), holding("frozen", session="arrives"))
        await world.until(lambda: world.recovery.reconciled)
        assert world.bodies(into.Discard, "a") == [into.Discard("o")]
        assert world.bodies(into.Release, "c") == [into.Release("arrives", 1)]
        assert world.told(into.Start) == []


async def test_a_move_without_a_commit_is_undone_on_both_sides(tmp_path: Path) -> None:
    """H146, H148, RQ"""
    async with open_world(tmp_path, attach=False) as world:
        session = await world.session()
        await attach(world, a=holding("frozen"), b=holding("prepared", epoch=2))
        assert world.bodies(into.Resume) == [into.Resume("s", 1)]
        assert world.bodies(into.Discard) == [into.Discard("m")]
        assert world.told(into.Activate) == []
        assert session.record.owner == world.a.owner
        assert world.recovery.outcomes == {"aborted": 1, "discarded": 1}
        await world.check_baseline()


async def test_a_move_with_a_commit_is_carried_forward(tmp_path: Path) -> None:
    """H147, RY: the target is activated, the source released."""
    async with open_world(tmp_path, attach=False) as world:
        session = await world.session()
        world.ledger.free("a", "s")
        await commit(world, session)
        await attach(world, a=holding("frozen"), b=holding("prepared", epoch=2))
        assert world.bodies(into.Activate) == [into.Activate((into.SessionEpoch("s", 2),))]
        assert world.bodies(into.Release) == [into.Release("s", 1)]
        assert world.told(into.Resume, into.Discard) == []
        assert world.recovery.outcomes == {"committed_forward": 1, "released": 1}
        await world.check_baseline()


@pytest.mark.parametrize("permitted", [True, False])
async def test_a_committed_session_whose_target_is_gone_comes_home(tmp_path: Path, permitted: bool) -> None:
    """B22, RY → RH: the pinned source takes it back under e+2; nothing is replayed, nothing fails."""
    async with open_world(tmp_path, attach=False) as world:
        session = await world.session(allow_replay_fallback=permitted)
        world.ledger.free("a", "s")
        await commit(world, session)
        world.b.be_born()
        await attach(world, a=holding("frozen"))
        assert world.bodies(into.Resume) == [into.Resume("s", 1, 3)]
        assert world.bodies(into.Resend)[0].epoch == 3
        assert (session.record.owner, session.record.epoch) == (world.a.owner, 3)
        stored = await world.stored()
        assert (stored.owner, stored.epoch, stored.state) == (world.a.owner, 3, "created")
        assert world.told(into.Start) == []
        assert world.recovery.outcomes == {"rehomed": 1}
        await world.check_baseline()


async def test_no_session_comes_home_once_its_target_gave_a_token(tmp_path: Path) -> None:
    """B22: the source's copy is too old by one token, so it is released and the session is lost."""
    async with open_world(tmp_path, attach=False) as world:
        session = await world.session()
        world.ledger.free("a", "s")
        await commit(world, session)
        world.b.speak("s", 7)
        await world.until(lambda: session.durable == 7)
        world.b.be_born()
        await attach(world, a=holding("frozen"))
        assert world.told(into.Resume) == []
        assert world.bodies(into.Release) == [into.Release("s", 1)]
        assert (session.record.state, session.record.accepted) == ("failed", 7)


async def test_a_session_that_came_home_before_a_second_crash_goes_on(tmp_path: Path) -> None:
    """B22, H143: the store had decided, the Resume was lost with the coordinator."""
    async with open_world(tmp_path, attach=False) as world:
        session = await world.session()
        await commit(world, session, "a", epoch=3)
        await attach(world, a=holding("frozen"))
        assert world.bodies(into.Resume) == [into.Resume("s", 1, 3)]
        assert world.told(into.Start, into.Release) == []
        assert world.recovery.outcomes == {"rehomed": 1}
        await world.check_baseline()


async def test_nothing_is_decided_while_a_worker_is_still_being_asked(tmp_path: Path) -> None:
    """B22, H145: the worker that comes last may be the one that has it frozen."""
    try:
        async with open_world(tmp_path, attach=False, store_class=GatedStore) as world:
            session = await world.session()
            world.ledger.free("a", "s")
            await commit(world, session)
            world.b.be_born()
            async with trio.open_nursery() as nursery:
                GatedConnection.gate.clear()
                nursery.start_soon(world.recovery.attached, world.a, holding("frozen"))
                nursery.start_soon(world.recovery.attached, world.b, Inventory(()))
                await trio.testing.wait_all_tasks_blocked(0.02)
                assert not session.over
                assert not world.recovery.reconciled
                GatedConnection.gate.set()
            await world.until(lambda: world.recovery.reconciled)
            assert session.record.owner == world.a.owner
    finally:
        GatedConnection.gate.set()


async def test_what_the_store_does_not_know_is_dropped_at_the_worker(tmp_path: Path) -> None:
    """H149: counted; the reservation of an admission that was never answered goes, too."""
    async with open_world(tmp_path, attach=False) as world:
        ended = await world.session("ended", tokens=1)
        await world.table.finish(ended, "cancelled", Code.SESSION_CANCELLED)
        world.journal.clear()
        held = Inventory(
            (
                *holding("running", session="nobody").items,
                *holding("frozen", session="ended").items,
                *holding("reserved", session="nobody", epoch=2).items,
            )
        )
        await attach(world, a=held)
        assert world.bodies(into.Cancel) == [into.Cancel("nobody", 1), into.Cancel("ended", 1)]
        assert world.bodies(into.Discard) == [into.Discard("m")]
        assert world.recovery.outcomes == {"discarded": 3}


async def test_one_lost_worker_with_a_session_that_permits_replay_and_one_that_does_not(
    tmp_path: Path,
) -> None:
    """H145, H150, H73, H74: resolved in one pass."""
    async with open_world(tmp_path, attach=False) as world:
        permits = await world.session("permits", allow_replay_fallback=True)
        forbids = await world.session("forbids")
        world.a.be_born()
        await attach(world)
        assert (forbids.record.state, forbids.record.code) == ("failed", Code.RECOVERY_UNAVAILABLE)
        assert not permits.ended
        assert (permits.record.epoch, len(world.bodies(into.Start))) == (2, 1)
        assert world.recovery.outcomes == {"replayed": 1, "failed": 1}
        assert world.recovery.replayed_tokens == 8
        await world.check_baseline()


async def test_a_session_that_has_shown_nothing_needs_no_permission(tmp_path: Path) -> None:
    """B18: running it anew repeats nothing."""
    async with open_world(tmp_path, attach=False) as world:
        session = await world.session(tokens=0)
        world.a.be_born()
        await attach(world)
        assert world.bodies(into.Start)[0].outputs == ()
        assert world.recovery.replayed_tokens == 0
        assert not session.over
        await world.check_baseline()


async def test_an_owner_that_does_not_have_its_session_has_lost_it(tmp_path: Path) -> None:
    """H145: it is connected, and its inventory says nothing of it."""
    async with open_world(tmp_path, attach=False) as world:
        session = await world.session(allow_replay_fallback=True)
        await attach(world)
        await world.until(lambda: session.record.epoch == 2 and not session.recovering)
        assert world.recovery.outcomes == {"replayed": 1}
        await world.check_baseline()


async def test_a_session_that_goes_on_while_another_worker_is_waited_for_is_kept(tmp_path: Path) -> None:
    """H144, B38: it was asked for the rest at once; what its worker said before is not held against it."""
    async with open_world(tmp_path, attach=False) as world:
        session = await world.session(worker="b")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.recovery.attached, world.b, holding("running", position=8))
            await trio.testing.wait_all_tasks_blocked()
            for token in range(6, 12):
                world.b.speak("s", token)
            await world.until(lambda: session.durable == 12)
            nursery.start_soon(world.recovery.attached, world.a, Inventory(()))
        await world.until(lambda: world.recovery.reconciled)
        assert world.told(into.Cancel, into.Start) == []
        assert [told.accepted for told in world.bodies(into.Resend)] == [6]
        assert (session.ended, session.record.owner) == (False, world.b.owner)
        assert world.recovery.outcomes == {"resumed": 1}
        await world.check_baseline()


async def test_a_session_given_to_a_worker_while_it_attaches_is_not_taken_for_lost(tmp_path: Path) -> None:
    """B31: the inventory is older than the session."""
    workers = ("a", "b", "c")
    async with open_world(tmp_path, workers, attach=False) as world, trio.open_nursery() as nursery:
        nursery.start_soon(world.recovery.attached, world.b, Inventory(()))
        # It waits for the others; a session starts there meanwhile.
        await trio.testing.wait_all_tasks_blocked()
        session = await world.session(worker="b", tokens=0)
        world.recovery.introduced("a")
        world.recovery.introduced("c")
        await world.until(lambda: world.recovery.reconciled)
        assert session.record.epoch == 1
        assert world.told(into.Start) == []
        await world.check_baseline()


# While running ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("permitted", [True, False])
async def test_a_worker_that_is_lost_has_its_sessions_decided_at_once(
    tmp_path: Path, permitted: bool
) -> None:
    """H158, B39, H71, H27: without a restart."""
    async with open_world(tmp_path) as world:
        session = await world.session(allow_replay_fallback=permitted)
        world.lose("a")
        assert session.state == "recovering"
        await world.until(lambda: not session.recovering)
        if permitted:
            assert session.record.owner == world.b.owner
            assert session.record.epoch == 2
            assert world.bodies(into.Start)[0].outputs == (101, 102, 103, 104, 105, 106)
        else:
            assert session.record.code == Code.RECOVERY_UNAVAILABLE
        await world.check_baseline()


async def test_late_tokens_of_a_lost_owner_are_not_accepted(tmp_path: Path) -> None:
    """H40, H104: owner first, then start."""
    async with open_world(tmp_path) as world:
        session = await world.session(allow_replay_fallback=True)
        world.b.emits = False
        world.lose("a")
        await world.until(lambda: not session.recovering)
        fenced = world.table.fenced.total()
        world.a.be_born()
        world.a.speak("s", 9, epoch=1)
        assert world.table.fenced.total() == fenced + 1
        assert session.received == session.outputs()


@pytest.mark.parametrize("deed", [refusal(Code.CAPACITY), silence], ids=["refused", "silent"])
async def test_a_replay_that_nobody_takes_ends_in_time(tmp_path: Path, deed: Any) -> None:
    """H71, A16: not `recovering` for ever; whoever may have started it is told to stop."""
    async with open_world(tmp_path) as world:
        session = await world.session(allow_replay_fallback=True)
        world.b.always(into.Start, deed)
        world.lose("a")
        await world.until(lambda: session.ended)
        assert session.record.code == Code.RECOVERY_UNAVAILABLE
        epochs = [start.epoch for start in world.bodies(into.Start)]
        assert epochs == sorted(set(epochs))
        assert {c.epoch for c in world.bodies(into.Cancel, "b")} >= set(epochs)
        assert world.recovery.outcomes == {"failed": 1}
        await world.check_baseline()


async def test_a_replay_that_is_refused_once_is_tried_again_under_a_new_epoch(tmp_path: Path) -> None:
    """H69: epochs strictly rise."""
    async with open_world(tmp_path) as world:
        session = await world.session(allow_replay_fallback=True)
        world.b.on(into.Start, refusal(Code.CAPACITY))
        world.lose("a")
        await world.until(lambda: not session.recovering)
        assert [start.epoch for start in world.bodies(into.Start)] == [2, 3]
        assert session.record.epoch == 3
        await world.check_baseline()


async def test_without_a_worker_to_replay_on_the_session_ends_in_time(tmp_path: Path) -> None:
    """A16, H71"""
    async with open_world(tmp_path, workers=("a",)) as world:
        session = await world.session(allow_replay_fallback=True)
        world.lose("a")
        await world.until(lambda: session.ended)
        assert session.record.code == Code.RECOVERY_UNAVAILABLE
        await world.check_baseline()


@pytest.mark.parametrize("worker_start_s", [60.0, 0.2])
async def test_a_worker_that_pauses_before_its_next_start_is_waited_for(
    tmp_path: Path, worker_start_s: float
) -> None:
    """A16, B32: for as long as a start may take, not only while one is under way; then the session ends."""
    timers = msgspec.structs.replace(TIMERS, decide_s=0.1, worker_start_s=worker_start_s)
    async with open_world(tmp_path, timers=timers) as world:
        session = await world.session(allow_replay_fallback=True)
        world.a.pauses = world.b.pauses = True
        world.b.lose()
        world.lose("a")
        if worker_start_s == 60.0:
            began = trio.current_time()
            while trio.current_time() < began + 4 * timers.decide_s:
                await world.table.wait_activity(0.05)
            assert session.view().state == "recovering"
            world.b.be_born()
            await world.until(lambda: session.view().state == "running")
            assert session.record.owner == world.b.owner
        else:
            await world.until(lambda: session.ended)
            assert session.record.code == Code.RECOVERY_UNAVAILABLE


async def test_a_worker_that_came_later_than_a_decision_may_take_is_given_the_session(tmp_path: Path) -> None:
    """A16, H71: who was waited for is asked once it is there, however long its start took."""
    timers = msgspec.structs.replace(TIMERS, decide_s=0.1, worker_start_s=60.0)
    async with open_world(tmp_path, timers=timers) as world:
        session = await world.session(allow_replay_fallback=True)
        world.a.pauses = True
        world.admission.close("b", "drain", "worker b is draining")
        world.lose("a")
        began = trio.current_time()
        while trio.current_time() < began + 4 * timers.decide_s:
            await world.table.wait_activity(0.05)
        world.a.be_born()
        world.table.notify()
        await world.until(lambda: not session.recovering)
        assert not session.over
        assert session.record.owner == world.a.owner


@pytest.mark.parametrize("when", ["waiting for a worker", "starting"])
async def test_a_session_cancelled_while_it_is_rebuilt_leaves_nothing_behind(
    tmp_path: Path, when: str
) -> None:
    """H3, H11, H49: not counted as replayed, told to stop wherever it may have begun."""

    async def cancel(link: ScriptedLink, body: into.Start) -> object:
        await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        return await link.work(body)

    async with open_world(tmp_path) as world:
        session = await world.session(allow_replay_fallback=True)
        if when == "starting":
            world.b.on(into.Start, cancel)
            world.lose("a")
        else:
            world.b.lose()
            world.lose("a")
            await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        await world.until(lambda: not session.recovering)
        assert session.record.state == "cancelled"
        assert "failed" not in world.recovery.outcomes
        if when == "starting":
            assert into.Cancel("s", 2) in world.bodies(into.Cancel, "b")
        else:
            assert world.recovery.outcomes == {}
        await world.check_baseline()


async def test_a_session_cancelled_beside_its_new_owner_is_never_started(tmp_path: Path) -> None:
    """x3, H49: the assignment is written first, then the end, in one group."""
    try:
        async with open_world(tmp_path, store_class=GatedStore) as world, trio.open_nursery() as nursery:
            session = await world.session(allow_replay_fallback=True)
            await close_gate(world.store)
            world.lose("a")
            await world.until(lambda: world.store.statistics().queue == 1)
            nursery.start_soon(world.table.finish, session, "cancelled", Code.SESSION_CANCELLED)
            await world.until(lambda: world.store.statistics().queue == 2)
            GatedConnection.gate.set()
            await world.until(lambda: session.ended and not session.recovering)
            assert world.told(into.Start) == []
            assert (await world.stored()).state == "cancelled"
            await world.check_baseline()
    finally:
        GatedConnection.gate.set()


async def test_a_moving_session_is_left_to_its_move(tmp_path: Path) -> None:
    """H77: nobody else decides meanwhile."""
    async with open_world(tmp_path) as world:
        session = await world.session()
        session.move = "m"
        world.lose("a")
        await trio.testing.wait_all_tasks_blocked()
        assert not session.recovering
        session.move = None
        world.recovery.look_at(session)
        await world.until(lambda: session.ended)


# On an operator's wish ----------------------------------------------------------------------------------


async def test_a_session_sent_to_another_worker_leaves_the_old_one(tmp_path: Path) -> None:
    """H73: rebuilt from its transcript, counted as recomputed; the old copy is freed."""
    async with open_world(tmp_path) as world:
        session = await world.session(allow_replay_fallback=True)
        world.admission.close("a", "drain", "draining")
        assert world.recovery.send_to_another(session, cold=True) is None
        await world.until(lambda: not session.recovering)
        (start,) = world.bodies(into.Start, "b")
        assert start.spec.salt != session.record.spec().salt
        assert world.bodies(into.Cancel, "a") == [into.Cancel("s", 1)]
        assert session.record.owner == world.b.owner
        await world.check_baseline()


async def test_a_session_sent_to_a_worker_that_does_not_take_it_is_not_forgotten(tmp_path: Path) -> None:
    """H71: it left its old owner before; it is tried again, or ends."""
    async with open_world(tmp_path) as world:
        session = await world.session(allow_replay_fallback=True)
        world.admission.close("a", "drain", "draining")
        world.b.on(into.Start, refusal(Code.CAPACITY))
        assert world.recovery.send_to_another(session, cold=False) is None
        await world.until(lambda: not session.recovering)
        assert [start.epoch for start in world.bodies(into.Start, "b")] == [2, 3]
        await world.check_baseline()


async def test_a_session_that_forbids_replay_is_not_sent(tmp_path: Path) -> None:
    """H7, H74"""
    async with open_world(tmp_path) as world:
        session = await world.session()
        assert world.recovery.send_to_another(session, cold=False) == Code.REPLAY_NOT_PERMITTED
        assert not session.recovering
