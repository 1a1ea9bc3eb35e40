"""Drains from the call to the last outcome, with workers that follow a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from swapd.errors import REASONS, Code, SwapdError
from swapd.messages import to_worker as into
from swapd.messages.from_worker import Frozen, FrozenItem
from swapd.migration.drains import DrainBook
from swapd.migration.records import drain_record
from swapd.sessions.record import MoveRecord
from swapd.store.drains import load_drain
from swapd.views import (
    Caller,
    DrainView,
    NewSession,
    SessionOutcome,
)
from tests.migration.world import (
    BLOCK_BYTES,
    INFO,
    Deed,
    ScriptedLink,
    World,
    loss,
    open_world,
    refusal,
    silence,
)
from tests.store.failing import CommitFails, CommitFailsStore, GatedStore, stalled


async def drained(world: World, drain: str, state: str = "drained") -> DrainView:
    """The drain once it is in that state and its record says so, too."""

    async def now() -> DrainView:
        return await world.supervisor.view(drain)

    while (await now()).state != state:
        await world.table.wait_activity(0.02)
    if state != "blocked":
        # The worker is reopened after the last write.
        await world.until(lambda: "a" not in world.admission.closed)
    return await now()


def by_session(view: DrainView) -> dict[str, SessionOutcome]:
    found = {outcome.session: outcome for outcome in view.sessions}
    assert len(found) == len(view.sessions), "one outcome a session"
    return found


async def noted(world: World, drain: str, session: str = "s") -> SessionOutcome:
    """What is said of a session, once something is: an outcome, or a reason for waiting."""
    while True:
        found = by_session(await world.supervisor.view(drain)).get(session)
        if found is not None and (found.outcome or found.reason) is not None:
            return found
        await world.table.wait_activity(0.02)


# The calls --------------------------------------------------------------------------------------------


async def test_a_worker_without_sessions_is_drained_at_once(tmp_path: Path) -> None:
    """H52"""
    async with open_world(tmp_path) as world:
        begun = await world.supervisor.start("a", 60, "operator")
        view = await drained(world, begun.id)
        assert view.sessions == ()
        assert view.finished_at is not None


async def test_every_session_of_the_worker_moves_and_the_worker_is_open_again(tmp_path: Path) -> None:
    """H50, H54, H57, H63, H75: one outcome each, with its figures; nothing stays on loan."""
    async with open_world(tmp_path) as world:
        for number in range(4):
            await world.session(f"s{number}", tokens=6 + number)
        begun = await world.supervisor.start("a", 60, "operator")
        assert begun.state == "running"
        view = await drained(world, begun.id)
        assert len(view.sessions) == 4
        for outcome in view.sessions:
            assert (outcome.outcome, outcome.reason, outcome.target) == ("completed_native", None, "b")
            assert (outcome.reuse, outcome.recomputed_tokens) == (1.0, 0)
            assert outcome.frozen_ms is not None
            assert outcome.precopied_bytes > 0
        assert world.admission.admitting("a")
        await world.check_baseline()
        record = await world.store.read(lambda db: load_drain(db, begun.id))
        assert record is not None
        assert record.state == "drained"
        by_session = {outcome.session: outcome for outcome in record.sessions}
        assert by_session == {outcome.session: outcome for outcome in view.sessions}
        rows = await world.rows("SELECT state, outcome FROM moves")
        assert rows == [("finished", "completed_native")] * 4


async def test_sessions_of_one_drain_move_side_by_side(tmp_path: Path) -> None:
    """B13: none waits for another's copy to finish."""
    together = trio.Event()
    copying: set[str] = set()

    async def wait_for_all(link: ScriptedLink, body: into.Export) -> object:
        copying.add(body.session)
        if len(copying) == 3:
            together.set()
        await together.wait()
        return await link.work(body)

    async with open_world(tmp_path) as world:
        for number in range(3):
            await world.session(f"s{number}")
        world.a.always(into.Export, wait_for_all)
        begun = await world.supervisor.start("a", 60, "operator")
        view = await drained(world, begun.id)
        assert {o.outcome for o in view.sessions} == {"completed_native"}
        assert len(world.bodies(into.Freeze)) == 1


async def test_a_drain_shows_moves_under_way_as_far_as_they_are(tmp_path: Path) -> None:
    """H54: phase, target and bytes while it runs; who waits is listed, too."""
    held = trio.Event()

    async def hold(link: ScriptedLink, body: into.Freeze) -> object:
        held.set()
        await trio.sleep_forever()
        return await link.work(body)

    async with open_world(tmp_path) as world:
        await world.session("moves", tokens=9)
        waits = await world.session("waits", tokens=0)
        waits.received.append(7)  # on its way to the store
        world.a.always(into.Freeze, hold)
        begun = await world.supervisor.start("a", 60, "operator")
        assert {each.session for each in begun.sessions} == {"moves", "waits"}
        await held.wait()
        for view in (await world.supervisor.view(begun.id), (await world.supervisor.views())[0]):
            found = by_session(view)
            assert found["waits"].phase == "planned"
            moves = found["moves"]
            assert (moves.outcome, moves.phase, moves.target) == (None, "precopying", "b")
            assert (moves.precopied_bytes, moves.rounds) == (2 * BLOCK_BYTES, 1)


