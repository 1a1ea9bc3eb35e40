"""Serving by real processes with the sim engine: what is admitted, held, cancelled, and found again."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing

import pytest
import trio

from tests.e2e.deployment import REPO, Deployment, reading
from tests.e2e.test_sim import ENDLESS, EXTRA, prompt, reference

pytestmark = pytest.mark.timeout(120)


@asynccontextmanager
async def deployed(top: str = "") -> AsyncIterator[Deployment]:
    """A deployment of a test's own."""
    deployment = Deployment("sim", extra=EXTRA, top=top)
    try:
        await deployment.start()
        yield deployment
    finally:
        await trio.to_thread.run_sync(deployment.close)


@pytest.fixture(scope="module")
def shared() -> Iterator[Deployment]:
    """One deployment for the tests that leave it as they found it."""
    deployment = Deployment("sim", extra=EXTRA)
    try:
        trio.run(deployment.start)
        yield deployment
    finally:
        deployment.close()


@pytest.mark.each_python
async def test_a_cancel_frees_what_the_session_held(shared: Deployment) -> None:
    """H11, H3: on the worker and in the ledger; a second cancel answers the same."""
    session = await shared.create(prompt(1), ENDLESS)
    async with reading(shared, session) as readings:
        await readings[0].wait_tokens(5)
        first = await shared.call("DELETE", f"/v1/sessions/{session}")
        views = await shared.wait_settled()
        assert all(view["free_blocks"] == view["usable_blocks"] for view in views.values())
    assert first["state"] == "cancelled"
    assert await shared.call("DELETE", f"/v1/sessions/{session}") == first
    readings[0].check_gapless()
    assert readings[0].events[-1].name == "cancelled"


@pytest.mark.each_python
async def test_a_session_that_nobody_reads_computes_nothing(shared: Deployment) -> None:
    """H32: before its first reader, and once the last has left; others run to their ends meanwhile."""
    session = await shared.create(prompt(2), 600)

    async def accepted_after_another() -> int:
        async with reading(shared, await shared.create(prompt(3), 60)):
            pass
        return int((await shared.call("GET", f"/v1/sessions/{session}"))["accepted"])

    assert await accepted_after_another() == 0
    await _read_some(shared, session)
    # It may take the service a moment to see that the reader has gone.
    stopped_at = await accepted_after_another()
    assert 5 <= stopped_at < 600
    assert await accepted_after_another() == stopped_at
    async with reading(shared, session) as readings:
        pass
    assert readings[0].tokens == reference(prompt(2), 600)
    await shared.wait_settled()


@pytest.mark.each_python
async def test_prompt_and_budget_fill_the_context_to_the_last_token(shared: Deployment) -> None:
    """H6, H164: 16,384 together are taken; one more is refused and nothing of it is kept."""
    session = await shared.create([1] * 16_000, 384)
    body = {"prompt": [1] * 16_000, "max_new_tokens": 385}
    assert (await shared.call("POST", "/v1/sessions", body, 422))["error"]["code"] == "budget_exceeded"
    listed = (await shared.call("GET", "/v1/sessions"))["sessions"]
    assert [view["id"] for view in listed] == [session]
    views = await shared.workers()
    assert sum(view["committed_blocks"] for view in views.values()) == 16_384 // 16
    await shared.call("DELETE", f"/v1/sessions/{session}")
    await shared.wait_settled()


@pytest.mark.each_python
async def test_long_sessions_leave_in_one_drain(shared: Deployment) -> None:
    """H63: four at 0.5k and 2k; none is lost, and their order does not matter."""
    lengths = [512, 2_000, 530, 2_048]
    sessions = [await shared.create(prompt(n, length), ENDLESS) for n, length in enumerate(lengths)]
    async with reading(shared, *sessions) as readings:
        for one in readings:
            await one.wait_tokens(3)
        sources = sorted({await shared.where(session) for session in sessions})
        for source in sources:
            view = await shared.drain(source)
            assert view["state"] == "drained", view
            assert all(s["outcome"] == "completed_native" for s in view["sessions"]), view
        for one in readings:
            await one.wait_tokens(len(one.tokens) + 20)
        await shared.cancel_left()
    for number, one in enumerate(readings):
        one.check_gapless()
        assert one.tokens == reference(prompt(number, lengths[number]), len(one.tokens))
    await shared.wait_settled()


