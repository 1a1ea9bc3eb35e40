"""A lent GPU whose driver fails, seen through the whole service: a real coordinator, sampler and sim workers,
the real bindings, and a driver library without a card.

What nobody can measure admits nothing, takes nothing else with it, and comes back without a restart.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.devices.fake_nvml import GIB, LOST, FakeCard, FakeNvml, FakeProcess, FakeUse, compiler
from tests.e2e.deployment import TOKEN, Deployment, reading
from tests.e2e.test_lending_sim import device, gone, state, until
from tests.e2e.test_sim import prompt, reference

HANG = "nvmlDeviceGetProcessUtilization"
ANSWER_S = 5.0
"""For any answer of the API while the driver is out; far above what it takes on a busy machine."""
LENT = {"a": "gpu", "b": "core1"}
EXTRA = f"""
[[devices]]
name = "gpu"
kind = "nvml"
selector = "GPU-00000000-0000-0000-0000-00000000000a"

[[devices]]
name = "core1"
kind = "cpu"
cores = [{min(1, (os.cpu_count() or 1) - 1)}]

[owner]
consent = true
presence = "headless"
gamemode = false
resume_after_s = 0.5

[owner.gpu_pressure]
mode = "fixed"
poll_ms = 250
threshold_pct = 100.0
sustain_s = 3600.0

[sim]
step_ms = 20.0

[timers]
rpc_s = 20.0
freeze_s = 20.0
prepare_s = 10.0
heartbeat_s = 0.25
dead_s = 60.0
"""

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(compiler() is None, reason="the fake NVML is C, and there is no C compiler"),
]


@pytest.fixture
def driver(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path)


@pytest.fixture
async def running(driver: FakeNvml) -> AsyncIterator[Deployment]:
    deployment = Deployment("sim", extra=EXTRA, lent=LENT, env=driver.env())
    try:
        await deployment.start()
        yield deployment
    finally:
        driver.set(hang={}, crash=[])
        await trio.to_thread.run_sync(deployment.close)


def sampler(running: Deployment) -> int:
    """The pid of the GPU's sampler."""
    (pid,) = [
        pid
        for pid in running.processes()
        if b"sampler-nvml" in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    ]
    return pid


def refused(view: Any) -> bool:
    return view["admitting"] is False and view["why"] == "no_readings"


def last_failed(view: Any) -> bool:
    return bool(view["readings"] == "failed")


def last_ok(view: Any) -> bool:
    return bool(view["readings"] == "ok")


def create(url: str) -> tuple[int, str | None, Any]:
    """A session that is asked for: status, `Retry-After`, answer."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=ANSWER_S)
    try:
        body = json.dumps({"prompt": [1, 2], "max_new_tokens": 2})
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/sessions", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Retry-After"], json.loads(answer.read())
    finally:
        connection.close()


@asynccontextmanager
async def answering(running: Deployment) -> AsyncIterator[None]:
    """All the while, `/healthz`, `/status` and the device's view answer in time (else `Unreachable`)."""
    asked = 0

    async def ask() -> None:
        nonlocal asked
        while True:
            for path in ("/healthz", "/status", "/v1/devices"):
                status, _ = await running.client.request("GET", path, timeout_s=ANSWER_S)
                assert status == 200, path
            asked += 1
            await trio.sleep(0.2)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        yield
        nursery.cancel_scope.cancel()
    assert asked


async def check_refused(running: Deployment) -> None:
    """R59, R60: what needs the device is refused; the other device is lent as ever."""
    # On a busy machine a look at the cores may come too early after the one before, and the next is good.
    view = await until(running, "core1", last_ok)
    assert (view["state"], view["admitting"]) == ("lent", True)
    status, answer = await running.client.request("GET", "/readyz")
    assert status == 503
    assert answer["reasons"] == ["no_readings:gpu"]
    created = [await running.create(prompt(n), 5) for n in range(3)]
    assert [await running.where(session) for session in created] == ["b"] * 3
    async with reading(running, *created):
        pass
    await running.call("POST", "/v1/devices/core1/take-back", {})
    await until(running, "core1", state("free"))
    status, retry_after, answer = await trio.to_thread.run_sync(create, running.client.base_url)
    assert (status, answer["error"]["code"], answer["error"]["retryable"]) == (503, "device_not_lent", True)
    assert int(retry_after or 0) > 0
    await running.call("DELETE", "/v1/devices/core1/take-back")
    await until(running, "core1", state("lent"))


async def test_a_driver_that_hangs_closes_its_device_and_nothing_else(
    running: Deployment, driver: FakeNvml
) -> None:
    """R59, R60, H16: 60 s of hang; what runs there goes on, the API answers, and the end of it is enough."""
    session = await session_on(running, "a")
    coordinator = running.process
    worker = running.worker_ready("a")
    assert coordinator is not None
    assert worker is not None
    async with reading(running, session) as readings, answering(running):
        driver.set(hang={HANG: 60.0})
        view = await until(running, "gpu", last_failed)
        assert view["admitting"] is True  # a reading that is young enough is still good
        view = await until(running, "gpu", refused)
        assert "GPU driver not answering" in view["sentence"]
        await check_refused(running)
        seen = len(readings[0].tokens)
        await readings[0].wait_tokens(seen + 5)
        driver.set(hang={})
        view = await until(running, "gpu", state("lent"))
        await until(running, "gpu", lambda view: view["admitting"] is True and last_ok(view))
        await running.wait_ready()
        await running.client.request("DELETE", f"/v1/sessions/{session}")
    readings[0].check_gapless()
    assert readings[0].tokens == reference(prompt(1), LONG)[: len(readings[0].tokens)]
    assert coordinator.poll() is None
    assert not gone(worker.pid)


