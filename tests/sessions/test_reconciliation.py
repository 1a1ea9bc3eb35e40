"""What a start found of the last run: one entry a session, one reason each, and how long it took (H152)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio

from swapd.errors import Code
from swapd.messages import to_worker as into
from swapd.messages.from_worker import Inventory, InventoryItem, Phase
from swapd.messages.generation import Owner
from swapd.sessions import recovery
from swapd.sessions.reconciliation import LISTED_MAX, Reconciliation
from swapd.sessions.record import MoveRecord, MoveState
from swapd.views import ReconciliationView
from tests.migration.world import World, open_world
from tests.sessions.test_recovery import attach, commit, holding


def move(session: str, state: MoveState) -> MoveRecord:
    """A move of the last run that had no end."""
    here, there = Owner("a", "a.1"), Owner("b", "b.1")
    return MoveRecord("m", session, None, here, there, 1, "frozen", state, None, None, None, 0.0, None)


def entries(world: World) -> dict[str, tuple[str, str, str | None]]:
    report = world.recovery.report()
    return {one.session: (one.result, one.reason, one.worker) for one in report.sessions}


async def test_a_session_that_its_worker_still_has_is_reported_resumed(tmp_path: Path) -> None:
    """H144, H152"""
    async with open_world(tmp_path, attach=False) as world:
        await world.session()
        await attach(world, a=holding("running"))
        report = world.recovery.report()
        assert entries(world) == {"s": ("resumed", "owner_has_it", "a")}
        assert (report.state, report.counts, report.undecided) == ("done", {"resumed": 1}, 0)
        assert report.workers == {"a": "found", "b": "found"}
        assert report.sessions[0].accepted == 6
        assert report.found_to_ready_s is not None
        assert report.finished_at is not None


@pytest.mark.parametrize(
    ("phase", "state"), [("frozen", None), ("running", "planned"), ("frozen", "planned")]
)
async def test_a_move_without_a_commit_is_reported_aborted(
    tmp_path: Path, phase: Phase, state: MoveState | None
) -> None:
    """H146, H148, H152: once, whatever the two workers hold of it."""
    async with open_world(tmp_path, attach=False) as world:
        await world.session()
        if state is not None:
            world.recovery.findings.moved([move("s", state)])
        await attach(world, a=holding(phase), b=holding("reserved", epoch=2))
        assert entries(world) == {"s": ("aborted", "move_not_committed", "a")}


@pytest.mark.parametrize(("phase", "state"), [("prepared", None), ("running", "committed")])
async def test_a_move_with_a_commit_is_reported_carried_forward(
    tmp_path: Path, phase: Phase, state: MoveState | None
) -> None:
    """H147, H152"""
    async with open_world(tmp_path, attach=False) as world:
        session = await world.session()
        world.ledger.free("a", "s")
        await commit(world, session)
        if state is not None:
            world.recovery.findings.moved([move("s", state)])
        await attach(world, a=holding("frozen"), b=holding(phase, epoch=2))
        assert entries(world) == {"s": ("committed_forward", "move_committed", "b")}


async def test_a_session_that_came_home_is_reported_so(tmp_path: Path) -> None:
    """B22, H152"""
    async with open_world(tmp_path, attach=False) as world:
        session = await world.session()
        world.ledger.free("a", "s")
        await commit(world, session)
        world.b.be_born()
        await attach(world, a=holding("frozen"))
        assert entries(world) == {"s": ("rehomed", "target_lost", "a")}


async def test_replayed_and_failed_sessions_say_what_was_lost_and_what_it_cost(tmp_path: Path) -> None:
    """H73, H145, H152: one permits replay and one does not, resolved in one pass."""
    async with open_world(tmp_path, attach=False) as world:
        kept = await world.session("kept", allow_replay_fallback=True)
        await world.session("lost")
        world.a.lose()
        world.recovery.introduced("a")
        await world.recovery.attached(world.links["b"], Inventory(()))
        await world.until(lambda: world.recovery.reconciled)
        report = world.recovery.report()
        assert entries(world) == {
            "kept": ("replayed", "worker_absent", "b"),
            "lost": ("failed", "worker_absent", "a"),
        }
        by_id = {one.session: one for one in report.sessions}
        assert by_id["kept"].recomputed_tokens == kept.rebuilt_positions > 0
        assert by_id["lost"].code == Code.RECOVERY_UNAVAILABLE
        assert by_id["lost"].accepted == 6
        assert report.workers == {"a": "absent", "b": "found"}


@pytest.mark.parametrize("how", ["another incarnation", "the same, without it"])
async def test_a_worker_that_is_there_and_does_not_have_it_is_told_apart(tmp_path: Path, how: str) -> None:
    """H145, H152"""
    async with open_world(tmp_path, attach=False) as world:
        await world.session()
        if how == "another incarnation":
            world.a.be_born()
        await attach(world)
        reason = "worker_lost" if how == "another incarnation" else "session_lost"
        assert entries(world) == {"s": ("failed", reason, "a")}


async def test_what_the_store_does_not_know_is_reported_discarded(tmp_path: Path) -> None:
    """H149, H152"""
    async with open_world(tmp_path, attach=False) as world:
        items = (
            InventoryItem("stray", 1, "running", 3, (), None),
            InventoryItem("half", 2, "reserved", 0, (), "m"),
        )
        await attach(world, b=Inventory(items))
        assert entries(world) == {
            "stray": ("discarded", "session_unknown", "b"),
            "half": ("discarded", "session_unknown", "b"),
        }
        assert world.recovery.report().counts == {"discarded": 2}


async def test_workers_that_do_not_come_are_waited_for_in_vain_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H142, H155: then what only they could have is unprovable; the others' sessions go on."""
    monkeypatch.setattr(recovery, "INTRODUCTION_S", 2.0)
    async with open_world(tmp_path, attach=False) as world:
        await world.session("there", "b")
        lost = await world.session("away", "a")
        world.a.ready, world.a.state = None, "starting"  # found, and silent ever since
        assert world.recovery.report().state == "waiting"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.recovery.attached, world.links["b"], holding("running", session="there"))
            assert not world.recovery.reconciled
            await world.until(lambda: world.recovery.reconciled)
        assert entries(world) == {
            "there": ("resumed", "owner_has_it", "b"),
            "away": ("failed", "worker_absent", "a"),
        }
        assert lost.record.code == Code.RECOVERY_UNAVAILABLE
        assert world.recovery.report().workers == {"a": "awaited", "b": "found"}


