"""The real thing: a real model in two real vLLM workers, sessions moved while clients read on.

That the moved continuation is the unmoved one is shown by `ops/bench_handoff.py` with a control at the same
step schedule; here the claims are about streams, outcomes and what is left behind.
"""

from __future__ import annotations

import itertools
import signal
import statistics
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from tests.e2e.deployment import Deployment, Reading, reading
from tests.e2e.failpoints import Points

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]

TEXT = (
    "In the autumn of that year the harbour froze early, and the captain, who had never trusted the almanac, "
    "wrote in his log that the ships would have to wait. "
)


@pytest.fixture
async def service(vllm_deployment: Deployment) -> AsyncIterator[Deployment]:
    """The shared deployment, at rest before and after."""
    await vllm_deployment.wait_ready(120)
    yield vllm_deployment
    # A test that failed leaves sessions that nobody reads: they would hold up every test after it.
    await vllm_deployment.cancel_left()
    views = await vllm_deployment.wait_settled(120)
    assert all(view["free_blocks"] == view["usable_blocks"] for view in views.values())


async def test_a_generation_moves_while_its_client_reads_on(service: Deployment) -> None:
    """H57, H75, H80: text goes on without gap or repeat; KV moved, nothing was computed again."""
    recomputed = {w: v["stats"]["recomputed_tokens"] for w, v in (await service.workers()).items()}
    session = await service.create(f"1. {TEXT * 4}", 150)
    async with reading(service, session) as readings:
        await readings[0].wait_tokens(15)
        source = await service.where(session)
        view = await service.drain(source)
        assert view["state"] == "drained"
        (moved,) = view["sessions"]
        assert (moved["outcome"], moved["reuse"], moved["recomputed_tokens"]) == ("completed_native", 1.0, 0)
        assert moved["frozen_bytes"] <= 737_280  # one block of 32 tokens
        assert await service.where(session) != source
    readings[0].check_gapless()
    assert len(readings[0].tokens) == 150
    after = {w: v["stats"]["recomputed_tokens"] for w, v in (await service.workers()).items()}
    assert after == recomputed
    print(f"gaps in median token intervals: {worst_gap(readings[0]):.2f}")  # noqa: T201  # for people


def worst_gap(one: Reading) -> float:
    """The largest gap in median intervals. Told, not asserted: the machine may be busy."""
    times = [event.at_s for event in one.events if event.name == "token"]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    return max(gaps) / statistics.median(gaps)


async def test_four_sessions_move_together_there_and_back(service: Deployment) -> None:
    """H63, B27: one drain moves all at once, in every sampling mode, and back again."""
    modes: list[dict[str, object]] = [
        {},
        {"temperature": 0.8, "seed": 5, "top_p": 0.9},
        {"temperature": 0.7, "seed": 6, "top_k": 40, "presence_penalty": 0.5},
        {"frequency_penalty": 0.3, "repetition_penalty": 1.1, "min_tokens": 20},
    ]
    # So long that none ends before the last drain, however unevenly the machine runs the two workers.
    sessions = [await service.create(f"{n}. {TEXT * 2}", 1000, **mode) for n, mode in enumerate(modes)]
    async with reading(service, *sessions) as readings:
        for one in readings:
            await one.wait_tokens(5)
        for worker in ("a", "b", "a"):
            expected = {session for session in sessions if await service.where(session) == worker}
            view = await service.drain(worker)
            assert view["state"] == "drained"
            outcomes = {s["session"]: s["outcome"] for s in view["sessions"]}
            assert outcomes == dict.fromkeys(expected, "completed_native"), service.log()
            # Not one after the other: the last to begin began before another's end.
            *others, last = sorted(view["sessions"], key=lambda s: float(s["copy_started_at"]))
            assert not others or last["copy_started_at"] < max(s["copy_ended_at"] for s in others)
        counts = [len(one.tokens) for one in readings]
        for one, count in zip(readings, counts, strict=True):
            await one.wait_tokens(count + 10)
        await service.cancel_left()
    for one in readings:
        one.check_gapless()
        assert one.events[-1].name == "cancelled"