async def test_older_drains_come_page_by_page(tmp_path: Path) -> None:
    """H65"""
    async with open_world(tmp_path) as world:
        names = []
        for _ in range(3):
            names.append((await world.supervisor.start("a", 60, "operator")).id)
            await drained(world, names[-1])
        assert [view.id for view in await world.supervisor.views()] == names[::-1]
        assert [view.id for view in await world.supervisor.views(names[1])] == names[:1]
        assert await world.supervisor.views(names[0]) == []
        assert await world.supervisor.views("nothing of that name") == []


async def test_no_more_moves_at_once_than_the_configuration_says(tmp_path: Path) -> None:
    """H76, H167: the others wait, and say for what."""
    async with open_world(tmp_path, max_concurrent_migrations=1) as world:
        for number in range(3):
            await world.session(f"s{number}")
        waiting = trio.Event()

        async def hold(link: ScriptedLink, body: into.Export) -> object:
            await waiting.wait()
            return await link.work(body)

        world.a.on(into.Export, hold)
        begun = await world.supervisor.start("a", 60, "operator")
        await world.until(lambda: len(world.bodies(into.Export)) == 1)
        view = await world.supervisor.view(begun.id)
        assert [o.reason for o in view.sessions if o.phase == "planned"] == [Code.ARENA_EXHAUSTED] * 2
        assert len(world.bodies(into.Reserve)) == 1
        waiting.set()
        view = await drained(world, begun.id)
        assert {o.outcome for o in view.sessions} == {"completed_native"}
        await world.check_baseline()


async def test_a_second_drain_of_a_worker_is_refused_with_the_first_ones_id(tmp_path: Path) -> None:
    """H50"""
    async with open_world(tmp_path) as world:
        world.full("b")
        await world.session(tokens=0)
        begun = await world.supervisor.start("a", 60, "operator")
        with pytest.raises(SwapdError) as refused:
            await world.supervisor.start("a", 60, "operator")
        assert (refused.value.code, refused.value.detail) == (Code.DRAIN_EXISTS, begun.id)
        assert refused.value.status == 409
        with pytest.raises(SwapdError) as unknown:
            await world.supervisor.start("nobody", 60, "operator")
        assert unknown.value.code == Code.WORKER_UNKNOWN
        with pytest.raises(SwapdError) as unknown:
            await world.supervisor.view("drn_nobody")
        assert unknown.value.code == Code.DRAIN_UNKNOWN


async def test_admission_is_closed_before_the_drain_is_written(tmp_path: Path) -> None:
    """H51: from the call on, nothing new lands on the worker; with no other, nothing is admitted."""
    async with open_world(tmp_path, workers=("a",)) as world:
        await world.session(tokens=0)
        saved = world.supervisor.on_drain
        closed_when_saved: list[bool] = []
        world.supervisor.on_drain = lambda view: closed_when_saved.append(not world.admission.admitting("a"))
        await world.supervisor.start("a", 60, "operator")
        assert closed_when_saved == [True]
        world.supervisor.on_drain = saved
        with pytest.raises(SwapdError) as refused:
            await world.admission.admit(Caller("tenant"), NewSession(prompt=[1], max_new_tokens=4))
        assert refused.value.code == Code.NO_ADMITTING_WORKER
        assert "draining" in refused.value.detail


async def test_a_worker_that_closes_while_another_is_asked_is_not_asked_any_more(tmp_path: Path) -> None:
    """H51: the choice was made before the drain began."""

    async def full(link: ScriptedLink, body: object) -> object:
        await link.world.supervisor.start("b", 60, "operator")
        raise SwapdError(Code.CAPACITY)

    async with open_world(tmp_path) as world:
        await world.session(worker="b", tokens=0)
        world.a.on(into.Start, full)
        with pytest.raises(SwapdError) as refused:
            await world.admission.admit(Caller("tenant"), NewSession(prompt=[1], max_new_tokens=4))
        assert refused.value.code == Code.CAPACITY
        assert not world.told(into.Start, worker="b")
        await world.check_baseline()


async def test_who_is_on_the_way_to_a_worker_that_closes_turns_back(tmp_path: Path) -> None:
    """OP, H51: before the commit nobody arrives where they would have to leave again at once."""

    async def closes(link: ScriptedLink, body: object) -> object:
        await link.world.supervisor.start("b", 60, "owner_pressure")
        return await link.work(body)

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=10)
        world.b.on(into.Prepare, closes)
        drain = await world.supervisor.start("a", 60, "operator")
        await world.until(lambda: session.move is None and bool(world.told(into.Resume)))
        assert world.told(into.Activate) == []
        (one,) = (await world.supervisor.view(drain.id)).sessions
        assert (one.outcome, one.reason) == ("aborted_source_resumed", Code.NO_TARGET)
        assert (await world.stored()).epoch == 1


