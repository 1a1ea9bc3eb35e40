"""A lent device given back and taken up again: real processes, real readings, the sim engine.

What asks for the device is a process whose name is in `owner.always`, or the owner's word: both are as sure
on a machine that is busy with other things. Only the test of the load itself needs a core that is not.

A worker on a lent core gets what nobody else wants of it: on a busy machine, next to nothing. Where that is
not the point the devices are cards of a driver library without a card, whose workers run as others do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.devices.fake_nvml import FakeCard, FakeNvml, compiler
from tests.e2e.deployment import Deployment, reading
from tests.e2e.test_sim import ENDLESS, LONG, prompt, reference

OWNERS_PROGRAM = f"swapd-{os.getpid()}"
"""Of this test process alone: a name counts wherever on the machine it runs, also for tests beside us."""
LENT = {"a": "core0", "b": "core1"}
EXTRA = f"""
[[devices]]
name = "core0"
kind = "cpu"
cores = [0]

[[devices]]
name = "core1"
kind = "cpu"
cores = [{min(1, (os.cpu_count() or 1) - 1)}]

[owner]
consent = true
presence = "headless"
gamemode = false
resume_after_s = 0.5
finish_s = 60.0
%s

[owner.gpu_pressure]
mode = "fixed"
poll_ms = 250
%s

[sim]
step_ms = 5.0

[timers]
rpc_s = 20.0
freeze_s = 20.0
prepare_s = 10.0
heartbeat_s = 0.25
dead_s = 60.0
"""
BY_WORD = EXTRA % (f'always = ["{OWNERS_PROGRAM}"]', "threshold_pct = 100.0\nsustain_s = 3600.0")

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be lent twice"),
]


CARDS = {"a": "card0", "b": "card1"}
UUID = "GPU-00000000-0000-0000-0000-00000000000"
ON_CARDS = BY_WORD
for number, name in enumerate(LENT.values()):
    core = f'name = "{name}"\nkind = "cpu"\ncores = [{min(number, (os.cpu_count() or 1) - 1)}]'
    assert core in ON_CARDS
    ON_CARDS = ON_CARDS.replace(core, f'name = "card{number}"\nkind = "nvml"\nselector = "{UUID}{number}"')


def two_cards(folder: Path) -> FakeNvml:
    """The driver of two cards that nobody uses."""
    if compiler() is None:
        pytest.skip("the fake NVML is C, and there is no C compiler")
    driver = FakeNvml(folder)
    driver.set(devices=[FakeCard(uuid=f"{UUID}{n}", pci=f"00000000:0{n + 1}:00.0") for n in range(2)])
    return driver


@pytest.fixture
async def running() -> AsyncIterator[Deployment]:
    """Two cores, lent."""
    deployment = Deployment("sim", extra=BY_WORD, lent=LENT)
    try:
        await deployment.start()
        yield deployment
    finally:
        await trio.to_thread.run_sync(deployment.close)


@pytest.fixture
async def cards(tmp_path: Path) -> AsyncIterator[Deployment]:
    """Two cards, lent."""
    deployment = Deployment("sim", extra=ON_CARDS, lent=CARDS, env=two_cards(tmp_path).env())
    try:
        await deployment.start()
        yield deployment
    finally:
        await trio.to_thread.run_sync(deployment.close)


async def device(running: Deployment, name: str) -> Any:
    return await running.call("GET", f"/v1/devices/{name}")


async def until(running: Deployment, name: str, holds: Callable[[Any], bool], within_s: float = 150.0) -> Any:
    """The device's view once it is as wanted."""
    view: Any = None
    with trio.move_on_after(within_s):
        while True:
            view = await device(running, name)
            if holds(view):
                return view
            await trio.sleep(0.1)
    raise AssertionError(f"not in {within_s} s: {view}; {running.log()}")


def state(name: str) -> Callable[[Any], bool]:
    return lambda view: bool(view["state"] == name)