async def test_a_generation_waits_in_host_memory_and_goes_on_without_a_prefill(service: Deployment) -> None:
    """B3, H75: both workers drained, so parked; then resumed with the KV that it had: the same tokens."""
    prompt = f"3. {TEXT * 3}"
    plain = await service.create(prompt, 120)
    async with reading(service, plain) as readings:
        pass
    expected = readings[0].tokens
    recomputed = {w: v["stats"]["recomputed_tokens"] for w, v in (await service.workers()).items()}
    session = await service.create(prompt, 120)
    async with reading(service, session) as readings:
        await readings[0].wait_tokens(10)
        source = await service.where(session)
        other = "b" if source == "a" else "a"
        # The other one stays closed: it has a session without a first token, which can begin nowhere else.
        waits = await service.create("wait", 5)
        assert await service.where(waits) == other
        body = {"workers": [source, other], "mode": "park"}
        begun = (await service.call("POST", "/v1/drains", body, 202))["drains"]
        (view,) = (drain for drain in begun if drain["worker"] == source)
        with trio.fail_after(60):
            while view["state"] == "running":  # another process's state
                await trio.sleep(0.02)
                view = await service.call("GET", f"/v1/drains/{view['id']}")
        (parked,) = view["sessions"]
        assert (view["state"], parked["outcome"]) == ("drained", "parked")
        await service.call("DELETE", f"/v1/sessions/{waits}")
    readings[0].check_gapless()
    assert readings[0].tokens == expected
    after = {w: v["stats"]["recomputed_tokens"] for w, v in (await service.workers()).items()}
    assert after == recomputed


async def test_a_stop_string_that_crosses_a_move_is_found_and_hidden(service: Deployment) -> None:
    """H17, H30: text and stop strings know nothing of the move; tokens after the stop do not exist."""
    plain = await service.create(f"7. {TEXT * 2}", 60)
    async with reading(service, plain) as readings:
        pass
    words = "".join(e.json()["text"] for e in readings[0].events if "text" in e.json()).split()
    # A word far enough in for the move to happen before it; its first occurrence ends the session.
    stop = next(word for word in words[20:] if len(word) > 4)
    stopped = await service.create(f"7. {TEXT * 2}", 60, stop=[stop])
    async with reading(service, stopped) as readings:
        await readings[0].wait_tokens(3)
        await service.drain(await service.where(stopped))
    readings[0].check_gapless()
    end = readings[0].events[-1].json()
    text = "".join(e.json()["text"] for e in readings[0].events if "text" in e.json())
    assert stop not in text
    assert end["finish_reason"] in ("stop", "length")


async def test_a_worker_killed_while_it_is_drained_is_replaced_and_its_sessions_decided(
    service: Deployment,
) -> None:
    """B24, H73, H145, H150, H158, B32: in one pass, with what had been copied, from nothing, and ended."""
    points = Points(service)
    decoy = await service.create("decoy", 3000)  # nobody reads it: it only keeps the others on one worker
    copied = await service.create(f"3. {TEXT * 5}", 150, allow_replay_fallback=True)
    short = await service.create("4.", 150, allow_replay_fallback=True)
    forbids = await service.create(f"5. {TEXT * 5}", 150)
    owner = await service.where(copied)
    other = "b" if owner == "a" else "a"
    assert [await service.where(each) for each in (decoy, short, forbids)] == [other, owner, owner]
    before = (await service.workers())[other]["stats"]["recomputed_tokens"]
    async with reading(service, copied, short, forbids) as readings:
        for one in readings:
            await one.wait_tokens(2)
        await service.call("DELETE", f"/v1/sessions/{decoy}")
        points.arm("coordinator", "C.after")
        drain = (await service.call("POST", f"/v1/workers/{owner}/drains", {}, 202))["id"]
        await points.reached("coordinator", "C.after")
        with trio.fail_after(60):
            while not (await told(service, drain))[copied]["precopied_bytes"]:  # noqa: ASYNC110  # others' state
                await trio.sleep(0.02)
        old = service.kill_worker(owner)
        points.let_go("coordinator", "C.after")
    points.clear()
    for one in readings:
        one.check_gapless()
    assert [one.events[-1].name for one in readings] == ["completed", "completed", "failed"]
    assert [len(one.tokens) for one in readings[:2]] == [150, 150]
    assert readings[2].events[-1].json()["code"] == "recovery_unavailable"
    outcomes = await told(service, drain)
    for session in (copied, short):
        assert (outcomes[session]["outcome"], outcomes[session]["reason"]) == (
            "completed_replay",
            "source_lost",
        )
    assert outcomes[forbids]["outcome"] == "failed"
    prompt = (await service.call("GET", f"/v1/sessions/{copied}"))["prompt_tokens"]
    # Of the one, all full blocks of its prompt had come; of the other there was none yet.
    assert 0 < outcomes[copied]["recomputed_tokens"] < prompt // 2 < prompt
    assert outcomes[short]["recomputed_tokens"] > 0
    spent = sum(outcomes[session]["recomputed_tokens"] for session in (copied, short))
    assert (await service.workers())[other]["stats"]["recomputed_tokens"] - before == spent
    await service.wait_ready(200)
    ready = service.worker_ready(owner)
    assert ready is not None
    assert ready.pid != old