LONG = 12_000
"""Tokens: four minutes, which no test here lasts."""


async def session_on(running: Deployment, worker: str) -> str:
    """A long session on the worker that is wanted."""
    for _ in range(8):
        session = await running.create(prompt(1), LONG)
        if await running.where(session) == worker:
            return session
        await running.client.request("DELETE", f"/v1/sessions/{session}")
    raise AssertionError(f"no session came to {worker}")


@pytest.mark.each_python
async def test_a_lost_gpu_that_comes_back_is_lent_again(running: Deployment, driver: FakeNvml) -> None:
    """R21, R59: lost and found, by the same sampler; no process is started anew."""
    before = sampler(running)
    worker = running.worker_ready("a")
    assert worker is not None
    async with answering(running):
        driver.card(fails=LOST)
        await until(running, "gpu", last_failed)
        view = await until(running, "gpu", refused)
        assert "lost" in view["sentence"].lower()
        await check_refused(running)
        driver.card(fails=None)
        await until(running, "gpu", lambda view: view["admitting"] is True and last_ok(view))
    assert sampler(running) == before
    assert not gone(worker.pid)
    await running.wait_ready()


async def test_a_sampler_that_is_killed_is_missed_and_replaced(running: Deployment, driver: FakeNvml) -> None:
    """SIGKILL once: a failed reading and a new process; again and again: no admission until it stays."""
    before = sampler(running)
    async with answering(running):
        os.kill(before, signal.SIGKILL)
        view = await until(running, "gpu", last_failed)
        assert view["admitting"] is True
        await until(running, "gpu", last_ok)
        assert sampler(running) != before
        driver.set(crash=[HANG])  # every sampler dies of its first look
        await until(running, "gpu", refused)
        await check_refused(running)
        driver.set(crash=[])
        await until(running, "gpu", lambda view: view["admitting"] is True and last_ok(view))
    await running.wait_ready()


async def test_the_owners_load_on_the_card_takes_the_device(driver: FakeNvml) -> None:
    """R3, R5, R41, B17: the lender's own load is none; a foreign process's is, and the session moves."""
    settings = EXTRA.replace("threshold_pct = 100.0", "threshold_pct = 50.0").replace(
        "sustain_s = 3600.0", "sustain_s = 1.0\nrelease_s = 1.0"
    )
    # The session moves to another card: a core would be taken back by whatever else this machine runs.
    other = FakeCard(uuid="GPU-00000000-0000-0000-0000-00000000000b", pci="00000000:02:00.0")
    driver.set(devices=[*driver.state.devices, other])
    settings += f"""
[[devices]]
name = "gpu2"
kind = "nvml"
selector = "{other.uuid}"
"""
    deployment = Deployment("sim", extra=settings, lent={"a": "gpu", "b": "gpu2"}, env=driver.env())
    try:
        await deployment.start()
        session = await session_on(deployment, "a")
        worker = deployment.worker_ready("a")
        assert worker is not None
        async with reading(deployment, session) as readings:
            ours = [FakeProcess(worker.pid, bytes=8 * GIB)]
            driver.card(util=95, uses=[FakeUse(worker.pid, sm=95)], used=9 * GIB, processes=ours)
            await readings[0].wait_tokens(len(readings[0].tokens) + 100)
            view = await device(deployment, "gpu")
            assert (view["state"], view["reading_pct"]) == ("lent", 0.0)
            driver.card(util=95, uses=[FakeUse(worker.pid, sm=35), FakeUse(os.getpid(), sm=60)])
            with trio.fail_after(60):
                while True:
                    if gone(worker.pid):
                        break
                    await trio.sleep(0.02)
            # The process is gone, its memory is not yet: the card is not free.
            view = await device(deployment, "gpu")
            assert view["state"] == "vacating"
            drain = await deployment.call("GET", f"/v1/drains/{view['last_give_back']['drains'][0]}")
            assert (drain["state"], drain["origin"]) == ("drained", "owner_pressure")
            assert drain["time_to_clear_s"] is None
            driver.card(used=GIB, processes=[])
            view = await until(deployment, "gpu", state("free"))
            back = view["last_give_back"]
            assert (back["why"], back["memory_back"]) == ("pressure", True)
            drain = await deployment.call("GET", f"/v1/drains/{drain['id']}")
            assert 0 < drain["finished_at"] - drain["created_at"] < drain["time_to_clear_s"]
            assert drain["time_to_clear_s"] <= back["free_in_s"] + 0.1
            assert gone(worker.pid)
            assert await deployment.where(session) == "b"
            driver.card(util=0, uses=[])
            await until(deployment, "gpu", state("lent"))
            await deployment.client.request("DELETE", f"/v1/sessions/{session}")
        readings[0].check_gapless()
        assert readings[0].tokens == reference(prompt(1), LONG)[: len(readings[0].tokens)]
    finally:
        await trio.to_thread.run_sync(deployment.close)
