"""Whole deployments with the sim engine: what a client receives is what an unmoved engine makes.

The sim's tokens depend on every byte of its blocks, so equality with the reference shows that each block
arrived, once and in its place.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import trio

from swapd.client import HttpClient
from swapd.config import SimConfig
from swapd.engines.sim import SimEngine
from swapd.messages.generation import GenerationSpec, Sampling
from swapd.store.writer import Store
from tests.e2e.deployment import OTHER, REPO, TENANT, Deployment, reading

STEP_MS = 5.0
LONG = 600
"""Tokens of a session that outlives what is done to it, also where this process must wait: three seconds."""
ENDLESS = 12_000
"""Of one that is cancelled when enough was seen of it: a minute, which nothing here lasts."""
EXTRA = f"""
[sim]
step_ms = {STEP_MS}

[timers]
rpc_s = 5.0
freeze_s = 5.0
prepare_s = 10.0
heartbeat_s = 0.25
"""

pytestmark = pytest.mark.timeout(120)
EVERYWHERE = partial(pytest.param, marks=pytest.mark.each_python)


def reference(prompt: Sequence[int], count: int, **sampling: Any) -> list[int]:
    """The tokens of an engine that nobody moves."""
    engine = SimEngine(SimConfig(step_ms=0.0))
    mode = Sampling(**({"temperature": 0.0, "ignore_eos": True} | sampling))
    engine.start("x", GenerationSpec("x", tuple(prompt), mode, count), ())
    tokens: list[int] = []
    while engine.runnable():
        tokens += [token.token_id for token in engine.step().tokens]
    return tokens


def prompt(number: int, length: int = 200) -> list[int]:
    return [(number * 131 + position * 7) % 1000 + 1 for position in range(length)]


@pytest.fixture
async def running(request: pytest.FixtureRequest) -> AsyncIterator[Deployment]:
    """A deployment of a test's own; its parameter is one more timer."""
    deployment = Deployment("sim", extra=EXTRA + getattr(request, "param", ""))
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
async def test_eight_sessions_leave_together_and_arrive_whole(shared: Deployment) -> None:
    """H52, H54, H57, H63, H75, H80: one drain, eight native moves, copy intervals overlap, nothing lost."""
    prompts = [prompt(n, 150 + 40 * n) for n in range(8)]
    seeds = [{"temperature": 0.8, "seed": n} if n % 2 else {} for n in range(8)]
    assert (await shared.drain("b"))["state"] == "drained"  # an empty worker, at once
    sessions = []
    for text, sampling in zip(prompts, seeds, strict=True):
        # So long that none ends before it has moved; all are cancelled then.
        sessions.append(await shared.create(text, 6000, **sampling))
    async with reading(shared, *sessions) as readings:
        for one in readings:
            await one.wait_tokens(20)
        sources = {await shared.where(session) for session in sessions}
        for source in sorted(sources):
            view = await shared.drain(source)
            assert view["state"] == "drained", view
            moved = [s for s in view["sessions"] if s["outcome"] == "completed_native"]
            assert len(moved) == len(view["sessions"]) > 0, view
            assert all(s["reuse"] == 1.0 and s["recomputed_tokens"] == 0 for s in moved)
            assert all(s["frozen_bytes"] <= 4096 for s in moved)
            # Not one after the other: the last to begin began before another's end.
            *others, last = sorted(moved, key=lambda s: float(s["copy_started_at"]))
            assert not others or last["copy_started_at"] < max(s["copy_ended_at"] for s in others)
        for one in readings:
            await one.wait_tokens(len(one.tokens) + 20)
        await shared.cancel_left()
    for one, text, sampling in zip(readings, prompts, seeds, strict=True):
        one.check_gapless()
        assert one.tokens == reference(text, len(one.tokens), **sampling)
    views = await shared.wait_settled()
    assert all(view["free_blocks"] == view["usable_blocks"] for view in views.values())
    assert all(view["stats"]["recomputed_tokens"] == 0 for view in views.values())


