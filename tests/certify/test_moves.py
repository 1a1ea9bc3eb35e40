"""What certificates do to moves: allow them, end, and are revoked, while sessions go on (H129-H138)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio.testing

from swapd.certify.certificate import Certificate
from swapd.certify.keeper import CertificateKeeper
from swapd.certify.views import Pair
from swapd.errors import Code, SwapdError
from swapd.messages import to_worker as into
from swapd.migration import carrier
from swapd.views import Caller, NewSession
from tests.certify.made import ISSUED_AT, certificate
from tests.migration.test_preflight import by_session as foreseen
from tests.migration.test_supervisor import by_session, drained, noted
from tests.migration.world import INFO, ScriptedLink, World, open_world, settings
from tests.parking.world import lend, parked, resumed, world_with_park
from tests.store.failing import CommitFails, CommitFailsStore
from tests.test_metrics import series
from tests.test_service import OPERATOR, TENANT, service

GOOD = certificate("fp")


class Clock:
    """The wall clock of a service."""

    def __init__(self, now: float = ISSUED_AT + 86_400.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def certified(
    path: Path, clock: Clock, made: Sequence[Certificate] = (GOOD,), **changes: Any
) -> AbstractAsyncContextManager[World]:
    """A service that moves on certificates, and by no other leave."""
    return open_world(path, wall=clock, certificates=made, self_certify=False, **changes)


async def codes(world: World) -> dict[Pair, str]:
    """What plans refuse, by way."""
    view = await service(world).plans.view(OPERATOR)
    return {each.edge: each.code for each in view.certification_refusals}


async def still_serves(world: World, *names: str) -> None:
    """Who is there gets tokens, and somebody new is admitted."""
    for name in names:
        session = world.table.get(name)
        assert session is not None
        assert session.record.owner == world.a.owner
        before = session.durable
        world.a.speak(name, 7)
        await world.until(lambda session=session, before=before: session.durable == before + 1)  # type: ignore[misc]
    new = await world.admission.admit(Caller("tenant"), NewSession(prompt=[1], max_new_tokens=4))
    assert new.record.owner is not None


async def test_a_certificate_allows_moves_and_plans_say_which(tmp_path: Path) -> None:
    """H91, H129, H131, H132: both ways, with basis and expiry; the transfer and the switch beside them."""
    async with certified(tmp_path, Clock()) as world:
        await world.session()
        view = await service(world).plans.view(OPERATOR)
        assert [each.edge for each in view.edges] == [Pair("a", "b"), Pair("b", "a")]
        assert {(each.basis, each.expires_at) for each in view.edges} == {("evaluated", GOOD.expires_at)}
        assert (view.migration_enabled, view.certification_refusals, view.no_target) == (True, (), False)
        assert world.arena is not None
        lock = world.arena.page_locked
        assert (view.transfer.kind, view.transfer.bytes, view.transfer.page_locked) == (
            "arena",
            1 << 20,
            lock,
        )
        assert [each.id for each in view.certificates] == [GOOD.id]
        begun = await world.supervisor.start("a", 60, "operator")
        assert by_session(await drained(world, begun.id))["s"].outcome == "completed_native"
        await world.check_baseline()


async def test_plans_and_revoking_are_for_operators(tmp_path: Path) -> None:
    """H9, H132, H137: a viewer of the console may look, and revoke nothing."""
    viewer = Caller("console", is_viewer=True)
    async with certified(tmp_path, Clock()) as world:
        plans = service(world).plans
        assert (await plans.view(viewer)).edges
        for call in (plans.view(TENANT), plans.revoke(TENANT, GOOD.id), plans.revoke(viewer, GOOD.id)):
            with pytest.raises(SwapdError) as refused:
                await call
            assert refused.value.code is Code.OPERATOR_REQUIRED
        assert await codes(world) == {}


async def test_with_one_worker_there_is_no_target(tmp_path: Path) -> None:
    """H116: also while the other one is not there."""
    async with certified(tmp_path, Clock()) as world:
        assert not (await service(world).plans.view(OPERATOR)).no_target
        world.b.lose()
        view = await service(world).plans.view(OPERATOR)
        assert (view.no_target, view.edges, view.certification_refusals) == (True, (), ())


Ending = Callable[[World, Clock], Any]


async def expire(world: World, clock: Clock) -> None:
    clock.now = float(GOOD.expires_at)


async def revoke(world: World, clock: Clock) -> None:
    await service(world).plans.revoke(OPERATOR, GOOD.id)


@pytest.mark.parametrize(
    ("end", "code", "why"),
    [(expire, Code.CERTIFICATE_EXPIRED, "expired"), (revoke, Code.CERTIFICATE_REVOKED, "revoked")],
)
async def test_once_it_has_lapsed_a_drain_blocks_with_the_reason_and_serving_goes_on(
    tmp_path: Path, end: Ending, code: Code, why: str
) -> None:
    """H55, H62, H135: each session blocked with who and why, as its pre-flight says; nobody's tokens wait."""
    clock = Clock()
    async with certified(tmp_path, clock) as world:
        await world.session("one")
        await world.session("two")
        await end(world, clock)
        assert await codes(world) == {Pair("a", "b"): why, Pair("b", "a"): why}
        ahead = foreseen(await world.supervisor.preflight("a"))
        begun = await world.supervisor.start("a", 0, "operator")
        view = await drained(world, begun.id, "blocked")
        for name, each in by_session(view).items():
            assert (each.outcome, each.reason) == ("blocked", code)
            assert each.detail is not None
            assert each.detail.startswith(f"a to b: {why}; ")
            assert (ahead[name].would, ahead[name].reason) == ("stay", code)
            assert ahead[name].detail == each.detail
        assert not world.told(into.Reserve, into.Start)
        await still_serves(world, "one", "two")
        assert world.supervisor.draining("a") is not None, "it goes on looking (B14)"
        await world.supervisor.cancel(begun.id)
        await world.check_baseline()


