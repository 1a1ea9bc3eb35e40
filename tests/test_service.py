"""The front door: who may ask for what, and when (H9, H45, A27, H142)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import trio
import trio.testing

from swapd.config import CredentialConfig
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Inventory
from swapd.service import SwapdService
from swapd.views import Caller, DrainMode, NewSession
from tests.migration.world import World, open_world
from tests.store.failing import CommitFails, CommitFailsStore

TENANT, STRANGER, OPERATOR = Caller("tenant"), Caller("other"), Caller("ops", True)
CREDENTIALS = (
    CredentialConfig(namespace="tenant", token="secret"),
    CredentialConfig(namespace="ops", token_sha256=hashlib.sha256(b"root").hexdigest(), is_operator=True),
)


def service(world: World) -> SwapdService:
    return SwapdService(
        world.config,
        world.store,
        world.table,
        world.ledger,
        world.admission,
        world.recovery,
        world.supervisor,
        world.links,
    )


@pytest.mark.parametrize(
    ("token", "caller"),
    [
        ("secret", TENANT),
        ("root", OPERATOR),
        ("Secret", None),
        ("secret ", None),
        ("", None),
        (None, None),
        (hashlib.sha256(b"root").hexdigest(), None),
    ],
)
async def test_only_a_known_token_is_someone(
    tmp_path: Path, token: str | None, caller: Caller | None
) -> None:
    """H9, B34: plain or by its digest; the digest is not a token."""
    async with open_world(tmp_path, credentials=CREDENTIALS) as world:
        if caller is not None:
            assert service(world).authenticate(token) == caller
            return
        with pytest.raises(SwapdError) as refused:
            service(world).authenticate(token)
        assert refused.value.code == Code.UNAUTHENTICATED


@pytest.mark.parametrize("token", ["", None])
async def test_a_credential_without_a_token_lets_nobody_in(tmp_path: Path, token: str | None) -> None:
    """H9, H126: even if the configuration let one through."""
    async with open_world(tmp_path, credentials=(CredentialConfig(namespace="tenant"),)) as world:
        with pytest.raises(SwapdError) as refused:
            service(world).authenticate(token)
        assert refused.value.code == Code.UNAUTHENTICATED


async def test_a_foreign_session_is_no_session(tmp_path: Path) -> None:
    """H9, A27: an operator sees states, not text; a stranger sees the same refusal as for none at all."""
    async with open_world(tmp_path) as world:
        doors = service(world)
        await world.session(reading=False)
        assert (await doors.session(TENANT, "s")).id == "s"
        assert (await doors.session(OPERATOR, "s")).accepted == 6
        assert [v.id for v in await doors.sessions(OPERATOR)] == ["s"]
        assert await doors.sessions(STRANGER) == []
        sentences = set()
        for name in ("s", "nobody"):
            with pytest.raises(SwapdError) as refused:
                await doors.session(STRANGER, name)
            sentences.add((refused.value.code, refused.value.sentence))
        assert len(sentences) == 1
        for caller in (STRANGER, OPERATOR):
            with pytest.raises(SwapdError) as refused:
                async with doors.subscribe(caller, "s", None):
                    pass
            assert refused.value.code == Code.SESSION_UNKNOWN
        with pytest.raises(SwapdError):
            await doors.cancel_session(STRANGER, "s")
        assert world.table.get("s") in list(world.table)


async def test_only_operators_see_and_drain_workers(tmp_path: Path) -> None:
    """H9"""
    async with open_world(tmp_path) as world:
        doors = service(world)
        for call in (
            doors.workers(TENANT),
            doors.drains(TENANT),
            doors.drain(TENANT, "x"),
            doors.cancel_drain(TENANT, "x"),
            doors.start_drain(TENANT, "a"),
        ):
            with pytest.raises(SwapdError) as refused:
                await call
            assert refused.value.code == Code.OPERATOR_REQUIRED
        assert world.supervisor.draining("a") is None


@pytest.mark.parametrize("deadline_s", [-0.1, 86400.1, float("nan"), float("inf")])
async def test_a_deadline_goes_up_to_a_day(tmp_path: Path, deadline_s: float) -> None:
    """A23"""
    async with open_world(tmp_path) as world:
        with pytest.raises(SwapdError) as refused:
            await service(world).start_drain(OPERATOR, "a", deadline_s)
        assert refused.value.code == Code.INVALID_REQUEST
        view = await service(world).start_drain(OPERATOR, "a", 86400.0)
        assert view.deadline_s == 86400.0


@pytest.mark.parametrize("workers", [[], ["a", "a"]])
async def test_workers_to_drain_are_named_once_each(tmp_path: Path, workers: list[str]) -> None:
    """B16"""
    async with open_world(tmp_path) as world:
        with pytest.raises(SwapdError) as refused:
            await service(world).start_drains(OPERATOR, workers)
        assert refused.value.code == Code.INVALID_REQUEST
        assert world.admission.closed == {}


async def test_a_drains_words_are_checked_before_anything_is_closed(tmp_path: Path) -> None:
    """B16"""
    async with open_world(tmp_path) as world:
        for start in (service(world).start_drain(OPERATOR, "a", reason="two\nlines"),
                      service(world).start_drains(OPERATOR, ["a", "b"], reason="x" * 201)):  # fmt: skip
            with pytest.raises(SwapdError) as refused:
                await start
            assert refused.value.code == Code.INVALID_REQUEST
        assert world.admission.closed == {}
        views = await service(world).start_drains(OPERATOR, ["a", "b"], reason="a new driver")
        assert [(view.worker, view.reason) for view in views] == [
            ("a", "a new driver"),
            ("b", "a new driver"),
        ]


async def test_a_drain_cannot_park_where_there_is_no_park(tmp_path: Path) -> None:
    """B3: said at once, not found out at the deadline; the worker stays open."""
    async with open_world(tmp_path) as world:
        with pytest.raises(SwapdError) as refused:
            await service(world).start_drain(OPERATOR, "a", mode="park")
        assert refused.value.code == Code.PARKING_OFF
        assert service(world).limits()["park"] == {"bytes": 0}
        assert world.admission.admitting("a")


async def test_a_worker_shows_its_room_and_its_drain(tmp_path: Path) -> None:
    """H50, B10"""
    async with open_world(tmp_path) as world:
        await world.session(tokens=0)
        drain = await service(world).start_drain(OPERATOR, "a")
        a, b = await service(world).workers(OPERATOR)
        assert (a.sessions, a.committed_blocks, a.usable_blocks, a.admitting) == (1, 26, 256, False)
        assert (a.drain, a.reason) == (drain.id, "worker a is draining")
        assert (b.sessions, b.committed_blocks, b.admitting, b.drain) == (0, 0, True, None)


async def test_a_reader_counts_while_it_reads(tmp_path: Path) -> None:
    """H32"""
    async with open_world(tmp_path) as world:
        session = await world.session(reading=False)
        async with service(world).subscribe(TENANT, "s", 2) as reader:
            assert (session.readers, reader.cursor) == (1, 2)
        assert session.readers == 0


@pytest.mark.parametrize("mode", ["replay", "cold_replay"])
async def test_a_replay_is_counted_as_recomputed_and_never_as_a_move(tmp_path: Path, mode: DrainMode) -> None:
    """H73: the counter grows by the positions that are made anew; its outcome is its own, its reuse none."""
    async with open_world(tmp_path) as world:
        await world.session(allow_replay_fallback=True)
        doors = service(world)
        begun = await doors.start_drain(OPERATOR, "a", mode=mode)
        while (told := await doors.drain(OPERATOR, begun.id)).state != "drained":
            await world.table.wait_activity(0.02)
        (outcome,) = told.sessions
        # Prompt and accepted tokens but the last, which has no KV yet.
        assert (outcome.outcome, outcome.recomputed_tokens, outcome.reuse) == ("completed_replay", 8, None)
        lines = doors.metrics(OPERATOR).decode().splitlines()
        counts = {
            name: float(count)
            for name, _, count in (line.rpartition(" ") for line in lines if line[0] != "#")
        }
        assert counts["swapd_recomputed_tokens_total"] == 8
        assert counts["swapd_reused_tokens_total"] == 0
        assert sum(n for name, n in counts.items() if name.startswith("swapd_migrations_total")) == 0


async def test_nothing_new_begins_before_reconciliation_and_reading_goes_on(tmp_path: Path) -> None:
    """H45, H142"""
    async with open_world(tmp_path, attach=False) as world:
        await world.session()
        doors = service(world)
        assert doors.readiness().reasons == ("reconciling",)
        for call in (
            doors.create_session(TENANT, NewSession(prompt=[1], max_new_tokens=1)),
            doors.start_drain(OPERATOR, "a"),
        ):
            with pytest.raises(SwapdError) as refused:
                await call
            assert (refused.value.code, refused.value.status) == (Code.NOT_READY, 503)
        async with doors.subscribe(TENANT, "s", None) as reader:
            async for batch in reader:
                assert len(batch) == 7
                break
        world.recovery.introduced("a")
        world.recovery.introduced("b")
        await world.recovery.attached(world.a, Inventory(()))  # type: ignore[arg-type]  # a double
        await world.until(lambda: world.recovery.reconciled)
        assert doors.readiness().ready


async def test_a_store_that_failed_takes_nothing_new(tmp_path: Path) -> None:
    """H160, H45"""
    try:
        async with open_world(tmp_path, store_class=CommitFailsStore) as world:
            CommitFails.armed = True
            world.store.post(lambda db: None, lambda result: None)
            await world.store.wait_failed()
            doors = service(world)
            assert Code.STORE_FAILED in doors.readiness().reasons
            with pytest.raises(SwapdError) as refused:
                await doors.create_session(TENANT, NewSession(prompt=[1], max_new_tokens=1))
            assert refused.value.code == Code.STORE_FAILED
    finally:
        CommitFails.armed = False


async def test_a_service_that_stops_ends_its_streams_and_takes_nothing_new(tmp_path: Path) -> None:
    """H230"""
    async with open_world(tmp_path) as world, trio.open_nursery() as nursery:
        doors = service(world)
        await world.session()
        cursors: list[int] = []

        async def reading() -> None:
            async with doors.subscribe(TENANT, "s", None) as reader:
                async for _ in reader:
                    pass
                cursors.append(reader.cursor)

        nursery.start_soon(reading)
        await trio.testing.wait_all_tasks_blocked()
        doors.stop()
        await doors.wait_stopping()
        await trio.testing.wait_all_tasks_blocked()
        assert cursors == [6]
        with pytest.raises(SwapdError) as refused:
            await doors.create_session(TENANT, NewSession(prompt=[1], max_new_tokens=1))
        assert refused.value.code == Code.STOPPING
        assert Code.STOPPING in doors.readiness().reasons


async def test_every_limit_that_a_client_meets_can_be_read(tmp_path: Path) -> None:
    """H176"""
    async with open_world(tmp_path, max_active_sessions=7) as world:
        limits = service(world).limits()
        assert limits["max_active_sessions"] == 7
        assert limits["max_context_tokens"] == 256
        assert {"max_body_bytes", "max_lifetime_s", "disconnect_grace_s", "retention_s"} <= set(limits)