@pytest.mark.parametrize("moment", [0.0, 0.02, EVERYWHERE(0.04), 0.06, 0.08, 0.12])
async def test_a_target_killed_during_a_drain_loses_nothing(running: Deployment, moment: float) -> None:
    """H67, B22: whatever the step, the source goes on or the session comes home; no token lost or doubled."""
    session = await running.create(prompt(1, 1500), LONG)
    async with reading(running, session) as readings:
        await readings[0].wait_tokens(10)
        source = await running.where(session)
        target = "b" if source == "a" else "a"
        await running.call("POST", f"/v1/workers/{source}/drains", {}, 202)
        await trio.sleep(moment)
        running.kill_worker(target)
    readings[0].check_gapless()
    if readings[0].events[-1].name == "completed":
        assert readings[0].tokens == reference(prompt(1, 1500), LONG)
    else:
        # The target owned it and had shown tokens: its loss ends a session that permits no replay (H145).
        assert readings[0].events[-1].json()["code"] == "recovery_unavailable"
        got = readings[0].tokens
        assert got == reference(prompt(1, 1500), LONG)[: len(got)]
        assert (await running.call("GET", f"/v1/sessions/{session}"))["epoch"] >= 2


@pytest.mark.parametrize("moment", [0.0, EVERYWHERE(0.02), 0.06])
@pytest.mark.parametrize("permitted", [True, False])
async def test_a_source_killed_during_a_drain_is_decided_at_once(
    running: Deployment, moment: float, permitted: bool
) -> None:
    """H10, H27, H70, H74, H145, H158: replay where permitted, else recovery_unavailable with its cursor."""
    session = await running.create(prompt(2, 1200), LONG, allow_replay_fallback=permitted)
    async with reading(running, session) as readings:
        await readings[0].wait_tokens(10)
        source = await running.where(session)
        await running.call("POST", f"/v1/workers/{source}/drains", {}, 202)
        await trio.sleep(moment)
        running.kill_worker(source)
    readings[0].check_gapless()
    expected, got = reference(prompt(2, 1200), LONG), readings[0].tokens
    assert got == expected[: len(got)]
    last = readings[0].events[-1]
    if permitted:
        assert last.name == "completed"
        return
    # Nothing of an old session is computed again anywhere (H74).
    views = await running.workers()
    assert all(view["stats"].get("recomputed_tokens", 0) == 0 for view in views.values())
    if last.name != "completed":
        assert (last.name, last.json()["code"]) == ("failed", "recovery_unavailable")
        assert last.json()["accepted"] == len(got)
        view = await running.call("GET", f"/v1/sessions/{session}")
        assert (view["state"], view["code"]) == ("failed", "recovery_unavailable")
        assert (view["accepted"], view["cursor"]) == (len(got), len(got) + 1)


@pytest.mark.parametrize("moment", [None, 0.0, 0.03, EVERYWHERE(0.06), 0.1])
async def test_a_coordinator_killed_at_any_time_loses_nothing(
    running: Deployment, moment: float | None
) -> None:
    """H142-H149, H151, H153, H159, H1, H16, H18, H23, H65: workers go on, the next coordinator finds them.

    Streams resume by cursor, gapless, in every state of their session and on both owners.
    """
    sessions = [await running.create(prompt(n, 900), 250) for n in range(3)]
    async with reading(running, *sessions) as readings:
        for one in readings:
            await one.wait_tokens(10)
        pids = {running.worker_ready(w).pid for w in ("a", "b")}  # type: ignore[union-attr]  # both are up
        drain = None
        if moment is not None:
            drain = (await running.call("POST", "/v1/workers/a/drains", {}, 202))["id"]
            await trio.sleep(moment)
        running.kill_coordinator()
        await running.start()
        assert {running.worker_ready(w).pid for w in ("a", "b")} == pids  # type: ignore[union-attr]  # as above
    for number, one in enumerate(readings):
        one.check_gapless()
        assert one.events[-1].name == "completed", one.events[-1]
        assert one.tokens == reference(prompt(number, 900), 250)
    views = await running.wait_settled()
    assert all(view["free_blocks"] == view["usable_blocks"] for view in views.values())
    if drain is not None:
        # It goes on after the restart, and opens the worker at its end (H65, decision 10).
        with trio.fail_after(60):
            while (view := await running.call("GET", f"/v1/drains/{drain}"))["state"] == "running":  # noqa: ASYNC110
                await trio.sleep(0.05)
        assert view["state"] == "drained"
        assert all(s["outcome"] is not None for s in view["sessions"])
        assert (await running.workers())["a"]["admitting"]