async def test_the_report_tells_how_many_are_undecided(tmp_path: Path) -> None:
    """H142, H152: while a replay has not begun to run, the service is not reconciled."""
    async with open_world(tmp_path, attach=False) as world:
        await world.session(allow_replay_fallback=True)
        started, go_on = trio.Event(), trio.Event()

        async def slowly(link: object, body: into.Start) -> object:
            started.set()
            await go_on.wait()
            return await world.b.work(body)

        world.b.on(into.Start, slowly)
        world.a.lose()
        world.recovery.introduced("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.recovery.attached, world.links["b"], Inventory(()))
            await started.wait()
            report = world.recovery.report()
            assert (report.state, report.undecided) == ("deciding", 1)
            assert not world.recovery.reconciled
            go_on.set()
        await world.until(lambda: world.recovery.reconciled)
        assert world.recovery.report().undecided == 0


async def test_a_session_that_its_client_ends_meanwhile_is_reported_ended(tmp_path: Path) -> None:
    """H152: every session that was open has its entry."""
    async with open_world(tmp_path) as world:
        await world.session()
        again = recovery.Recovery(world.config, world.table, world.ledger, world.admission, world.links)
        async with trio.open_nursery() as nursery:
            await nursery.start(again.run)
            session = world.table.get("s")
            assert session is not None
            await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
            for name in world.links:
                again.introduced(name)
            await world.until(lambda: again.reconciled)
            [entry] = again.report().sessions
            assert (entry.result, entry.reason, entry.code) == ("ended", "session_over", "session_cancelled")
            nursery.cancel_scope.cancel()


async def test_a_second_start_comes_to_the_same(tmp_path: Path) -> None:
    """H143: what was decided is durable, so a kill in the middle changes nothing."""
    reports: list[ReconciliationView] = []
    async with open_world(tmp_path, attach=False) as world:
        session = await world.session()
        for _ in range(2):
            again = recovery.Recovery(world.config, world.table, world.ledger, world.admission, world.links)
            async with trio.open_nursery() as nursery:
                await nursery.start(again.run)
                nursery.start_soon(again.attached, world.links["a"], holding("frozen"))
                nursery.start_soon(again.attached, world.links["b"], holding("prepared", epoch=2))
                await world.until(lambda: again.reconciled)  # noqa: B023
                reports.append(again.report())
                nursery.cancel_scope.cancel()
        assert reports[0].counts == reports[1].counts == {"aborted": 1}
        assert (session.record.owner, session.record.epoch) == (world.a.owner, 1)
        assert world.bodies(into.Resume) == [into.Resume("s", 1)] * 2  # idempotent at the worker


async def test_each_entry_is_a_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """H152"""
    caplog.set_level(logging.INFO, "swapd.sessions.recovery")
    async with open_world(tmp_path, attach=False) as world:
        await world.session()
        await attach(world, a=holding("running"))
    lines = [record for record in caplog.records if record.message == "session reconciled"]
    assert [(line.session, line.outcome, line.reason) for line in lines] == [  # type: ignore[attr-defined]
        ("s", "resumed", "owner_has_it")
    ]
    assert any(record.message == "reconciled" for record in caplog.records)


def test_the_list_is_bounded_and_the_counts_are_not() -> None:
    """H152: an answer always fits its frame."""
    found = Reconciliation(["a"], 0.0)
    for number in range(LISTED_MAX + 5):
        found.dropped(f"s{number}", "a", 1, known=False)
    report = found.view(0)
    assert (len(report.sessions), report.left_out) == (LISTED_MAX, 5)
    assert report.counts == {"discarded": LISTED_MAX + 5}


def test_after_the_end_the_report_stays_as_it_is() -> None:
    """H152: what a worker that comes later holds is no part of the start."""
    found = Reconciliation(["a"], 0.0)
    found.all_met(1.0, 8.0)
    found.finish([], 3.5, 9.0)
    found.met("a", "found")
    assert found.dropped("late", "a", 1, known=False) is None
    report = found.view(0)
    assert (report.found_at, report.found_to_ready_s) == (8.0, 2.5)
    assert (report.sessions, report.workers) == ((), {"a": "awaited"})
