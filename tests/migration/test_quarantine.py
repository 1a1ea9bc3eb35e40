"""A worker on which an import failed is not trusted with new work until an operator says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swapd.errors import Code, SwapdError
from swapd.hooks import Hooks
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.migration.quarantine import target_fault
from swapd.ops.bus import EventBus
from swapd.store.quarantines import load_quarantines
from swapd.views import Caller, NewSession, QuarantineView
from tests.migration.world import Deed, ScriptedLink, World, loss, open_world, refusal, silence
from tests.test_service import service

TENANT, OPERATOR = Caller("tenant"), Caller("ops", True)
REQUEST = NewSession(prompt=[1, 2, 3], max_new_tokens=8, on_disconnect="continue")


async def prepare_refused(link: ScriptedLink, body: Any) -> object:
    """The whole batch is answered, and each session of it is refused."""
    items = tuple(out.PreparedItem(item.move, False, Code.CHECKSUM_MISMATCH) for item in body.items)
    return out.Prepared(body.batch, items, 0.0)


async def failed_move(world: World, step: type, deed: Deed) -> None:
    """A drain of `a` whose one move to `b` fails at this step; it goes on afterwards."""
    session = await world.session()
    world.b.on(step, deed)
    await world.supervisor.start("a", 600, "operator")
    leases = world.leases
    assert leases is not None
    await world.until(lambda: world.bodies(step, "b") != [] and session.move is None and leases.active == 0)


@pytest.mark.parametrize(
    ("step", "deed", "code"),
    [
        (into.Import, refusal(Code.CHECKSUM_MISMATCH), Code.CHECKSUM_MISMATCH),
        (into.Import, refusal(Code.MANIFEST_MISMATCH), Code.MANIFEST_MISMATCH),
        (into.Import, silence, Code.TIMEOUT),
        (into.Prepare, prepare_refused, Code.CHECKSUM_MISMATCH),
        (into.Prepare, refusal(Code.INTERNAL), Code.INTERNAL),
        (into.Prepare, silence, Code.TIMEOUT),
        (into.Reserve, silence, Code.TIMEOUT),
        (into.Quiesce, silence, Code.TIMEOUT),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
async def test_a_worker_whose_import_failed_gets_nothing_new_and_keeps_what_it_has(
    tmp_path: Path, step: type, deed: Deed, code: Code
) -> None:
    """H44, H78, H79, H156: the source goes on, the reason is in the drain, reservations are at baseline."""
    async with open_world(tmp_path) as world:
        here = await world.session("here", "b")
        await failed_move(world, step, deed)
        held = world.supervisor.quarantine.of("b")
        assert held is not None
        assert held.code == code
        [drain] = await world.supervisor.views()
        outcome = {one.session: one for one in drain.sessions}["s"]
        assert (outcome.outcome, outcome.reason) == ("aborted_source_resumed", code)
        assert not world.admission.admitting("b")
        with pytest.raises(SwapdError) as refused:
            await world.admission.admit(TENANT, REQUEST)
        assert refused.value.code is Code.NO_ADMITTING_WORKER
        assert "quarantined" in refused.value.detail
        await world.check_baseline()
        world.b.speak("here", 7)
        await world.until(lambda: here.durable == 7)
        await world.supervisor.cancel(drain.id)
        assert (await world.admission.admit(TENANT, REQUEST)).record.owner == world.a.owner


@pytest.mark.parametrize(
    ("code", "imports", "fault"),
    [
        (Code.CAPACITY, False, None),
        (Code.CAPACITY, True, None),
        (Code.TIMEOUT, False, Code.TIMEOUT),
        (Code.TARGET_LOST, True, None),
        (Code.NOT_READY, True, None),
        (Code.LEASE_EXPIRED, True, None),
        ("checksum_mismatch", True, Code.CHECKSUM_MISMATCH),
        ("of_a_newer_worker", True, Code.INTERNAL),
    ],
)
def test_only_what_is_the_targets_fault_is_held_against_it(
    code: Code | str, imports: bool, fault: Code | None
) -> None:
    """H79"""
    assert target_fault(code, imports=imports) is fault


async def test_a_target_that_is_lost_is_not_quarantined_but_its_next_incarnation_is_another(
    tmp_path: Path,
) -> None:
    """H79: what failed died with its process."""
    async with open_world(tmp_path) as world:
        await failed_move(world, into.Prepare, loss)
        assert world.supervisor.quarantine.workers() == []
        world.b.be_born()
        assert world.admission.admitting("b")


async def test_what_a_dead_incarnation_did_is_not_held_against_the_next(tmp_path: Path) -> None:
    """H79: a move may be settled after its target was replaced."""
    async with open_world(tmp_path) as world:
        old = world.b.owner
        assert old is not None
        world.b.be_born()
        world.supervisor.quarantine.put(old, Code.TIMEOUT)
        assert world.supervisor.quarantine.workers() == []
        assert world.admission.admitting("b")


async def test_operators_see_a_quarantine_and_clear_it_by_the_workers_name(tmp_path: Path) -> None:
    """H79: why, and since when; in the workers' list and in its one reason."""
    async with open_world(tmp_path, wall=lambda: 1000.0) as world:
        await failed_move(world, into.Import, refusal(Code.CHECKSUM_MISMATCH))
        doors = service(world)
        _, view = await doors.workers(OPERATOR)
        assert view.quarantine == QuarantineView("checksum_mismatch", 1000.0)
        assert (view.admitting, view.reason) == (False, "worker b is quarantined: checksum_mismatch")
        with pytest.raises(SwapdError) as refused:
            await doors.clear_quarantine(OPERATOR, "c")
        assert refused.value.code is Code.WORKER_UNKNOWN
        cleared = await doors.clear_quarantine(OPERATOR, "b")
        assert (cleared.quarantine, cleared.admitting) == (None, True)