async def test_a_drain_keeps_its_outcomes_over_a_restart() -> None:
    """H54, H65: what moved before the coordinator was killed is still said to have moved."""
    running = Deployment("sim", extra=EXTRA.replace("[sim]", "[sim]\nblocks = 512"))
    try:
        await running.start()
        # Where the first one is, there is room for the last one and not for the second.
        full = await running.create(prompt(3), 4600)
        stays = await running.create(prompt(1), 3500)
        moves = await running.create(prompt(2), 2500)
        source = await running.where(stays)
        assert source == await running.where(moves) != await running.where(full)
        async with reading(running, moves) as readings:
            await readings[0].wait_tokens(5)
            view = await running.call("POST", f"/v1/workers/{source}/drains", {}, 202)
            while {s["session"]: s["outcome"] for s in view["sessions"]}.get(moves) != "completed_native":
                await trio.sleep(0.02)
                view = await running.call("GET", f"/v1/drains/{view['id']}")
            running.kill_coordinator()
            await running.start()
            await running.call("DELETE", f"/v1/sessions/{stays}")
            while view["state"] == "running":
                await trio.sleep(0.02)
                view = await running.call("GET", f"/v1/drains/{view['id']}")
            await running.cancel_left()
    finally:
        await trio.to_thread.run_sync(running.close)
    found = {s["session"]: (s["outcome"], s["reason"]) for s in view["sessions"]}
    # The kill may come between the move's end and its row: then the restart has closed it.
    assert found[moves] in {("completed_native", None), ("completed_native", "coordinator_restart")}
    assert found[stays] == ("cancelled", "session_cancelled")


async def test_a_clean_stop_leaves_running_sessions_to_the_next_start() -> None:
    """H151, H230: SIGTERM ends the coordinator with 0; its workers keep their sessions until it is back."""
    deployment = Deployment("sim", extra=EXTRA)
    deployment.config.write_text(deployment.config.read_text().replace('"always"', '"idle"'))
    try:
        await deployment.start()
        session = await deployment.create(prompt(4), 200)
        async with reading(deployment, session) as readings:
            await readings[0].wait_tokens(10)
            assert await trio.to_thread.run_sync(deployment.stop_coordinator) == 0
            await deployment.start()
        readings[0].check_gapless()
        assert readings[0].tokens == reference(prompt(4), 200)
        deployment.config.write_text(deployment.config.read_text().replace('"idle"', '"always"'))
        assert await trio.to_thread.run_sync(deployment.stop_coordinator) == 0
        await deployment.start()
    finally:
        await trio.to_thread.run_sync(deployment.close)


@pytest.mark.each_python
async def test_a_signal_while_starting_ends_what_was_begun() -> None:
    """H230: SIGTERM when HTTP begins to listen and the workers are being started: exit 0, nobody is left."""
    deployment = Deployment("sim", extra=EXTRA)
    try:
        script = f"""
import signal, trio
from functools import partial
from pathlib import Path
from swapd.serve import serve
stop = lambda host, port, link: signal.raise_signal(signal.SIGTERM)
trio.run(partial(serve, Path({str(deployment.config)!r}), announce=stop))
"""
        process = await trio.run_process([sys.executable, "-c", script], check=False, cwd=REPO)
        assert process.returncode == 0
        assert deployment.processes() == []
    finally:
        await trio.to_thread.run_sync(deployment.close)


@pytest.mark.timeout(400)
async def test_a_hundred_drains_leave_everything_as_it_was(running: Deployment) -> None:
    """H49, H97, H210 in small: blocks, regions, descriptors and threads of every process are as before."""
    # So long that it outlives the drains on the slowest machine.
    session = await running.create(prompt(5), 16_000, on_disconnect="continue")
    async with reading(running, session) as readings:
        await readings[0].wait_tokens(10)

        async def drain_there_and_back(times: int) -> None:
            for _ in range(times):
                source = await running.where(session)
                view = await running.drain(source)
                assert [s["outcome"] for s in view["sessions"]] == ["completed_native"], view

        await drain_there_and_back(20)  # lazily opened things are open by now (H210)
        before = await _footprint(running)
        await drain_there_and_back(100)
        after = await _footprint(running)
        # Trio keeps threads for reuse, more of them on a busy machine: what leaked would be a hundred.
        for name, (files, threads) in after.items():
            assert files <= before[name][0], (name, before, after)
            assert threads <= before[name][1] + 4, (name, before, after)
        await running.call("DELETE", f"/v1/sessions/{session}")
    got = readings[0].tokens
    assert got == reference(prompt(5), len(got))
    views = await running.wait_settled()
    assert all(view["free_blocks"] == view["usable_blocks"] for view in views.values())


