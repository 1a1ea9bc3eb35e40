"""Restarts and stopped workers with real processes: the parts of `ops/drill_restart.py`, shortened.

How long things take is reported by the drill; here only what became of every session counts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from ops.restarting.findings import Findings
from ops.restarting.restart import kill_and_restart
from ops.restarting.silence import stop_until_dead, stop_until_moved
from tests.e2e.deployment import Deployment, reading
from tests.e2e.test_sim import prompt, reference

pytestmark = pytest.mark.timeout(120)


@asynccontextmanager
async def deployed(dead_s: float, step_ms: float = 10.0) -> AsyncIterator[Deployment]:
    """A deployment of a test's own, in which a silent worker counts as dead after `dead_s`."""
    sim = f"[sim]\nstep_ms = {step_ms}\nblocks = 16384\n"
    timers = f"[timers]\nrpc_s = 5.0\nheartbeat_s = 0.25\nsuspect_s = {dead_s / 2}\ndead_s = {dead_s}\n"
    deployment = Deployment("sim", extra=sim + timers)
    try:
        await deployment.start()
        yield deployment
    finally:
        await trio.to_thread.run_sync(deployment.close)


def check(found: Findings) -> None:
    failed = [f"{claim.name}: {claim.detail}" for claim in found.claims if not claim.holds]
    assert not failed, failed


async def test_fifty_sessions_live_through_a_killed_coordinator() -> None:
    """H142, H144, H152, H153, H159: each is resumed and says so, and every client has its whole sequence."""
    async with deployed(dead_s=10.0) as deployment:
        found = await kill_and_restart(deployment, sessions=50, tokens=600, tell=lambda line: None)
    check(found)
    assert {"found_to_ready_s", "killed_to_ready_s"} <= set(found.figures)


async def test_a_worker_that_is_continued_late_cannot_disturb_the_new_owner() -> None:
    """H40, H104, B33: what it says is of an old epoch: fenced, counted, and then it drops what it has."""
    async with deployed(dead_s=60.0) as deployment:
        found = await stop_until_moved(deployment, sessions=8, stop_s=1.0, tell=lambda line: None)
    check(found)
    assert found.figures["fenced_messages"] > 0


async def test_a_worker_that_is_silent_is_ended_and_its_sessions_are_decided() -> None:
    """B33, B39, H145, H158: without a restart; nothing of it is left that could be continued."""
    async with deployed(dead_s=3.0) as deployment:
        found = await stop_until_dead(deployment, sessions=8, stop_s=4.5, tell=lambda line: None)
    check(found)


@pytest.mark.each_python
async def test_switches_hold_over_a_killed_coordinator() -> None:
    """H163, A13: what an operator closed is closed after a crash; what runs goes on."""
    async with deployed(dead_s=10.0) as deployment:
        session = await deployment.create(prompt(1), 150)
        async with reading(deployment, session) as readings:
            await readings[0].wait_tokens(5)
            await deployment.call("PUT", "/v1/switches/admission", {"on": False})
            await deployment.call("PUT", "/v1/switches/migration", {"on": False})
            deployment.kill_coordinator()
            deployment.launch()
            body = {"prompt": [1], "max_new_tokens": 1}
            with trio.fail_after(60):
                while not deployment.announced():  # noqa: ASYNC110  # another process's output
                    await trio.sleep(0.02)
            while (await deployment.call("GET", "/v1/reconciliation"))["state"] != "done":  # noqa: ASYNC110
                await trio.sleep(0.02)
            refused = await deployment.call("POST", "/v1/sessions", body, 503)
            assert refused["error"]["code"] == "admission_stopped"
            ready = await deployment.call("GET", "/readyz", expect=503)
            assert ready["reasons"] == ["admission_stopped"]
            view = await deployment.call("GET", "/v1/switches")
            assert (view["admission"], view["migration"]) == (False, False)
            await deployment.call("PUT", "/v1/switches/admission", {"on": True})
            await deployment.call("PUT", "/v1/switches/migration", {"on": True})
            source = await deployment.where(session)
            assert (await deployment.drain(source))["state"] == "drained"
        readings[0].check_gapless()
        assert readings[0].tokens == reference(prompt(1), 150)