@contextmanager
def owners_program(folder: Path) -> Iterator[None]:
    """A program of the owner's that is always a reason to give the device back."""
    program = folder / OWNERS_PROGRAM
    sleep = shutil.which("sleep")
    assert sleep is not None
    shutil.copy(sleep, program)
    process = subprocess.Popen([str(program), "1000"], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.each_python
async def test_the_owners_program_empties_the_devices_and_its_end_brings_them_back(
    running: Deployment, tmp_path: Path
) -> None:
    """B17, D37, R60: refused while it runs, processes gone, workers back when it ends."""
    before = {w: running.worker_ready(w) for w in ("a", "b")}
    session = await running.create(prompt(1), 20)
    async with reading(running, session) as readings:
        await readings[0].wait_tokens(20)
    with owners_program(tmp_path):
        for name in ("core0", "core1"):
            view = await until(running, name, state("free"))
            assert view["why"] == "owner_process"
            assert OWNERS_PROGRAM in view["sentence"]
        for ready in before.values():
            assert ready is not None
            assert gone(ready.pid)
        status, answer = await running.client.request(
            "POST", "/v1/sessions", {"prompt": [1, 2], "max_new_tokens": 2}
        )
        assert (status, answer["error"]["code"], answer["error"]["retryable"]) == (
            503,
            "device_not_lent",
            True,
        )
        assert OWNERS_PROGRAM in answer["error"]["message"]
        status, answer = await running.client.request("GET", "/readyz")
        assert status == 503
        assert "owner_process:core0" in answer["reasons"]
    for name in ("core0", "core1"):
        await until(running, name, state("lent"))
    await running.wait_ready()
    events = await running.call("GET", "/v1/devices/core0/events")
    kinds = [event["kind"] for event in reversed(events["events"])]
    assert [k for k in kinds if k in ("vacating", "free", "returning")] == ["vacating", "free", "returning"]


async def test_take_back_now_moves_eight_sessions_and_stops_the_worker(cards: Deployment) -> None:
    """H52, B17, D40: no token is lost; the worker's process is gone; lent again, it starts again."""
    await cards.call("POST", "/v1/devices/card1/take-back", {})
    await until(cards, "card1", state("free"))
    sessions = [await cards.create(prompt(n, 60), 6000) for n in range(8)]
    async with reading(cards, *sessions) as readings:
        for one in readings:
            await one.wait_tokens(5)
        ready = cards.worker_ready("a")
        assert ready is not None
        await cards.call("DELETE", "/v1/devices/card1/take-back")
        await until(cards, "card1", state("lent"))
        view = await cards.call("POST", "/v1/devices/card0/take-back", {})
        assert (view["state"], view["admitting"], view["why"]) == ("vacating", False, "taken_back")
        view = await until(cards, "card0", state("free"))
        assert gone(ready.pid)
        back = view["last_give_back"]
        assert back["free_in_s"] > 0
        drain = await cards.call("GET", f"/v1/drains/{back['drains'][0]}")
        assert (drain["state"], drain["origin"]) == ("drained", "take_back_now")
        assert drain["finished_at"] - drain["created_at"] <= drain["time_to_clear_s"] + 0.001
        assert [s["outcome"] for s in drain["sessions"]] == ["completed_native"] * 8
        await cards.call("DELETE", "/v1/devices/card0/take-back")
        for one in readings:
            await one.wait_tokens(len(one.tokens) + 20)
        await cards.cancel_left()
    for number, one in enumerate(readings):
        one.check_gapless()
        assert one.tokens == reference(prompt(number, 60), len(one.tokens))
    await until(cards, "card0", state("lent"))
    assert (await cards.workers())["a"]["state"] == "ready"


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.2])
async def test_a_coordinator_killed_while_it_gives_back_goes_on_after_it(
    cards: Deployment, moment: float
) -> None:
    """H65, B16: the take-back is in force at the next start; a worker that is found is emptied first."""
    sessions = [await cards.create(prompt(n, 60), LONG) for n in range(4)]
    async with reading(cards, *sessions) as readings:
        for one in readings:
            await one.wait_tokens(5)
        await cards.call("POST", "/v1/devices/card0/take-back", {"for_s": 3600})
        await trio.sleep(moment)
        cards.kill_coordinator()
        await cards.start(ready_s=150.0, workers=1)
    for number, one in enumerate(readings):
        one.check_gapless()
        assert one.events[-1].name == "completed", one.events[-1]
        assert one.tokens == reference(prompt(number, 60), LONG)
    view = await until(cards, "card0", state("free"))
    assert view["taken_back"]["until"] == "time"
    workers = await cards.workers()
    assert (workers["a"]["state"], workers["a"]["pid"]) == ("stopped", None)
    cards.kill_coordinator()
    await cards.start(ready_s=150.0, workers=1)
    await until(cards, "card1", state("lent"))
    assert (await device(cards, "card0"))["state"] == "free"
    assert (await cards.workers())["a"]["state"] == "stopped"