async def test_fifty_parallel_posts_meet_a_limit_of_four() -> None:
    """H41, H43, H47, H166: 201 for exactly 4 and 429 for 46; 4 charges are open, nothing else is stored."""
    async with deployed(top="max_active_sessions = 4") as running:
        statuses: Counter[tuple[int, str | None]] = Counter()
        made: list[str] = []

        async def post() -> None:
            body = {"prompt": [1, 2, 3], "max_new_tokens": 13}
            status, answer = await running.client.request("POST", "/v1/sessions", body)
            if status == 201:
                made.append(answer["id"])
            statuses[status, answer.get("error", {}).get("code")] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(post)
        assert statuses == {(201, None): 4, (429, "capacity"): 46}
        views = await running.workers()
        assert sum(view["sessions"] for view in views.values()) == 4
        assert sum(view["committed_blocks"] for view in views.values()) == 4  # one block each
        listed = (await running.call("GET", "/v1/sessions"))["sessions"]
        assert sorted(view["id"] for view in listed) == sorted(made)
        for session in made:
            await running.call("DELETE", f"/v1/sessions/{session}")
        await running.create([1], 4)  # H43: the slots are free at once
        with closing(sqlite3.connect(f"file:{running.folder}/swapd.db?mode=ro", uri=True)) as db:
            assert db.execute("SELECT count(*) FROM sessions").fetchone() == (5,)


async def test_a_cancel_whose_message_was_lost_reaches_the_worker_at_the_next_attach() -> None:
    """H12: the coordinator dies between the durable cancel and the worker; no sweep is waited for."""
    async with deployed(top="max_active_sessions = 1") as running:
        session = await running.create(prompt(4), 4000, on_disconnect="continue")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read_some, running, session)
        owner = await running.where(session)
        pid = (await running.workers())[owner]["pid"]
        running.kill_coordinator()
        with closing(sqlite3.connect(running.folder / "swapd.db")) as db, db:
            db.execute(
                "UPDATE sessions SET state = 'cancelled', code = 'session_cancelled', finished_at = ?"
                " WHERE id = ?",
                (time.time(), session),
            )
        await running.start()
        assert (await running.workers())[owner]["pid"] == pid
        # Its one slot and its blocks are there for the next at once.
        await running.create(prompt(5), 10)
        view = await running.call("GET", f"/v1/sessions/{session}")
        assert (view["state"], view["code"]) == ("cancelled", "session_cancelled")
        for listed in (await running.call("GET", "/v1/sessions"))["sessions"]:
            await running.call("DELETE", f"/v1/sessions/{listed['id']}")
        views = await running.wait_settled()
        assert all(view["free_blocks"] == view["usable_blocks"] for view in views.values())


async def _read_some(running: Deployment, session: str) -> None:
    async with running.client.events(session) as events:
        async for event in events:
            if event.id >= 5:
                return


async def test_a_worker_started_by_hand_is_taken_each_time_it_comes() -> None:
    """B31, H104: under a new incarnation, without a restart and without a word in the configuration."""
    deployment = Deployment("sim", extra=EXTRA)
    text = deployment.config.read_text()
    deployment.config.write_text(text.replace('worker_id = "b"', 'worker_id = "b"\nspawn = false'))
    command = [
        sys.executable, "-m", "swapd", "worker", "--engine", "sim", "--worker-id", "b",
        "--socket-dir", str(deployment.folder / "s"),
    ]  # fmt: skip
    by_hand: list[subprocess.Popen[bytes]] = []

    def start_worker() -> None:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=REPO)
        by_hand.append(process)

    try:
        start_worker()
        await deployment.start()
        first = (await deployment.workers())["b"]["incarnation"]
        os.kill(by_hand[0].pid, signal.SIGKILL)
        by_hand[0].wait()
        start_worker()
        with trio.fail_after(30):
            while (await deployment.workers())["b"]["incarnation"] in (first, None):  # noqa: ASYNC110  # its API
                await trio.sleep(0.05)
        await deployment.wait_ready()
        session = await deployment.create(prompt(6), 60)
        async with reading(deployment, session) as readings:
            await readings[0].wait_tokens(3)
        assert readings[0].tokens == reference(prompt(6), 60)
    finally:
        await trio.to_thread.run_sync(deployment.close)
        for process in by_hand:
            process.wait(20)


async def test_without_room_for_the_arena_the_service_starts_and_says_what_is_missing() -> None:
    """H92, H93, H62: serving goes on, moves are refused with both sizes; nothing crashes."""
    deployment = Deployment("sim", extra=EXTRA)
    text = deployment.config.read_text()
    deployment.config.write_text(text.replace(f"arena_bytes = {64 << 20}", f"arena_bytes = {1 << 40}"))
    try:
        await deployment.start()
        session = await deployment.create(prompt(7), ENDLESS)
        async with reading(deployment, session) as readings:
            await readings[0].wait_tokens(3)
            view = await deployment.drain(await deployment.where(session), {"deadline_s": 0.3})
            assert view["state"] == "blocked"
            (outcome,) = view["sessions"]
            assert outcome["reason"] == "arena_unavailable"
            assert str(1 << 40) in outcome["detail"]
            await deployment.call("DELETE", f"/v1/drains/{view['id']}")
            await readings[0].wait_tokens(len(readings[0].tokens) + 20)
            await deployment.cancel_left()
        readings[0].check_gapless()
        assert readings[0].tokens == reference(prompt(7), len(readings[0].tokens))
        assert "no arena" in deployment.log()
    finally:
        await trio.to_thread.run_sync(deployment.close)