async def test_a_drain_whose_caller_goes_away_is_a_drain_all_the_same(tmp_path: Path) -> None:
    """H65: in the store and here, or neither."""
    async with open_world(tmp_path) as world:
        world.full("b")
        await world.session(tokens=0)  # it stays: the drain is still there to be looked at
        with trio.CancelScope() as caller_gone:
            # Cancelled at its first wait, which is the disk's.
            caller_gone.cancel()
            await world.supervisor.start("a", 60, "operator")
        rows = await world.rows("SELECT id FROM drains")
        running = world.supervisor.draining("a")
        assert running is not None
        assert rows == [(running.id,)]


# Deadlines, waiting, natural ends -----------------------------------------------------------------------


async def test_a_deadline_ends_no_session_and_a_blocked_drain_goes_on(tmp_path: Path) -> None:
    """H58, B14, H85, H56: blocked with the reason, closed; drained by itself once that has passed."""
    async with open_world(tmp_path) as world:
        world.full("b")
        session = await world.session(tokens=0)
        begun = await world.supervisor.start("a", 0, "operator")
        view = await drained(world, begun.id, "blocked")
        (outcome,) = view.sessions
        assert (outcome.outcome, outcome.reason) == ("blocked", Code.NOT_ELIGIBLE)
        assert not session.over
        assert not world.admission.admitting("a")
        world.full("b", on=False)
        world.a.speak("s", 101)
        view = await drained(world, begun.id)
        assert by_session(view)["s"].outcome == "completed_native"
        assert world.admission.admitting("a")
        await world.check_baseline()


async def test_a_session_that_ends_by_itself_in_a_blocked_drain_says_so(tmp_path: Path) -> None:
    """H54, H58, A21: `blocked` is not its last word."""
    async with open_world(tmp_path, migration_enabled=False) as world:
        await world.session()
        begun = await world.supervisor.start("a", 0, "operator")
        view = await drained(world, begun.id, "blocked")
        assert by_session(view)["s"].reason == Code.MIGRATION_DISABLED  # H62
        world.a.speak("s", 7, finish="length")
        view = await drained(world, begun.id)
        outcome = by_session(view)["s"]
        assert (outcome.outcome, outcome.reason) == ("cancelled", Code.ALREADY_FINISHED)


async def test_a_move_that_came_back_cancelled_is_waited_for(tmp_path: Path) -> None:
    """H59, H86: the session finishes between precheck and freeze; the drain is drained once it has ended."""
    finishing = trio.Event()

    async def finished(link: ScriptedLink, body: into.Freeze) -> Frozen:
        finishing.set()
        return Frozen(body.batch, (FrozenItem(body.items[0].move, "finished"),), 0.0, 0.0)

    async with open_world(tmp_path) as world:
        await world.session()
        world.a.always(into.Freeze, finished)
        begun = await world.supervisor.start("a", 60, "operator")
        await finishing.wait()
        outcome = await noted(world, begun.id)
        while outcome.outcome is None:
            outcome = await noted(world, begun.id)
            await world.table.wait_activity(0.02)
        assert (outcome.outcome, outcome.reason) == ("cancelled", Code.ALREADY_FINISHED)
        assert (await world.supervisor.view(begun.id)).state == "running"
        world.a.speak("s", 7, finish="length")
        view = await drained(world, begun.id)
        assert by_session(view)["s"].outcome == "cancelled"
        await world.check_baseline()


async def test_a_session_cancelled_by_its_client_leaves_a_drained_worker(tmp_path: Path) -> None:
    """x1, H55, A21"""
    async with open_world(tmp_path) as world:
        world.full("b")
        session = await world.session(tokens=0)
        begun = await world.supervisor.start("a", 60, "operator")
        await noted(world, begun.id)
        await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        view = await drained(world, begun.id)
        outcome = by_session(view)["s"]
        assert (outcome.outcome, outcome.reason) == ("cancelled", Code.SESSION_CANCELLED)


async def test_a_drain_that_is_cancelled_before_it_is_durable_ends(tmp_path: Path) -> None:
    """H61: it can be seen while the store is slow, so it can be cancelled; the worker is open again."""
    async with open_world(tmp_path, store_class=GatedStore) as world:
        session = await world.session()
        async with trio.open_nursery() as nursery, stalled(world.store):
            nursery.start_soon(world.supervisor.start, "a", 60, "operator")
            await trio.testing.wait_all_tasks_blocked()
            [book] = world.supervisor.open_drains()
            nursery.start_soon(world.supervisor.cancel, book.id)
            await trio.testing.wait_all_tasks_blocked()
        assert (await world.supervisor.view(book.id)).state == "cancelled"
        assert world.admission.closed == {}
        assert session.record.owner == world.a.owner
        await world.check_baseline()


