"""What an operator turns off for the whole service stays off until it is turned on again."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from swapd.errors import REASONS, Code, SwapdError
from swapd.messages import to_worker as into
from swapd.service import SwapdService
from swapd.switches import Switches
from swapd.views import Caller, NewSession
from tests.migration.world import World, open_world, refusal
from tests.store.failing import CommitFails, CommitFailsStore

TENANT, OPERATOR = Caller("tenant"), Caller("ops", True)
REQUEST = NewSession(prompt=[1, 2, 3], max_new_tokens=8)


async def open_service(world: World) -> SwapdService:
    """The front door as a start opens it: what the last run was told holds."""
    service = SwapdService(
        world.config,
        world.store,
        world.table,
        world.ledger,
        world.admission,
        world.recovery,
        world.supervisor,
        world.links,
    )
    await service.switchboard.load()
    return service


async def test_stopped_admission_refuses_every_worker_and_lets_sessions_go_on(tmp_path: Path) -> None:
    """H163: a stable code to try again on, `/readyz` says why, and what runs is not touched."""
    async with open_world(tmp_path) as world:
        service = await open_service(world)
        session = await world.session()
        view = await service.turn_switch(OPERATOR, "admission", on=False)
        assert not view.admission
        assert view.admission_off_since is not None
        with pytest.raises(SwapdError) as refused:
            await service.create_session(TENANT, REQUEST)
        assert refused.value.code is Code.ADMISSION_STOPPED
        assert REASONS[Code.ADMISSION_STOPPED][:2] == (503, True)
        assert service.readiness().reasons == ("admission_stopped",)
        assert world.told(into.Start) == []
        assert (await service.status(OPERATOR)).switches == view
        world.a.speak("s", 7)
        await world.until(lambda: session.durable == 7)
        drain = await service.start_drain(OPERATOR, "a")  # H162: stop admission, then drain
        await world.until(lambda: session.record.owner == world.b.owner)
        await world.until(lambda: world.supervisor.draining("a") is None)
        assert (await service.drain(OPERATOR, drain.id)).state == "drained"
        await service.turn_switch(OPERATOR, "admission", on=True)
        assert service.readiness().ready
        assert (await service.create_session(TENANT, REQUEST)).state == "created"


async def test_admission_that_stops_while_a_worker_is_asked_is_stopped(tmp_path: Path) -> None:
    """H51, H163: the next worker is not asked."""
    async with open_world(tmp_path) as world:
        service = await open_service(world)
        asked = trio.Event()
        go_on = trio.Event()

        async def full(link: object, body: object) -> object:
            asked.set()
            await go_on.wait()
            raise SwapdError(Code.CAPACITY)

        world.a.on(into.Start, full)
        async with trio.open_nursery() as nursery:

            async def create() -> None:
                with pytest.raises(SwapdError) as refused:
                    await service.create_session(TENANT, REQUEST)
                assert refused.value.code is Code.ADMISSION_STOPPED

            nursery.start_soon(create)
            await asked.wait()
            await service.turn_switch(OPERATOR, "admission", on=False)
            go_on.set()
        assert world.told(into.Start) == ["a Start"]
        await world.check_baseline()


@pytest.mark.parametrize("switch", ["admission", "migration"])
async def test_a_switch_that_is_off_is_off_after_a_restart(tmp_path: Path, switch: str) -> None:
    """H163, A13"""
    for on, expected in ((False, False), (None, False), (True, True), (None, True)):
        async with open_world(tmp_path) as world:
            service = await open_service(world)
            if on is not None:
                await service.turn_switch(OPERATOR, switch, on=on)  # type: ignore[arg-type]
                again = await service.turn_switch(OPERATOR, switch, on=on)  # type: ignore[arg-type]
                assert again == await service.switches(OPERATOR)
            assert getattr(await service.switches(OPERATOR), switch) is expected


async def test_drains_hear_of_a_switch_at_once(tmp_path: Path) -> None:
    """H62: not by their next look, and not of one that stood so already."""
    async with open_world(tmp_path) as world:
        heard: list[None] = []
        switches = Switches(world.config, world.store, lambda: heard.append(None))
        for on, times in ((False, 1), (False, 1), (True, 2)):
            await switches.turn("migration", on=on)
            assert len(heard) == times


async def test_without_migration_sessions_are_blocked_and_serving_goes_on(tmp_path: Path) -> None:
    """H62, H134, A13: blocked at the deadline with its reason; turned on again, the same drain goes on."""
    now = 1000.0
    async with open_world(tmp_path, wall=lambda: now) as world:
        service = await open_service(world)
        session = await world.session()
        assert (await service.turn_switch(OPERATOR, "migration", on=False)).migration is False
        drain = await service.start_drain(OPERATOR, "a", 5.0)
        await trio.testing.wait_all_tasks_blocked()
        now += 6
        book = world.supervisor.draining("a")
        assert book is not None
        await world.until(lambda: book.state == "blocked")
        [one] = (await service.drain(OPERATOR, drain.id)).sessions
        assert (one.outcome, one.reason) == ("blocked", "migration_disabled")
        assert one.detail == "by the operator"
        assert world.told(into.Reserve) == []
        world.a.speak("s", 7)
        await world.until(lambda: session.durable == 7)
        assert service.readiness().ready
        await service.turn_switch(OPERATOR, "migration", on=True)
        await world.until(lambda: book.state == "drained")
        [one] = (await service.drain(OPERATOR, drain.id)).sessions
        assert one.outcome == "completed_native"
        await world.check_baseline()


async def test_at_a_suspicion_of_corruption_moves_stop_at_once_and_sessions_go_on(tmp_path: Path) -> None:
    """H161, B21: after a checksum failed at an import an operator's word stops all moves, over restarts.

    That a revoked certificate denies them as well is shown in `tests/certify/test_moves.py`.
    """
    workers = ("a", "b", "c")
    async with open_world(tmp_path, workers=workers) as world:
        service = await open_service(world)
        session = await world.session()
        elsewhere = await world.session("elsewhere", "c")
        for target in ("b", "c"):
            world.link(target).always(into.Import, refusal(Code.CHECKSUM_MISMATCH))
        drain = await service.start_drain(OPERATOR, "a")
        await world.until(lambda: world.supervisor.quarantine.workers() != [])
        assert (await service.turn_switch(OPERATOR, "migration", on=False)).migration is False
        tried = len(world.bodies(into.Reserve))
        await world.until(lambda: session.move is None)
        book = world.supervisor.draining("a")
        assert book is not None
        await world.until(lambda: book.refused.get("s") == Code.MIGRATION_DISABLED)
        for _ in range(5):
            await world.table.wait_activity(0.02)
        assert len(world.bodies(into.Reserve)) == tried
        for one, worker in ((session, "a"), (elsewhere, "c")):
            before = one.durable
            world.link(worker).speak(one.id, 7)
            await world.until(lambda one=one, before=before: one.durable == before + 1)  # type: ignore[misc]  # bound as defaults
            assert (one.view().state, one.record.owner) == ("running", world.link(worker).owner)
        assert (await service.create_session(TENANT, REQUEST)).state == "created"
        [moved] = await world.rows("SELECT DISTINCT outcome FROM moves")
        assert moved == ("aborted_source_resumed",)
        await service.cancel_drain(OPERATOR, drain.id)
        await world.check_baseline()
    async with open_world(tmp_path, workers=workers) as world:
        service = await open_service(world)
        assert (await service.switches(OPERATOR)).migration is False
        await world.session("later")
        await service.start_drain(OPERATOR, "a")
        book = world.supervisor.draining("a")
        assert book is not None
        await world.until(lambda: book.refused.get("later") == Code.MIGRATION_DISABLED)
        assert world.told(into.Reserve) == []


async def test_the_switch_cannot_turn_on_what_the_configuration_turns_off(tmp_path: Path) -> None:
    """A13: effective is both."""
    async with open_world(tmp_path, migration_enabled=False) as world:
        service = await open_service(world)
        view = await service.turn_switch(OPERATOR, "migration", on=True)
        assert not view.migration
        assert not view.migration_configured
        await world.session()
        drain = await service.start_drain(OPERATOR, "a")
        await trio.testing.wait_all_tasks_blocked()
        [one] = (await service.drain(OPERATOR, drain.id)).sessions
        assert (one.reason, one.detail) == ("migration_disabled", "by the configuration")


async def test_only_an_operator_turns_switches(tmp_path: Path) -> None:
    """H9"""
    async with open_world(tmp_path) as world:
        service = await open_service(world)
        for call in (
            service.switches(TENANT),
            service.turn_switch(TENANT, "admission", on=False),
            service.clear_quarantine(TENANT, "a"),
            service.reconciliation(TENANT),
        ):
            with pytest.raises(SwapdError) as refused:
                await call
            assert refused.value.code is Code.OPERATOR_REQUIRED
        assert (await service.switches(OPERATOR)).admission


async def test_a_store_that_fails_opens_nothing_and_still_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H160, H163: off holds at once; on only when it is durable."""
    async with open_world(tmp_path, store_class=CommitFailsStore) as world:
        service = await open_service(world)
        await service.turn_switch(OPERATOR, "migration", on=False)
        monkeypatch.setattr(CommitFails, "armed", True)
        with pytest.raises(SwapdError) as refused:
            await service.turn_switch(OPERATOR, "migration", on=True)
        assert refused.value.code is Code.STORE_FAILED
        assert not (await service.switches(OPERATOR)).migration
        with pytest.raises(SwapdError):
            await service.turn_switch(OPERATOR, "admission", on=False)
        assert not (await service.switches(OPERATOR)).admission