async def _footprint(deployment: Deployment) -> dict[str, tuple[int, int]]:
    """Open files and threads by process: the least of some looks, as connections come and go."""
    assert deployment.process is not None
    pids = {"coordinator": deployment.process.pid}
    for worker in ("a", "b"):
        ready = deployment.worker_ready(worker)
        assert ready is not None
        pids[worker] = ready.pid
    least = dict.fromkeys(pids, (1 << 20, 1 << 20))
    for _ in range(8):
        await trio.sleep(0.25)
        for name, pid in pids.items():
            files, threads = least[name]
            files = min(files, _open_files(pid))
            least[name] = (files, min(threads, len(os.listdir(f"/proc/{pid}/task"))))
    return least


def _open_files(pid: int) -> int:
    """Descriptors, less the store's own: its few connections are opened when first needed, and kept."""
    count = 0
    for entry in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += "swapd.db" not in os.readlink(f"/proc/{pid}/fd/{entry}")
    return count


@pytest.mark.parametrize("running", ["reserve_s = 0.5"], indirect=True)
async def test_a_cancelled_drain_reopens_the_worker_and_leaves_sessions_where_they_are(
    running: Deployment,
) -> None:
    """H61, H58: a drain that cannot move anything is blocked at its deadline and ends by cancel alone."""
    session = await running.create(prompt(6), ENDLESS)
    async with reading(running, session) as readings:
        await readings[0].wait_tokens(5)
        source = await running.where(session)
        target = "b" if source == "a" else "a"
        running.kill_worker(target, signal.SIGSTOP)
        view = await running.drain(source, {"deadline_s": 0.2})
        assert view["state"] == "blocked"
        view = await running.call("DELETE", f"/v1/drains/{view['id']}")
        assert view["state"] == "cancelled"
        running.kill_worker(target, signal.SIGCONT)
        workers = await running.workers()
        assert workers[source]["admitting"]
        await readings[0].wait_tokens(len(readings[0].tokens) + 20)
        assert await running.where(session) == source
        await running.cancel_left()
    readings[0].check_gapless()
    assert readings[0].tokens == reference(prompt(6), len(readings[0].tokens))


@pytest.mark.each_python
async def test_a_second_coordinator_on_the_store_fails_at_once(shared: Deployment) -> None:
    """H122: `coordinator_lock_held`, non-zero, and the first goes on."""
    command = [sys.executable, "-m", "swapd", "serve", "--config", str(shared.config)]
    second = await trio.run_process(command, check=False, capture_stderr=True, capture_stdout=True)
    assert second.returncode != 0
    assert b"coordinator_lock_held" in second.stderr + second.stdout
    await shared.call("GET", "/readyz")


async def test_a_service_does_not_start_on_the_store_of_a_newer_one() -> None:
    """H162: an older build says so in one sentence, and touches neither the store nor a socket."""
    deployment = Deployment("sim", extra=EXTRA)
    try:
        database = deployment.folder / "swapd.db"
        Store.open(database).close()
        with contextlib.closing(sqlite3.connect(database)) as db, db:
            db.execute("INSERT INTO _sqlite_migrations (migration_set, name) VALUES ('swapd', '0099_future')")
        before = database.read_bytes()
        command = [sys.executable, "-m", "swapd", "serve", "--config", str(deployment.config)]
        served = await trio.run_process(command, check=False, capture_stderr=True, capture_stdout=True)
        assert served.returncode == 2
        assert b"The store was written by a newer swapd. (it has 0099_future) [schema_newer]" in served.stderr
        assert database.read_bytes() == before
        assert not list((deployment.folder / "s").iterdir())
    finally:
        await trio.to_thread.run_sync(deployment.close)


async def test_a_session_that_has_not_begun_begins_elsewhere_and_is_whole(shared: Deployment) -> None:
    """B18: nobody read it, so nothing had come; it permits no replay, and needs no permission."""
    session = await shared.create(prompt(3), 40)
    source = await shared.where(session)
    view = await shared.drain(source)
    assert view["state"] == "drained"
    assert [(each["session"], each["outcome"]) for each in view["sessions"]] == [
        (session, "completed_redispatch")
    ]
    assert await shared.where(session) != source
    async with reading(shared, session) as readings:
        pass
    readings[0].check_gapless()
    assert readings[0].tokens == reference(prompt(3), 40)
    views = await shared.wait_settled()
    assert all(view["free_blocks"] == view["usable_blocks"] for view in views.values())


