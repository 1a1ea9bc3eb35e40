"""The door: a session is reserved and durable before its caller hears of it, or nothing of it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from swapd.config import LimitConfig
from swapd.errors import Code, SwapdError
from swapd.messages import to_worker as into
from swapd.views import Caller, NewSession
from tests.migration.world import INFO, ScriptedLink, World, loss, open_world, refusal, silence
from tests.store.failing import CommitFails, CommitFailsStore, GatedConnection, GatedStore

CALLER = Caller("tenant")


def asked(**changes: Any) -> NewSession:
    return NewSession(**({"prompt": [1, 2, 3], "max_new_tokens": 5} | changes))


async def refused(world: World, request: NewSession) -> SwapdError:
    with pytest.raises(SwapdError) as caught:
        await world.admission.admit(CALLER, request)
    assert [s.id for s in world.table] == []
    assert await world.rows("SELECT id FROM sessions") == []
    await world.check_baseline()
    return caught.value


async def test_a_session_is_durable_and_reserved_before_the_reply(tmp_path: Path) -> None:
    """H1, H46: charged for prompt and budget; it may compute nothing before it has a reader."""
    async with open_world(tmp_path) as world:
        session = await world.admission.admit(CALLER, asked())
        stored = await world.stored(session.id)
        assert (stored.state, stored.owner, stored.epoch) == ("created", world.a.owner, 1)
        assert stored.sampling.seed is not None  # H89: every session has one
        (start,) = world.bodies(into.Start)
        assert (start.spec, start.epoch, start.limit) == (stored.spec(), 1, 0)
        await world.check_baseline()


async def test_a_session_that_goes_on_alone_begins_without_a_reader(tmp_path: Path) -> None:
    """H32: `continue` asks for tokens whether anyone reads or not; the others wait for their first reader."""
    async with open_world(tmp_path) as world:
        alone = await world.admission.admit(CALLER, asked(on_disconnect="continue"))
        waits = await world.admission.admit(CALLER, asked())
        assert world.a.credited + world.b.credited == [alone.id]
        assert world.table.limit(alone) > 0
        assert world.table.limit(waits) == 0


async def test_the_emptiest_worker_gets_the_session(tmp_path: Path) -> None:
    """H46"""
    async with open_world(tmp_path) as world:
        await world.session(worker="a", tokens=0)
        session = await world.admission.admit(CALLER, asked())
        assert session.record.owner == world.b.owner


@pytest.mark.parametrize("deed", [refusal(Code.CAPACITY), silence, loss], ids=["full", "silent", "lost"])
async def test_a_worker_that_cannot_is_passed_over(tmp_path: Path, deed: Any) -> None:
    """H46, H12: no partial reservation remains; whoever may have started it is told to stop."""
    async with open_world(tmp_path) as world:
        world.a.on(into.Start, deed)
        session = await world.admission.admit(CALLER, asked())
        assert session.record.owner == world.b.owner
        if deed is not loss:
            assert world.bodies(into.Cancel, "a") == [into.Cancel(session.id, 1)]
        await world.check_baseline()


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (asked(prompt=[]), Code.PROMPT_EMPTY),
        (asked(prompt=[1024]), Code.INVALID_REQUEST),
        (asked(max_new_tokens=0), Code.INVALID_REQUEST),
        (asked(max_new_tokens=254), Code.BUDGET_EXCEEDED),
        (asked(model="other"), Code.MODEL_UNKNOWN),
        (asked(max_new_tokens=51), Code.INVALID_REQUEST),
    ],
    ids=["empty", "unknown token", "no budget", "context", "model", "limit"],
)
async def test_a_bad_request_reaches_no_worker(tmp_path: Path, request_: NewSession, code: Code) -> None:
    """H4, H5, H6, H165"""
    limits = LimitConfig(max_new_tokens=50 if code == Code.INVALID_REQUEST else None)
    async with open_world(tmp_path, limits=limits) as world:
        assert (await refused(world, request_)).code == code
        assert world.journal == []


async def test_prompt_and_budget_fill_the_context_to_the_last_token(tmp_path: Path) -> None:
    """H6, H164: also bounded by the smallest worker."""
    async with open_world(tmp_path) as world:
        assert world.admission.context() == 256
        await world.admission.admit(CALLER, asked(max_new_tokens=253))
        world.add_worker("small", msgspec.structs.replace(INFO, max_model_len=64))
        with pytest.raises(SwapdError) as caught:
            await world.admission.admit(CALLER, asked(max_new_tokens=62))
        assert caught.value.code == Code.BUDGET_EXCEEDED


@pytest.mark.parametrize("limit", [4, 8])
async def test_parallel_requests_never_exceed_the_ceiling(tmp_path: Path, limit: int) -> None:
    """H41, H42, H47: exactly so many are let in; the others leave nothing."""
    async with open_world(tmp_path, max_active_sessions=limit) as world:
        codes: list[Code] = []

        async def post() -> None:
            try:
                await world.admission.admit(CALLER, asked())
            except SwapdError as error:
                codes.append(error.code)

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(post)
        assert codes == [Code.CAPACITY] * (50 - limit)
        assert world.ledger.total_charges() == limit
        assert len(await world.rows("SELECT id FROM sessions")) == limit
        first = next(iter(world.table))
        await world.table.finish(first, "cancelled", Code.SESSION_CANCELLED)
        await world.admission.admit(CALLER, asked())  # H43: the slot is free at once
        await world.check_baseline()


async def test_full_workers_refuse_and_a_budget_that_fits_none_says_so(tmp_path: Path) -> None:
    """H46, H41: try again, or never."""
    info = msgspec.structs.replace(INFO, usable_blocks=4)
    async with open_world(tmp_path, workers=("a",), info=info) as world:
        assert (await refused(world, asked(max_new_tokens=14))).code == Code.BUDGET_EXCEEDED
        await world.admission.admit(CALLER, asked(max_new_tokens=13))
        with pytest.raises(SwapdError) as caught:
            await world.admission.admit(CALLER, asked())
        assert (caught.value.code, caught.value.retryable) == (Code.CAPACITY, True)


async def test_without_a_worker_that_admits_the_reason_is_named(tmp_path: Path) -> None:
    """H44"""
    async with open_world(tmp_path) as world:
        world.admission.close("a", "drain", "worker a is draining")
        world.b.lose()
        error = await refused(world, asked())
        assert (error.code, error.status) == (Code.NO_ADMITTING_WORKER, 503)
        assert error.detail == "worker a is draining"


async def test_a_store_that_fails_leaves_no_session_at_the_worker(tmp_path: Path) -> None:
    """H1, H160"""
    try:
        async with open_world(tmp_path, store_class=CommitFailsStore) as world:
            CommitFails.armed = True
            with pytest.raises(SwapdError) as caught:
                await world.admission.admit(CALLER, asked())
            assert caught.value.code == Code.STORE_FAILED
            assert world.told(into.Start, into.Cancel) == ["a Start", "a Cancel"]
            await world.check_baseline()
    finally:
        CommitFails.armed = False


async def test_a_caller_that_goes_while_a_worker_is_asked_leaves_nothing(tmp_path: Path) -> None:
    """H46: no partial reservation."""
    async with open_world(tmp_path) as world, trio.open_nursery() as nursery:
        asked_now = trio.Event()

        async def hang(link: ScriptedLink, body: object) -> object:
            asked_now.set()
            return await trio.sleep_forever()

        world.a.on(into.Start, hang)
        nursery.start_soon(world.admission.admit, CALLER, asked())
        await asked_now.wait()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            assert world.told(into.Cancel) == ["a Cancel"]
            await world.check_baseline()


async def test_a_caller_that_goes_while_the_row_is_written_leaves_a_session(tmp_path: Path) -> None:
    """H1: what is in the store is here, too."""
    try:
        async with open_world(tmp_path, store_class=GatedStore) as world, trio.open_nursery() as nursery:
            GatedConnection.reached.clear()
            GatedConnection.gate.clear()
            nursery.start_soon(world.admission.admit, CALLER, asked())
            assert await trio.to_thread.run_sync(GatedConnection.reached.wait, 10)
            nursery.cancel_scope.cancel()
            GatedConnection.gate.set()
            with trio.CancelScope(shield=True):
                await world.until(lambda: len(list(world.table)) == 1)
                assert world.told(into.Cancel) == []
                await world.check_baseline()
    finally:
        GatedConnection.gate.set()


async def test_a_worker_lost_while_the_row_is_written_has_its_session_resolved(tmp_path: Path) -> None:
    """H158, B18: its loss was told before the session was known."""
    try:
        async with open_world(tmp_path, store_class=GatedStore) as world, trio.open_nursery() as nursery:
            GatedConnection.reached.clear()
            GatedConnection.gate.clear()
            nursery.start_soon(world.admission.admit, CALLER, asked())
            assert await trio.to_thread.run_sync(GatedConnection.reached.wait, 10)
            world.lose("a")
            GatedConnection.gate.set()
            await world.until(lambda: len(list(world.table)) == 1)
            (session,) = world.table
            await world.until(lambda: session.record.owner == world.b.owner and not session.recovering)
            await world.check_baseline()
    finally:
        GatedConnection.gate.set()


async def test_a_worker_is_open_only_when_nobody_keeps_it_closed(tmp_path: Path) -> None:
    """H44, H51: a drain's end does not open a device that is not lent, nor the other way round."""
    async with open_world(tmp_path) as world:
        door = world.admission
        door.close("a", "drain", "draining")
        door.close("a", "device", "taken back")
        door.close("a", "device", "taken back again")
        assert door.closed == {"a": "draining; taken back again"}
        door.reopen("a", "drain")
        door.reopen("a", "drain")
        assert (door.admitting("a"), door.closed) == (False, {"a": "taken back again"})
        door.close("a", "drain", "draining")
        door.reopen("a", "device")
        assert not door.admitting("a")
        door.reopen("a", "drain")
        assert (door.admitting("a"), door.closed) == (True, {})


async def test_where_devices_are_why_nobody_admits_they_are_named(tmp_path: Path) -> None:
    """R60: with code and `Retry-After`; a worker that admits is used and nothing is said."""
    async with open_world(tmp_path) as world:
        world.admission.refusal = lambda: SwapdError(Code.DEVICE_CALIBRATING, "gpu0: 3 of 60", 285.0)
        world.admission.close("a", "device", "calibrating")
        assert (await world.admission.admit(CALLER, asked())).record.owner == world.b.owner
        world.b.lose()
        with pytest.raises(SwapdError) as caught:
            await world.admission.admit(CALLER, asked())
        error = caught.value
        assert (error.code, error.status, error.retryable) == (Code.DEVICE_CALIBRATING, 503, True)
        assert (error.retry_after_s, "3 of 60" in error.sentence) == (285.0, True)