async def test_a_new_certificate_lets_the_same_drain_go_on(tmp_path: Path) -> None:
    """H140: renewal is a new file and a start; the drain was not cancelled."""
    clock = Clock(float(GOOD.expires_at))
    async with certified(tmp_path, clock) as world:
        await world.session()
        begun = await world.supervisor.start("a", 60, "operator")
        assert (await noted(world, begun.id)).reason == Code.CERTIFICATE_EXPIRED
        renewed = certificate("fp", issued_at=int(clock.now))
        world.certificates._certificates = (GOOD, renewed)
        world.table.notify()
        assert by_session(await drained(world, begun.id))["s"].outcome == "completed_native"


async def test_evidence_that_ends_between_plan_and_reservation_ends_the_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H136: looked at once more when the target is asked to reserve, by the injected clock; nothing froze."""
    clock = Clock(GOOD.expires_at - 60.0)
    real = carrier._plan_all

    def planned_and_then_late(*args: Any) -> None:
        real(*args)
        clock.now = float(GOOD.expires_at)

    monkeypatch.setattr(carrier, "_plan_all", planned_and_then_late)
    async with certified(tmp_path, clock) as world:
        await world.session()
        begun = await world.supervisor.start("a", 3600, "operator")
        while (await noted(world, begun.id)).outcome != "aborted_source_resumed":
            await world.table.wait_activity(0.02)
        clock.now += 600  # it is put off for a while after that
        await world.until(
            lambda: world.supervisor.open_drains()[0].refused.get("s") == Code.CERTIFICATE_EXPIRED
        )
        assert not world.told(into.Reserve, into.Freeze)
        await world.store.commit(lambda db: None)
        assert await world.rows("SELECT outcome, reason FROM moves") == [
            ("aborted_source_resumed", Code.CERTIFICATE_EXPIRED)
        ]
        assert world.supervisor.quarantine.workers() == [], "the target did nothing"
        await world.supervisor.cancel(begun.id)
        await world.check_baseline()


@pytest.mark.parametrize("end", [expire, revoke])
async def test_a_move_that_has_its_room_finishes_whatever_ends(tmp_path: Path, end: Ending) -> None:
    """H135, H137: the next one is refused."""
    clock = Clock()

    async def meanwhile(link: ScriptedLink, body: object) -> object:
        await end(link.world, clock)
        return await link.work(body)

    async with certified(tmp_path, clock) as world:
        await world.session()
        world.b.on(into.Reserve, meanwhile)
        begun = await world.supervisor.start("a", 3600, "operator")
        assert by_session(await drained(world, begun.id))["s"].outcome == "completed_native"
        again = await world.supervisor.start("b", 3600, "operator")
        assert (await noted(world, again.id)).reason in (
            Code.CERTIFICATE_EXPIRED,
            Code.CERTIFICATE_REVOKED,
        )
        await world.supervisor.cancel(again.id)
        await world.check_baseline()


async def test_a_revocation_holds_over_restarts_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H137: durable, idempotent, logged as the switches are."""
    clock = Clock()
    told: list[str] = []
    async with certified(tmp_path, clock) as world:
        world.certificates.on_event = lambda what, made: told.append(f"{what} {made.id}")
        plans = service(world).plans
        with pytest.raises(SwapdError) as refused:
            await plans.revoke(OPERATOR, "cuda_release:sha256:1:0")
        assert refused.value.code is Code.CERTIFICATE_UNKNOWN
        first = await plans.revoke(OPERATOR, GOOD.id)
        clock.now += 60
        assert await plans.revoke(OPERATOR, GOOD.id) == first
        assert told == [f"revoked {GOOD.id}"]
        assert [record.message for record in caplog.records].count("certificate revoked") == 1
    for made in ((GOOD,), ()):
        async with certified(tmp_path, clock, made) as world:
            await world.session(f"s{len(made)}")
            begun = await world.supervisor.start("a", 3600, "operator")
            reason = (await noted(world, begun.id, f"s{len(made)}")).reason
            assert reason == (Code.CERTIFICATE_REVOKED if made else Code.NO_EDGE)
            # Also without its file it stays revoked, and saying so again is no mistake.
            assert await service(world).plans.revoke(OPERATOR, GOOD.id) == first
            assert all(each.revoked_at == first.revoked_at for each in world.certificates.views())