async def test_the_last_device_lets_its_sessions_finish(cards: Deployment) -> None:
    """`finish`: nothing has room, so what runs may end where it is; nothing new comes."""
    session = await cards.create(prompt(3), 200)
    async with reading(cards, session) as readings:
        await readings[0].wait_tokens(5)
        for name in ("card1", "card0"):
            await cards.call("POST", f"/v1/devices/{name}/take-back", {})
    readings[0].check_gapless()
    assert readings[0].tokens == reference(prompt(3), 200)
    for name in ("card1", "card0"):
        await until(cards, name, state("free"))


def idle_share(core: int, seconds: float = 0.5) -> float:
    """How much of a core nobody uses."""

    def look() -> tuple[int, int]:
        line = next(
            line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{core} ")
        )
        ticks = [int(value) for value in line.split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)

    idle, total = look()
    time.sleep(seconds)
    later_idle, later_total = look()
    return (later_idle - idle) / max(later_total - total, 1)


def quiet(*cores: int, within_s: float = 30.0) -> bool:
    """Whether all of the cores are mostly idle, or become so in time: the test before may still end."""
    deadline = time.monotonic() + within_s
    while any(idle_share(core) < 0.6 for core in cores):
        if time.monotonic() > deadline:
            return False
    return True


@contextmanager
def load_on(core: int) -> Iterator[None]:
    """The owner's own work, pinned to one core."""
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.alone
async def test_the_owners_load_engages_and_its_end_releases() -> None:
    """R5, R41, R60, D33: the whole way, from a busy core to the worker's return; no token lost."""
    if not quiet(0, 1):
        pytest.skip("the cores are busy with other things: what is the owner's load could not be told")
    deployment = Deployment(
        "sim",
        extra=EXTRA % ("", "threshold_pct = 85.0\nsustain_s = 1.0\nrelease_s = 1.0"),
        lent=LENT,
    )
    try:
        await deployment.start()
        session = await deployment.create(prompt(5), ENDLESS)
        async with reading(deployment, session) as readings:
            await readings[0].wait_tokens(20)
            source = await deployment.where(session)
            core, other = (0, "core1") if source == "a" else (1, "core0")
            ready = deployment.worker_ready(source)
            assert ready is not None
            with load_on(core):
                view = await until(deployment, LENT[source], state("free"))
            target = await deployment.where(session)
            events = (await deployment.call("GET", f"/v1/devices/{other}/events"))["events"]
            busy = any(event["kind"] == "vacating" for event in events)
            if not busy:
                await readings[0].wait_tokens(len(readings[0].tokens) + 20)
            await until(deployment, LENT[source], state("lent"))
            await deployment.cancel_left()
        assert view["last_give_back"]["why"] == "pressure"
        assert gone(ready.pid)
        readings[0].check_gapless()
        assert readings[0].tokens == reference(prompt(5), len(readings[0].tokens))
        if busy:
            pytest.skip("other work came to the other core: there was nowhere to move to")
        assert target != source
    finally:
        await trio.to_thread.run_sync(deployment.close)