# Failures ----------------------------------------------------------------------------------------------

STEPS = [
    (into.Reserve, "b"),
    (into.Export, "a"),
    (into.Import, "b"),
    (into.Quiesce, "b"),
    (into.Quiesce, "a"),
    (into.Freeze, "a"),
    (into.Prepare, "b"),
    (into.Activate, "b"),
]


@pytest.mark.parametrize(("step", "asked"), STEPS, ids=[f"{w}-{s.__name__}" for s, w in STEPS])
@pytest.mark.parametrize("fault", ["refused", "silent"])
async def test_a_move_that_failed_is_tried_again_and_nothing_stays_on_loan(
    tmp_path: Path, step: type, asked: str, fault: str
) -> None:
    """H49, H67, H97, H156: at every step; the drain re-plans by itself, once its target is trusted again."""
    deed: Deed = refusal(Code.INTERNAL) if fault == "refused" else silence
    distrusted = asked == "b" and step is not into.Activate
    distrusted = distrusted and (fault == "silent" or step in (into.Import, into.Prepare))
    async with open_world(tmp_path) as world:
        session = await world.session()
        world.link(asked).on(step, deed)
        begun = await world.supervisor.start("a", 60, "operator")
        if distrusted:
            await world.until(lambda: world.supervisor.quarantine.of("b") is not None)
            await world.until(lambda: session.move is None)
            await world.supervisor.quarantine.clear("b")
        view = await drained(world, begun.id)
        assert by_session(view)["s"].outcome == "completed_native"
        assert session.record.owner == world.b.owner
        await world.check_baseline()
        rows = await world.rows("SELECT outcome FROM moves ORDER BY key")
        aborted = [("aborted_source_resumed",)] if step is not into.Activate else []
        assert rows == [*aborted, ("completed_native",)]


async def test_a_failing_move_is_not_tried_again_at_once(tmp_path: Path) -> None:
    """H67: a target that always refuses costs a few tries, not a storm of them."""
    now = 1000.0
    async with open_world(tmp_path, wall=lambda: now) as world:
        session = await world.session()
        world.b.always(into.Reserve, refusal(Code.TARGET_FULL))
        begun = await world.supervisor.start("a", 60, "operator")
        for tries, pause_s in ((1, 0.25), (2, 0.5), (3, 1.0)):
            await world.until(lambda: len(world.bodies(into.Reserve)) == tries and session.move is None)  # noqa: B023
            now += pause_s - 0.001
            for _ in range(5):
                world.table.notify()
                await trio.testing.wait_all_tasks_blocked()
                assert session.move is None
            now += 0.002
        await world.supervisor.cancel(begun.id)
        await world.check_baseline()


@pytest.mark.parametrize(("step", "asked"), [(s, w) for s, w in STEPS if w == "b"])
async def test_a_target_lost_on_the_way_leaves_the_session_with_its_source(
    tmp_path: Path, step: type, asked: str
) -> None:
    """AB0, AB1, RH: at every step; with no other target it waits there."""
    async with open_world(tmp_path) as world:
        session = await world.session()
        world.b.on(step, loss)
        begun = await world.supervisor.start("a", 60, "operator")
        await world.until(
            lambda: (
                world.b.ready is None
                and session.move is None
                and world.leases is not None
                and world.leases.active == 0  # the last thing of a move, and off this thread
            )
        )
        outcome = await noted(world, begun.id)
        expected = "rehomed_source" if step is into.Activate else "aborted_source_resumed"
        assert (outcome.outcome, outcome.reason) == (expected, Code.TARGET_LOST)
        assert (await world.stored()).owner == world.a.owner
        await world.check_baseline()
        world.b.be_born()
        view = await drained(world, begun.id)
        assert by_session(view)["s"].outcome == "completed_native"
        await world.check_baseline()


@pytest.mark.parametrize(("step", "asked"), [(s, w) for s, w in STEPS if w == "a"])
@pytest.mark.parametrize("permitted", [True, False])
async def test_a_source_lost_on_the_way_is_resolved_as_any_lost_owner(
    tmp_path: Path, step: type, asked: str, permitted: bool
) -> None:
    """H64, H158, OL: replayed where its client permits that, else ended; the drain waits to say which."""
    async with open_world(tmp_path) as world:
        session = await world.session(allow_replay_fallback=permitted)
        world.a.on(step, loss)
        begun = await world.supervisor.start("a", 60, "operator")
        view = await drained(world, begun.id)
        outcome = by_session(view)["s"]
        if permitted:
            assert (outcome.outcome, outcome.reason) == ("completed_replay", Code.SOURCE_LOST)
            assert session.record.owner == world.b.owner
            assert world.bodies(into.Start)[0].outputs == (101, 102, 103, 104, 105, 106)
            # H73: counted, never called native. Of 8 positions, those of the blocks copied before are there.
            copied = 0 if step is into.Export else 8
            assert world.recovery.replayed_tokens == outcome.recomputed_tokens == 8 - copied
            assert world.recovery.salvaged_tokens == copied
            assert outcome.reuse is None
        else:
            assert (outcome.outcome, outcome.reason) == ("failed", Code.RECOVERY_UNAVAILABLE)
            assert (session.record.state, session.record.accepted) == ("failed", 6)
        await world.check_baseline()
        rows = await world.rows("SELECT outcome, reason FROM moves")
        assert rows == [("failed", Code.SOURCE_LOST)]