async def told(service: Deployment, drain: str) -> dict[str, Any]:
    """What a drain says of each session now."""
    view = await service.call("GET", f"/v1/drains/{drain}")
    return {one["session"]: one for one in view["sessions"]}


async def moved(service: Deployment, drain: str, session: str) -> None:
    with trio.fail_after(60):
        while True:
            if (await told(service, drain)).get(session, {}).get("outcome") == "completed_native":
                return
            await trio.sleep(0.05)


async def test_a_coordinator_that_dies_around_the_commit_leaves_the_session_one_owner(
    service: Deployment,
) -> None:
    """H146, H147, H150: before the commit; when it is written and nobody knows; before the activation."""
    points = Points(service)
    recomputed = {w: v["stats"]["recomputed_tokens"] for w, v in (await service.workers()).items()}
    session = await service.create(f"6. {TEXT * 2}", 1000)
    async with reading(service, session) as readings:
        for point, found in (
            ("K.before", "aborted"),
            ("K.after", "committed_forward"),
            ("V.before", "committed_forward"),
        ):
            await readings[0].wait_tokens(len(readings[0].tokens) + 8)
            source = await service.where(session)
            points.arm("coordinator", point, "kill")
            drain = (await service.call("POST", f"/v1/workers/{source}/drains", {}, 202))["id"]
            await points.reached("coordinator", point)
            assert service.process is not None
            await trio.to_thread.run_sync(service.process.wait, 30.0)
            points.clear()
            await service.start(ready_s=120)
            report = await service.call("GET", "/v1/reconciliation")
            assert {one["session"]: one["result"] for one in report["sessions"]}[session] == found
            # What was not committed is moved by the drain, which goes on as well.
            await moved(service, drain, session)
            assert await service.where(session) != source
        await service.cancel_left()
    readings[0].check_gapless()
    assert readings[0].events[-1].name == "cancelled"
    after = {w: v["stats"]["recomputed_tokens"] for w, v in (await service.workers()).items()}
    assert after == recomputed


async def test_workers_outlive_their_coordinator_with_their_sessions(service: Deployment) -> None:
    """H144, H153: SIGKILL of the coordinator in the middle of a move; the same workers, the same sessions."""
    sessions = [await service.create(f"{n}. {TEXT * 3}", 200) for n in (8, 9)]
    async with reading(service, *sessions) as readings:
        for one in readings:
            await one.wait_tokens(8)
        pids = {worker: view["pid"] for worker, view in (await service.workers()).items()}
        await service.call("POST", f"/v1/workers/{await service.where(sessions[0])}/drains", {}, 202)
        await trio.sleep(0.15)
        service.kill_coordinator()
        await service.start(ready_s=120)
        assert {worker: view["pid"] for worker, view in (await service.workers()).items()} == pids
    for one in readings:
        one.check_gapless()
        assert one.events[-1].name == "completed", one.events[-1]
        assert len(one.tokens) == 200


async def test_a_target_that_stops_answering_costs_the_session_nothing(service: Deployment) -> None:
    """H67, H88: a hung target is given up; the source goes on where it was."""
    session = await service.create(f"4. {TEXT * 3}", 150)
    async with reading(service, session) as readings:
        await readings[0].wait_tokens(8)
        source = await service.where(session)
        target = "b" if source == "a" else "a"
        service.kill_worker(target, signal.SIGSTOP)
        try:
            view = await service.drain(source, {"deadline_s": 1.0})
            assert view["state"] == "blocked"
            await service.call("DELETE", f"/v1/drains/{view['id']}")
        finally:
            service.kill_worker(target, signal.SIGCONT)
        assert await service.where(session) == source
    readings[0].check_gapless()
    assert len(readings[0].tokens) == 150