@pytest.mark.each_python
async def test_bad_requests_are_refused_with_their_code_and_reach_no_engine(shared: Deployment) -> None:
    """H4-H9: each refusal has its status and code; nothing was reserved for any of them."""
    good = {"prompt": [1, 2, 3], "max_new_tokens": 4}
    cases: list[tuple[object, int, str]] = [
        (good | {"prompt": []}, 422, "prompt_empty"),
        (good | {"prompt": ""}, 422, "prompt_empty"),
        (good | {"max_new_tokens": 0}, 422, "invalid_request"),
        (good | {"max_new_tokens": 10**9}, 422, "budget_exceeded"),
        (good | {"prompt": [1] * 16000, "max_new_tokens": 385}, 422, "budget_exceeded"),
        (good | {"prompt": [5000]}, 422, "invalid_request"),
        (good | {"model": "nope"}, 404, "model_unknown"),
        (good | {"logprobs": 3}, 422, "invalid_request"),
    ]
    for body, status, code in cases:
        answer = await shared.call("POST", "/v1/sessions", body, status)
        assert answer["error"]["code"] == code, (body, answer)
    assert (await shared.call("GET", "/v1/sessions"))["sessions"] == []
    answer = await shared.call("POST", "/v1/workers/nope/drains", {}, 404)
    assert answer["error"]["code"] == "worker_unknown"
    views = await shared.workers()
    assert all(view["committed_blocks"] == 0 for view in views.values())


@pytest.mark.each_python
async def test_another_namespace_sees_nothing_and_a_tenant_may_not_operate(shared: Deployment) -> None:
    """H9: foreign sessions are as unknown as none; operator routes answer 403 to a tenant."""
    tenant = HttpClient(shared.client.base_url, TENANT)
    other = HttpClient(shared.client.base_url, OTHER)
    status, made = await tenant.request("POST", "/v1/sessions", {"prompt": [1, 2], "max_new_tokens": 4})
    assert status == 201
    path = f"/v1/sessions/{made['id']}"
    unknown = await other.request("GET", "/v1/sessions/ses_000000000000000000000000")
    assert unknown[0] == 404
    for method, where in (("GET", path), ("DELETE", path), ("GET", f"{path}/events")):
        assert await other.request(method, where) == unknown
    assert (await tenant.request("POST", "/v1/workers/a/drains"))[0] == 403
    assert (await HttpClient(shared.client.base_url, "wrong").request("GET", path))[0] == 401
    status, _ = await tenant.request("DELETE", path)
    assert status == 200


def test_the_reference_itself_depends_on_every_byte() -> None:
    """The comparison can fail: another prompt or seed makes other tokens."""
    base = reference(prompt(1), 50)
    assert reference([*prompt(1)[:-1], 7], 50) != base
    assert reference(prompt(1), 50, temperature=0.7, seed=1) != reference(
        prompt(1), 50, temperature=0.7, seed=2
    )


async def test_without_an_arena_that_is_large_enough_sessions_stay_and_serving_goes_on() -> None:
    """H91, H92: a move is refused with both sizes, the limits tell what the arena is, serving goes on."""
    deployment = Deployment("sim", extra=EXTRA)
    text = deployment.config.read_text().replace(f"arena_bytes = {64 << 20}", "arena_bytes = 1048576")
    deployment.config.write_text(text)
    try:
        await deployment.start()
        transfer = (await deployment.call("GET", "/v1/limits"))["transfer"]
        assert transfer["kind"] == "arena"
        assert transfer["bytes"] <= 1048576
        assert isinstance(transfer["page_locked"], bool)
        session = await deployment.create(prompt(7, 4300), ENDLESS)
        async with reading(deployment, session) as readings:
            await readings[0].wait_tokens(5)
            view = await deployment.drain(await deployment.where(session), {"deadline_s": 0.3})
            assert view["state"] == "blocked"
            (outcome,) = view["sessions"]
            assert outcome["reason"] == "arena_too_small"
            needed = -(-(4300 + ENDLESS) // 16) * 4096
            assert str(needed) in outcome["detail"]
            await deployment.call("DELETE", f"/v1/drains/{view['id']}")
            await readings[0].wait_tokens(len(readings[0].tokens) + 20)
            await deployment.cancel_left()
        readings[0].check_gapless()
        assert readings[0].tokens == reference(prompt(7, 4300), len(readings[0].tokens))
    finally:
        await trio.to_thread.run_sync(deployment.close)