async def test_sessions_that_memory_has_let_go_are_told_as_they_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H54, H64: however many end together, the drain reads from the store what became of each."""
    monkeypatch.setattr("swapd.sessions.table.ENDED_KEPT", 1)
    async with open_world(tmp_path) as world:
        for name in ("one", "two", "three"):
            await world.session(name, allow_replay_fallback=False)
        world.a.on(into.Export, loss)
        begun = await world.supervisor.start("a", 60, "operator")
        told = by_session(await drained(world, begun.id))
        assert sum(world.table.get(name) is not None for name in told) == 1
        assert {(one.outcome, one.reason) for one in told.values()} == {("failed", Code.RECOVERY_UNAVAILABLE)}
        assert len(told) == 3


@pytest.mark.parametrize("step", [into.Export, into.Freeze])
@pytest.mark.parametrize("permitted", [True, False])
async def test_a_session_that_its_worker_does_not_know_is_not_tried_again(
    tmp_path: Path, step: type, permitted: bool
) -> None:
    """H56: it is as good as lost, so what becomes of it is decided at once."""

    async def unknown(link: ScriptedLink, body: Any) -> object:
        if isinstance(body, into.Freeze):
            return Frozen(body.batch, (FrozenItem(body.items[0].move, "unknown"),), 0.0, 0.0)
        raise SwapdError(Code.SESSION_UNKNOWN)

    async with open_world(tmp_path) as world:
        session = await world.session(allow_replay_fallback=permitted)
        world.a.always(step, unknown)
        begun = await world.supervisor.start("a", 60, "operator")
        view = await drained(world, begun.id)
        outcome = by_session(view)["s"]
        assert outcome.outcome == ("completed_replay" if permitted else "failed")
        assert session.ended != permitted
        assert len(world.bodies(into.Reserve)) == 1
        assert world.told(into.Resume) == []
        await world.check_baseline()


@pytest.mark.parametrize("permitted", [True, False])
async def test_a_session_without_any_copy_after_its_commit_is_decided_at_once(
    tmp_path: Path, permitted: bool
) -> None:
    """H70: the target is there but does not have it, and the source is gone."""

    async def unknown(link: ScriptedLink, body: into.Activate) -> object:
        link.world.a.lose()
        raise SwapdError(Code.INTERNAL)

    async with open_world(tmp_path) as world:
        session = await world.session(allow_replay_fallback=permitted)
        world.b.always(into.Activate, unknown)
        begun = await world.supervisor.start("a", 60, "operator")
        view = await drained(world, begun.id)
        outcome = by_session(view)["s"].outcome
        assert outcome == ("completed_replay" if permitted else "failed")
        assert session.ended != permitted
        await world.check_baseline()


async def test_an_idle_session_of_a_drained_worker_that_dies_is_resolved(tmp_path: Path) -> None:
    """H64: it was not moving when the worker went."""
    async with open_world(tmp_path, migration_enabled=False) as world:
        await world.session("permits", allow_replay_fallback=True)
        await world.session("forbids")
        begun = await world.supervisor.start("a", 60, "operator")
        await noted(world, begun.id, "forbids")
        world.lose("a")
        view = await drained(world, begun.id)
        found = by_session(view)
        assert found["permits"].outcome == "completed_replay"
        assert (found["forbids"].outcome, found["forbids"].reason) == ("failed", Code.RECOVERY_UNAVAILABLE)
        await world.check_baseline()


# Cancelling --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "asked"), STEPS[:-1], ids=[f"{w}-{s.__name__}" for s, w in STEPS[:-1]])
async def test_a_cancelled_drain_brings_its_moves_to_a_clean_end_first(
    tmp_path: Path, step: type, asked: str
) -> None:
    """H61, d1, d2: never left frozen; the worker is open when the call returns."""
    reached, go = trio.Event(), trio.Event()

    async def hold(link: ScriptedLink, body: object) -> object:
        reached.set()
        await go.wait()
        return await link.work(body)

    async with open_world(tmp_path) as world, trio.open_nursery() as nursery:
        session = await world.session(tokens=10)
        world.link(asked).on(step, hold)
        begun = await world.supervisor.start("a", 60, "operator")
        await reached.wait()
        views: list[DrainView] = []

        async def cancel() -> None:
            views.append(await world.supervisor.cancel(begun.id))
            assert world.admission.admitting("a")
            assert session.move is None

        nursery.start_soon(cancel)
        await trio.testing.wait_all_tasks_blocked()
        assert not views, "a move is still under way"
        assert not world.admission.admitting("a")
        go.set()
        await world.until(lambda: bool(views))
        assert views[0].state == "cancelled"
        outcome = by_session(views[0])["s"]
        assert (outcome.outcome, outcome.reason) == ("cancelled", Code.DRAIN_CANCELLED)
        assert (session.record.owner, session.record.epoch) == (world.a.owner, 1)
        await world.check_baseline()
        # A second cancel changes nothing, and the record says the same.
        assert (await world.supervisor.cancel(begun.id)).state == "cancelled"
        record = await world.store.read(lambda db: load_drain(db, begun.id))
        assert record is not None
        assert record.state == "cancelled"


async def test_a_drain_cancelled_after_the_commit_lets_the_move_complete(tmp_path: Path) -> None:
    """H61, d3: the session stays at its target, then the source is open again."""
    reached, go = trio.Event(), trio.Event()

    async def hold(link: ScriptedLink, body: object) -> object:
        reached.set()
        await go.wait()
        return await link.work(body)

    async with open_world(tmp_path) as world, trio.open_nursery() as nursery:
        session = await world.session()
        world.b.on(into.Activate, hold)
        begun = await world.supervisor.start("a", 60, "operator")
        await reached.wait()
        nursery.start_soon(world.supervisor.cancel, begun.id)
        await trio.testing.wait_all_tasks_blocked()
        go.set()
        view = await drained(world, begun.id, "cancelled")
        assert by_session(view)["s"].outcome == "completed_native"
        assert session.record.owner == world.b.owner
        assert world.admission.admitting("a")
        await world.check_baseline()


async def test_a_session_that_ends_just_before_its_drain_is_cancelled_has_its_own_outcome(
    tmp_path: Path,
) -> None:
    """H54: exactly one outcome a session, also where the drain never looked again after the end."""
    async with open_world(tmp_path, migration_enabled=False) as world:
        session = await world.session()
        await world.session("stays")
        begun = await world.supervisor.start("a", 60, "operator")
        await noted(world, begun.id)
        await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        found = by_session(await world.supervisor.cancel(begun.id))
        assert (found["s"].outcome, found["s"].reason) == ("cancelled", Code.SESSION_CANCELLED)
        assert (found["stays"].outcome, found["stays"].reason) == ("cancelled", Code.DRAIN_CANCELLED)


async def test_a_blocked_drain_can_be_cancelled_and_a_new_one_begun(tmp_path: Path) -> None:
    """H60, H157"""
    async with open_world(tmp_path) as world:
        world.full("b")
        await world.session(tokens=0)
        first = await world.supervisor.start("a", 0, "operator")
        await drained(world, first.id, "blocked")
        assert (await world.supervisor.cancel(first.id)).state == "cancelled"
        assert world.admission.admitting("a")
        second = await world.supervisor.start("a", 60, "operator")
        world.full("b", on=False)
        world.a.speak("s", 101)
        view = await drained(world, second.id)
        assert by_session(view)["s"].outcome == "completed_native"
        assert [v.id for v in await world.supervisor.views()] == [second.id, first.id]


# What cannot move ---------------------------------------------------------------------------------------


async def test_an_arena_that_is_too_small_refuses_with_both_sizes_and_serving_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H62, H90: the operator reads what would do; it is logged once, not at every look."""
    async with open_world(tmp_path, arena_bytes=8192) as world:
        session = await world.session()
        begun = await world.supervisor.start("a", 60, "operator")
        outcome = await noted(world, begun.id)
        assert (outcome.outcome, outcome.reason) == (None, Code.ARENA_TOO_SMALL)
        needed = -(-103 // 4) * 4096
        assert outcome.detail == f"{needed} bytes needed, the arena has 8192"
        for _ in range(5):
            world.table.notify()
            await trio.testing.wait_all_tasks_blocked()
        assert sum(r.message == "move refused" for r in caplog.records) == 1
        world.a.speak("s", 7)
        await world.until(lambda: session.durable == 7)
        await world.check_baseline()


@pytest.mark.parametrize(("pages", "moves"), [(26, True), (25, False)])
async def test_a_session_moves_through_an_arena_of_exactly_its_size(
    tmp_path: Path, pages: int, moves: bool
) -> None:
    """H95, decision 6: it is the snapshot's limit; with a page less nothing is reserved or copied."""
    async with open_world(tmp_path, arena_bytes=pages * 4096) as world:
        await world.session()  # 103 positions in blocks of 4, each a page
        begun = await world.supervisor.start("a", 60, "operator")
        if moves:
            view = await drained(world, begun.id)
            assert by_session(view)["s"].outcome == "completed_native"
            return
        assert (await noted(world, begun.id)).reason == Code.ARENA_TOO_SMALL
        assert world.told(into.Reserve, into.Export, into.Import) == []


async def test_without_an_arena_nothing_moves_and_the_reason_says_why(tmp_path: Path) -> None:
    """H92, A6"""
    async with open_world(tmp_path, arena_bytes=None) as world:
        await world.session()
        begun = await world.supervisor.start("a", 60, "operator")
        outcome = await noted(world, begun.id)
        assert (outcome.reason, outcome.detail) == (Code.ARENA_UNAVAILABLE, "none")
        await world.check_baseline()


async def test_moves_wait_for_room_in_the_arena(tmp_path: Path) -> None:
    """B27: one lease is all that fits; one after the other they leave."""
    async with open_world(tmp_path, arena_bytes=26 * 4096) as world:
        for number in range(3):
            await world.session(f"s{number}")
        begun = await world.supervisor.start("a", 60, "operator")
        view = await drained(world, begun.id)
        assert {o.outcome for o in view.sessions} == {"completed_native"}
        await world.check_baseline()


@pytest.mark.parametrize(
    ("changes", "info", "reason"),
    [
        ({"self_certify": False}, INFO, Code.NO_EDGE),
        ({"migration_enabled": False}, INFO, Code.MIGRATION_DISABLED),
        ({}, msgspec.structs.replace(INFO, fingerprint="other"), Code.NO_EDGE),
        ({}, msgspec.structs.replace(INFO, max_num_seqs=0), Code.TARGET_FULL),
        ({}, msgspec.structs.replace(INFO, usable_blocks=25), Code.TARGET_FULL),
    ],
    ids=["no certificate", "disabled", "other fingerprint", "no slot", "no room"],
)
async def test_what_may_not_move_waits_with_its_reason(
    tmp_path: Path, changes: dict[str, Any], info: Any, reason: Code
) -> None:
    """H55, H62, H48, H129, H133"""
    async with open_world(tmp_path, workers=("a",), **changes) as world:
        world.add_worker("b", info)
        await world.session()
        begun = await world.supervisor.start("a", 60, "operator")
        assert (await noted(world, begun.id)).reason == reason
        assert not world.told(into.Reserve)
        await world.check_baseline()


async def test_a_full_target_is_named_with_those_that_hold_it(tmp_path: Path) -> None:
    """H48: the reason's sentence, and the holders; a session that has ended is none of them."""
    async with open_world(tmp_path, workers=("a",)) as world:
        world.add_worker("b", msgspec.structs.replace(INFO, max_num_seqs=3))
        await world.session("holder", worker="b")
        await world.session("other", worker="b")
        over = await world.session("over", worker="b")
        over.move = "mov"  # its charge is its move's to free, so for a moment it outlives the session
        await world.table.finish(over, "cancelled", Code.SESSION_CANCELLED)
        await world.session("s")
        begun = await world.supervisor.start("a", 60, "operator")
        outcome = await noted(world, begun.id)
        assert (outcome.reason, outcome.detail) == (Code.TARGET_FULL, "held by holder, other")
        assert REASONS[Code.TARGET_FULL].sentence == "target already holds the maximum active sessions"
        over.move = None
        world.ledger.free("b", "over")
        world.table.notify()
        view = await drained(world, begun.id)
        assert by_session(view)["s"].outcome == "completed_native"
        await world.check_baseline()


async def test_many_holders_are_counted_beyond_the_first(tmp_path: Path) -> None:
    """H48: a reason stays readable."""
    async with open_world(tmp_path, workers=("a",)) as world:
        world.add_worker("b", msgspec.structs.replace(INFO, max_num_seqs=18, usable_blocks=2000))
        for number in range(18):
            await world.session(f"h{number:02}", worker="b", tokens=0)
        await world.session("s")
        begun = await world.supervisor.start("a", 60, "operator")
        detail = (await noted(world, begun.id)).detail
        assert detail is not None
        assert detail.startswith("held by h00, h01, ")
        assert detail.endswith("h15 and 2 more")


@pytest.mark.parametrize(("received", "detail"), [(0, "still in prefill"), (1, "no accepted token")])
async def test_a_session_that_is_not_eligible_says_how_far_it_is(
    tmp_path: Path, received: int, detail: str
) -> None:
    """H56: both are worth waiting for."""
    async with open_world(tmp_path) as world:
        world.full("b")
        session = await world.session(tokens=0)
        session.received += [7] * received
        begun = await world.supervisor.start("a", 60, "operator")
        outcome = await noted(world, begun.id)
        assert (outcome.reason, outcome.detail) == (Code.NOT_ELIGIBLE, detail)
        assert REASONS[Code.NOT_ELIGIBLE].sentence == "session has not reached an eligible boundary"
        session.received.clear()
        world.full("b", on=False)
        world.a.speak("s", 101)
        view = await drained(world, begun.id)
        assert by_session(view)["s"].outcome == "completed_native"


async def test_two_workers_that_drain_do_not_swap_their_sessions(tmp_path: Path) -> None:
    """A24"""
    async with open_world(tmp_path) as world:
        await world.session("s", tokens=0)
        await world.session("t", worker="b", tokens=0)
        world.full("a", "b")
        first = await world.supervisor.start("a", 60, "operator")
        second = await world.supervisor.start("b", 60, "operator")
        world.full("a", "b", on=False)
        world.a.speak("s", 1)
        world.b.speak("t", 1)
        for drain, session in ((first, "s"), (second, "t")):
            outcome = await noted(world, drain.id, session)
            while outcome.reason != Code.NO_TARGET:
                await world.table.wait_activity(0.02)
                outcome = await noted(world, drain.id, session)
        assert not world.told(into.Reserve)


# Restarts ----------------------------------------------------------------------------------------------


async def test_a_resumed_drain_moves_nothing_before_reconciliation(tmp_path: Path) -> None:
    """H65, H143, decision 10: the worker stays closed meanwhile."""
    async with open_world(tmp_path, attach=False) as world:
        session = await world.session()
        book = DrainBook("drn_1", "a", "operator", 1.0, 1e12)
        book.waiting("s", "deadline", "planned")
        world.supervisor.resume(drain_record(book))
        for _ in range(5):
            world.table.notify()
            await trio.testing.wait_all_tasks_blocked()
            assert session.move is None
        assert not world.admission.admitting("a")
        for name in ("a", "b"):
            world.recovery.introduced(name)
        await drained(world, "drn_1")
        assert session.record.owner == world.b.owner


@pytest.mark.parametrize("came", [True, False])
async def test_a_resumed_drain_says_what_its_moves_came_to(tmp_path: Path, came: bool) -> None:
    """H54, H65, RY: outcomes from before the restart stay; a committed move is native where it landed."""
    async with open_world(tmp_path, attach=False) as world:
        session = await world.session(worker="b")
        source, target = world.a.owner, world.b.owner
        assert source is not None
        assert target is not None
        if came:
            world.table.change(session, epoch=2)
        whole = SessionOutcome("t", "completed_native", None, "finished", target="b", reuse=1.0)
        moves = [
            MoveRecord("m1", "t", "drn_1", source, target, 1, "finished", "finished", whole.outcome, None,
                       whole, 1.0, 2.0),
            MoveRecord("m2", "s", "drn_1", source, target, 1, "committed", "finished", "completed_native",
                       Code.COORDINATOR_RESTART, None, 1.0, 2.0),
        ]  # fmt: skip
        world.supervisor.resume(drain_record(DrainBook("drn_1", "a", "operator", 1.0, 1e12)), moves)
        for name in ("a", "b"):
            world.recovery.introduced(name)
        found = by_session(await drained(world, "drn_1"))
        assert found["t"] == whole
        assert found["s"].outcome == ("completed_native" if came else "completed_replay")
        assert found["s"].reason == (Code.COORDINATOR_RESTART if came else Code.TARGET_FAILED)


async def test_a_drain_of_a_worker_that_is_configured_no_more_hurts_nobody(tmp_path: Path) -> None:
    """H65: its sessions are resolved, then it is drained."""
    async with open_world(tmp_path) as world:
        session = await world.session(allow_replay_fallback=True)
        book = DrainBook("drn_1", "gone", "operator", 1.0, 1e12)
        gone = world.a.owner
        assert gone is not None
        world.table.change(session, owner=msgspec.structs.replace(gone, worker="gone"))
        world.supervisor.resume(drain_record(book))
        await trio.testing.wait_all_tasks_blocked()
        book_now = world.supervisor.draining("gone")
        assert book_now is not None
        world.recovery.look_at(session)
        await world.until(lambda: world.supervisor.draining("gone") is None)


async def test_a_store_that_fails_stops_the_drain_and_not_the_service(tmp_path: Path) -> None:
    """H160: calls about it say why; the source stays closed."""
    try:
        async with open_world(tmp_path, store_class=CommitFailsStore) as world:
            world.full("b")
            await world.session(tokens=0)
            begun = await world.supervisor.start("a", 60, "operator")
            await noted(world, begun.id)
            CommitFails.armed = True
            world.a.speak("s", 101)
            await world.store.wait_failed()
            await world.until(lambda: world.supervisor.draining("a") is not None)
            with trio.fail_after(30):
                with pytest.raises(SwapdError) as refused:
                    await world.supervisor.cancel(begun.id)
                assert refused.value.code == Code.STORE_FAILED
            assert not world.admission.admitting("a")
    finally:
        CommitFails.armed = False