async def test_a_drain_with_no_other_target_says_that_it_is_quarantined(tmp_path: Path) -> None:
    """H79: the operator learns where to look."""
    async with open_world(tmp_path) as world:
        owner = world.b.owner
        assert owner is not None
        world.supervisor.quarantine.put(owner, Code.CHECKSUM_MISMATCH)
        await world.session()
        drain = await world.supervisor.start("a", 600, "operator")
        await world.until(lambda: world.supervisor.draining("a").outcomes != {})  # type: ignore[union-attr]
        [one] = (await world.supervisor.view(drain.id)).sessions
        assert (one.reason, one.detail) == (Code.NO_TARGET, "worker b is quarantined: checksum_mismatch")


async def test_a_target_that_does_not_run_what_it_owns_is_quarantined(tmp_path: Path) -> None:
    """H79, B22: the session comes home, and the drain looks for another target."""

    async def knows_nothing(link: ScriptedLink, body: Any) -> object:
        return out.Activated(tuple(item.session for item in body.items))

    async with open_world(tmp_path) as world:
        session = await world.session()
        world.b.always(into.Activate, knows_nothing)
        await world.supervisor.start("a", 600, "operator")
        await world.until(lambda: world.supervisor.quarantine.workers() == ["b"])
        assert session.record.owner == world.a.owner
        held = world.supervisor.quarantine.of("b")
        assert held is not None
        assert held.code == Code.SESSION_UNKNOWN


async def test_an_operator_clears_a_quarantine_and_the_drain_goes_on(tmp_path: Path) -> None:
    """H79"""
    async with open_world(tmp_path) as world:
        await failed_move(world, into.Import, refusal(Code.CHECKSUM_MISMATCH))
        [drain] = await world.supervisor.views()
        await world.supervisor.quarantine.clear("b")
        assert await world.store.commit(load_quarantines) == []
        book = world.supervisor.draining("a")
        await world.until(lambda: book is None or book.over)
        assert (await world.supervisor.view(drain.id)).state == "drained"
        await world.supervisor.quarantine.clear("b")  # not quarantined: unchanged
        await world.check_baseline()


@pytest.mark.parametrize("where", ["ledger", "worker"])
async def test_a_quarantine_is_not_cleared_while_reservations_are_open(tmp_path: Path, where: str) -> None:
    """H49, H79: neither what was promised nor what the worker itself holds may be left over."""
    async with open_world(tmp_path) as world:
        await failed_move(world, into.Import, refusal(Code.CHECKSUM_MISMATCH))

        async def holds(link: ScriptedLink, body: object) -> object:
            return out.Inventory((out.InventoryItem("s", 2, "reserved", 0, (), "m"),))

        if where == "ledger":
            world.ledger.charge("b", "stray", 8)
        else:
            world.b.on(into.InventoryQuery, holds)
        with pytest.raises(SwapdError) as refused:
            await world.supervisor.quarantine.clear("b")
        assert refused.value.code is Code.RESERVATIONS_OPEN
        assert not world.admission.admitting("b")
        world.ledger.free("b", "stray")
        await world.supervisor.quarantine.clear("b")
        assert world.admission.admitting("b")


async def test_a_worker_that_does_not_answer_stays_quarantined(tmp_path: Path) -> None:
    """H79: nobody knows what a hung worker holds."""
    async with open_world(tmp_path) as world:
        await failed_move(world, into.Import, silence)
        world.b.on(into.InventoryQuery, silence)
        with pytest.raises(SwapdError) as refused:
            await world.supervisor.quarantine.clear("b")
        assert refused.value.code is Code.TIMEOUT
        assert world.supervisor.quarantine.workers() == ["b"]


@pytest.mark.parametrize("born", [False, True], ids=["the same incarnation", "a new incarnation"])
async def test_a_quarantine_outlives_the_coordinator_and_not_the_incarnation(
    tmp_path: Path, born: bool
) -> None:
    """H79"""
    async with open_world(tmp_path) as world:
        await failed_move(world, into.Import, refusal(Code.MANIFEST_MISMATCH))
        [drain] = await world.supervisor.views()
        await world.supervisor.cancel(drain.id)
    async with open_world(tmp_path, attach=False) as world:
        assert not world.admission.admitting("b")
        if born:
            world.b.be_born()
        hooks = Hooks(world.table, world.ledger, world.recovery, EventBus())
        hooks.on_attached = world.supervisor.quarantine.met
        world.recovery.introduced("a")
        await hooks.attached(world.links["b"], out.Inventory(()))
        assert world.admission.admitting("b") is born
        left = await world.store.commit(load_quarantines)
        assert [record.worker for record in left] == ([] if born else ["b"])