async def test_drains_hear_of_a_revocation_at_once(tmp_path: Path) -> None:
    """H137: not by their next look, and not of one that was revoked already."""
    async with certified(tmp_path, Clock()) as world:
        heard: list[None] = []
        keeper = CertificateKeeper(world.config, world.store, (GOOD,), lambda: heard.append(None))
        for _ in range(2):
            await keeper.revoke(GOOD.id)
            assert len(heard) == 1


async def test_a_store_that_fails_denies_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H137, H160: denied before it is written; and the caller hears that it is not durable."""
    async with certified(tmp_path, Clock(), store_class=CommitFailsStore) as world:
        monkeypatch.setattr(CommitFails, "armed", True)
        for _ in range(2):
            with pytest.raises(SwapdError) as refused:
                await service(world).plans.revoke(OPERATOR, GOOD.id)
            assert refused.value.code is Code.STORE_FAILED
        assert set((await codes(world)).values()) == {"revoked"}


async def test_at_a_suspicion_of_corruption_one_word_denies_and_another_stops_all(tmp_path: Path) -> None:
    """H161: revoke denies its edges in the middle of a drain, the switch stops the rest; sessions go on."""
    async with certified(tmp_path, Clock()) as world:
        doors = service(world)
        for number in range(3):
            await world.session(f"s{number}")
        world.full("b")
        begun = await world.supervisor.start("a", 3600, "operator")
        assert (await noted(world, begun.id, "s0")).reason == Code.TARGET_FULL
        await doors.plans.revoke(OPERATOR, GOOD.id)
        world.full("b", on=False)
        book = world.supervisor.draining("a")
        assert book is not None
        await world.until(lambda: set(book.refused.values()) == {Code.CERTIFICATE_REVOKED})
        assert (await doors.turn_switch(OPERATOR, "migration", on=False)).migration is False
        await world.until(lambda: set(book.refused.values()) == {Code.MIGRATION_DISABLED})
        assert not world.told(into.Reserve)
        await still_serves(world, "s0", "s1", "s2")
        await world.supervisor.cancel(begun.id)
        await world.check_baseline()


async def test_a_rolled_back_worker_needs_a_certificate_of_its_own(tmp_path: Path) -> None:
    """H162: another build has another fingerprint; the edge is gone, and back with evidence for it."""
    clock = Clock()
    old = msgspec.structs.replace(INFO, fingerprint="fp_of_the_prior_build")
    async with certified(tmp_path, clock, workers=("a",)) as world:
        world.add_worker("b", old)
        await world.session()
        view = await service(world).plans.view(OPERATOR)
        assert view.edges == ()
        for each in view.certification_refusals:
            assert each.code == "fingerprint_mismatch"
            assert each.detail.startswith("b has fp_of_the_prior_build, which is not covered")
        begun = await world.supervisor.start("a", 3600, "operator")
        outcome = await noted(world, begun.id)
        assert outcome.reason == Code.NO_EDGE
        assert outcome.detail is not None
        assert outcome.detail.startswith("a to b: fingerprint_mismatch; b has fp_of_the_prior_build")
        await still_serves(world, "s")
    both = (GOOD, certificate("fp_of_the_prior_build"))
    async with certified(tmp_path, clock, both, workers=(), attach=False) as world:
        for name in ("a", "b"):
            world.add_worker(name, old)
        view = await service(world).plans.view(OPERATOR)
        assert [each.certificate for each in view.edges] == [both[1].id, both[1].id]


@pytest.mark.parametrize("by", ["configuration", "operator"])
async def test_edges_are_listed_while_moves_are_off(tmp_path: Path, by: str) -> None:
    """H134: check plans first, enable later."""
    async with certified(tmp_path, Clock(), migration_enabled=by != "configuration") as world:
        doors = service(world)
        if by == "operator":
            await doors.turn_switch(OPERATOR, "migration", on=False)
        view = await doors.plans.view(OPERATOR)
        assert not view.migration_enabled
        assert [(each.edge, each.basis) for each in view.edges] == [
            (Pair("a", "b"), "evaluated"),
            (Pair("b", "a"), "evaluated"),
        ]
        await world.session()
        begun = await world.supervisor.start("a", 0, "operator")
        [one] = (await drained(world, begun.id, "blocked")).sessions
        assert (one.outcome, one.reason) == ("blocked", Code.MIGRATION_DISABLED)
        assert not world.told(into.Reserve)


async def test_the_park_asks_for_evidence_on_the_way_in_and_on_the_way_back(tmp_path: Path) -> None:
    """H62, H137, B3: what could not come back is not parked; what is parked waits, and says why."""
    clock = Clock()
    made = {"wall": clock, "certificates": (GOOD,), "self_certify": False}
    async with world_with_park(tmp_path, **made) as world:
        session = await parked(world)
        other = await world.session("other", tokens=9)
        await service(world).plans.revoke(OPERATOR, GOOD.id)
        assert not world.supervisor.can_park(other)
        lend(world)
        await trio.testing.wait_all_tasks_blocked()
        assert world.supervisor.waits(session) == Code.CERTIFICATE_REVOKED
        assert world.admission.kept_for("a") == 0, "for whom nothing can help, no room is kept"
        view = await world.supervisor.start("a", 3600, "operator", "park")
        said = await noted(world, view.id, "other")
        assert said.reason == Code.CERTIFICATE_REVOKED
        assert said.detail is not None
        assert said.detail.startswith("a to park: revoked; ")
        assert session.view().state == "parked"
        await world.supervisor.cancel(view.id)
        # Whoever has new evidence for that fingerprint gets it back.
        world.certificates._certificates = (GOOD, certificate("fp", build="after the evaluation"))
        world.table.notify()
        await resumed(world, session)


async def test_expiry_is_measured_when_somebody_looks(tmp_path: Path) -> None:
    """H138, A8, B37: ten seconds later it is ten less; revoked is none; negative after its end."""
    clock = Clock()
    name = "swapd_certificate_expires_seconds"
    async with certified(tmp_path, clock) as world:
        doors = service(world)

        def measured() -> tuple[float, float]:
            found = series(doors.metrics(OPERATOR))
            return found[name], found["swapd_certificates_registered"]

        assert measured() == (GOOD.expires_at - clock.now, 1)
        before = measured()[0]
        clock.now += 10
        assert before - measured()[0] == 10
        clock.now = GOOD.expires_at + 3600.0
        assert measured() == (-3600, 1)
        await doors.plans.revoke(OPERATOR, GOOD.id)
        assert measured() == (0, 0)
    async with open_world(tmp_path / "other", wall=clock) as world:
        found = series(service(world).metrics(OPERATOR))
        assert (found[name], found["swapd_certificates_registered"]) == (0, 0)


async def test_a_running_service_notices_that_a_certificate_expires(tmp_path: Path) -> None:
    """H135, B36: whether or not anything moves."""
    began = trio.current_time()

    def wall() -> float:
        return GOOD.expires_at - 1.0 + trio.current_time() - began

    told: list[str] = []
    async with open_world(tmp_path, wall=wall, certificates=(GOOD,), self_certify=False) as world:
        world.certificates.on_event = lambda what, made: told.append(what)
        await world.until(lambda: told == ["expired"])
        assert wall() >= GOOD.expires_at


async def test_an_expiry_while_the_service_runs_is_told_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """H135, B36: an event and a line of the log, so that it is not silent; a start has its own warning."""
    began = trio.current_time()
    later = certificate("fp", issued_at=ISSUED_AT + 7200)

    def wall() -> float:
        return GOOD.expires_at - 3600.0 + trio.current_time() - began

    looks: list[None] = []
    told: list[tuple[str, str]] = []
    keeper = CertificateKeeper(
        settings(tmp_path, self_certify=False),
        None,  # type: ignore[arg-type]  # nothing is revoked here
        (GOOD, later, certificate("fp", issued_at=ISSUED_AT - 7200)),
        lambda: looks.append(None),
        wall,
    )
    keeper.on_event = lambda what, made: told.append((what, made.id))
    with caplog.at_level(logging.INFO):
        await keeper.run()  # until no certificate is left that could expire
    assert told == [("expired", GOOD.id), ("expired", later.id)]
    assert len(looks) == 2
    lines = [record for record in caplog.records if record.message.startswith("certificate expired")]
    assert [record.certificate for record in lines] == [GOOD.id, later.id]  # type: ignore[attr-defined]
    assert 3600 + 7200 <= trio.current_time() - began < 3600 + 7200 + 120
