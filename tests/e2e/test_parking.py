"""Parked in host memory while no device is lent: real processes, the sim engine, streams that stay open.

The tokens of the sim depend on every byte of its blocks: equality with the reference shows that the KV came
back whole, and a count of zero that nothing of it was computed again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from swapd.client import Unreachable
from tests.e2e.deployment import Deployment, Reading, reading
from tests.e2e.test_lending_sim import CARDS, ON_CARDS, gone, state, two_cards, until
from tests.e2e.test_sim import prompt, reference

PARKS = ON_CARDS.replace('presence = "headless"', 'presence = "headless"\nwhen_full = "park"')
TOP = f"park_bytes = {8 << 20}"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def running(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Two lent devices; its parameter is what stands at the head of the configuration."""
    top, env = getattr(request, "param", TOP), two_cards(tmp_path).env()
    deployment = Deployment("sim", extra=PARKS, lent=CARDS, top=top, env=env)
    try:
        await deployment.start()
        yield deployment
    finally:
        await trio.to_thread.run_sync(deployment.close)


async def take_back_all(running: Deployment) -> None:
    """Both owners at once: nothing has anywhere to go."""
    for name in CARDS.values():
        await running.call("POST", f"/v1/devices/{name}/take-back", {})
    for name in CARDS.values():
        await until(running, name, state("free"))


async def lend_all(running: Deployment) -> None:
    for name in CARDS.values():
        await running.call("DELETE", f"/v1/devices/{name}/take-back")


async def goes_on(running: Deployment, one: Reading) -> None:
    """It makes tokens again; then it is cancelled: nothing more would be shown by all of them."""
    await one.wait_tokens(len(one.tokens) + 20)
    await running.call("DELETE", f"/v1/sessions/{one.session}")


async def sessions_are(running: Deployment, *states: str) -> Any:
    """The nonterminal sessions once their states are these."""
    views: Any = None
    with trio.move_on_after(60):
        while True:
            views = (await running.call("GET", "/v1/sessions"))["sessions"]
            if sorted(view["state"] for view in views) == sorted(states):
                return views
            await trio.sleep(0.05)
    drains = await running.call("GET", "/v1/drains")
    raise AssertionError(f"{views}; {drains}; {running.log()}")


@pytest.mark.each_python
async def test_the_last_devices_are_taken_back_and_the_streams_go_on_when_they_return(
    running: Deployment,
) -> None:
    """B3, A1, p of the matrix: parked, both devices free, then resumed: the reference, nothing recomputed."""
    sessions = [
        await running.create(prompt(n, 300 + 50 * n), 4000, seed=n, temperature=0.8) for n in range(3)
    ]
    pids = [ready.pid for w in ("a", "b") if (ready := running.worker_ready(w)) is not None]
    async with reading(running, *sessions) as readings:
        for one in readings:
            await one.wait_tokens(20)
        await take_back_all(running)
        assert len(pids) == 2
        assert all(gone(pid) for pid in pids)
        views = await sessions_are(running, "parked", "parked", "parked")
        assert all(view["worker"] is None for view in views)
        drains = (await running.call("GET", "/v1/drains"))["drains"]
        outcomes = [s["outcome"] for drain in drains for s in drain["sessions"]]
        assert outcomes.count("parked") == 3, drains
        assert all(drain["state"] == "drained" for drain in drains)
        held = [len(one.tokens) for one in readings]
        assert all(one.events[-1].name == "token" for one in readings)
        await lend_all(running)
        for one, before in zip(readings, held, strict=True):
            await one.wait_tokens(before + 20)
        await running.cancel_left()
    for number, one in enumerate(readings):
        one.check_gapless()
        text = prompt(number, 300 + 50 * number)
        assert one.tokens == reference(text, len(one.tokens), seed=number, temperature=0.8)
    views = await running.wait_settled()
    assert all(view["stats"]["recomputed_tokens"] == 0 for view in views.values())


SPILLS = 'park_bytes = 2097152\npark_dir = "parked"'
"""Room in memory for one session of `LONG` and its tokens, not for two."""
LONG = 4800


@pytest.mark.parametrize("running", [SPILLS], indirect=True)
async def test_what_was_spilled_survives_a_kill_and_comes_back_natively(running: Deployment) -> None:
    """B3, H142, H145: on disk it is parked again after a restart; in memory alone it ends with its cursor."""
    first = await running.create(prompt(1, LONG), 1500)
    second = await running.create(prompt(2, LONG), 1500)
    folder = running.folder / "parked"
    async with reading(running, first, second) as readings:
        for one in readings:
            await one.wait_tokens(10)
        await take_back_all(running)
        await sessions_are(running, "parked", "parked")
        assert folder.stat().st_mode & 0o777 == 0o700
        (spilled,) = list(folder.iterdir())
        assert spilled.stat().st_mode & 0o777 == 0o600
        on_disk = spilled.name.partition(".")[0]
        running.kill_coordinator()
        running.launch()
        await running.announced_again()
        (view,) = await sessions_are(running, "parked")
        assert view["id"] == on_disk
        by_id = {one.session: one for one in readings}
        survivor = by_id.pop(on_disk)
        await lend_all(running)
        await goes_on(running, survivor)
    survivor.check_gapless()
    number = 1 if on_disk == first else 2
    assert survivor.tokens == reference(prompt(number, LONG), len(survivor.tokens))
    (other,) = by_id.values()
    last = other.events[-1]
    assert (last.name, last.json()["code"]) == ("failed", "recovery_unavailable")
    assert last.json()["accepted"] == len(other.tokens)
    views = await running.wait_settled()
    assert all(view["stats"]["recomputed_tokens"] == 0 for view in views.values())
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("running", [f'{TOP}\npark_dir = "parked"'], indirect=True)
async def test_a_clean_stop_takes_parked_sessions_to_disk(running: Deployment) -> None:
    """B3, H151, H153: stopped and started again while parked; the stream goes on by its cursor."""
    session = await running.create(prompt(3, 400), 4000)
    async with reading(running, session) as readings:
        await readings[0].wait_tokens(10)
        await take_back_all(running)
        await sessions_are(running, "parked")
        assert running.stop_coordinator() == 0
        assert len(list((running.folder / "parked").iterdir())) == 1
        running.launch()
        await running.announced_again()
        await sessions_are(running, "parked")
        await lend_all(running)
        await goes_on(running, readings[0])
    readings[0].check_gapless()
    assert readings[0].tokens == reference(prompt(3, 400), len(readings[0].tokens))
    views = await running.wait_settled()
    assert all(view["stats"]["recomputed_tokens"] == 0 for view in views.values())


@pytest.mark.parametrize("running", ["park_bytes = 1048576"], indirect=True)
async def test_over_quota_a_session_may_finish_and_the_other_waits(running: Deployment) -> None:
    """B3: what the memory has no room for goes on as without parking; a cancel of a parked one frees it."""
    small = await running.create(prompt(1, 200), 3000)
    large = await running.create(prompt(2, LONG), 600)
    async with reading(running, small, large) as readings:
        for one in readings:
            await one.wait_tokens(10)
        await take_back_all(running)
        await sessions_are(running, "parked")
        await running.call("DELETE", f"/v1/sessions/{small}")
    assert readings[0].events[-1].name == "cancelled"
    assert readings[1].tokens == reference(prompt(2, LONG), 600)
    drains = (await running.call("GET", "/v1/drains"))["drains"]
    outcomes = {s["session"]: s["outcome"] for drain in drains for s in drain["sessions"]}
    assert outcomes[small] == "parked"


@pytest.mark.parametrize("running", ["park_bytes = 1048576"], indirect=True)
async def test_over_quota_who_permits_replay_waits_without_its_kv_also_over_a_kill(
    running: Deployment,
) -> None:
    """B3, H73, H142: the devices are free at once; the stream stays open; replayed when one returns."""
    session = await running.create(prompt(2, LONG), 11_000, allow_replay_fallback=True)
    async with reading(running, session) as readings:
        await readings[0].wait_tokens(10)
        await take_back_all(running)
        (view,) = await sessions_are(running, "parked")
        assert view["worker"] is None
        drains = (await running.call("GET", "/v1/drains"))["drains"]
        told = [(s["outcome"], s["reason"]) for drain in drains for s in drain["sessions"]]
        assert told == [("parked", "park_full")], drains
        assert readings[0].events[-1].name == "token"
        running.kill_coordinator()
        running.launch()
        await running.announced_again()
        await sessions_are(running, "parked")
        await lend_all(running)
        await goes_on(running, readings[0])
    readings[0].check_gapless()
    assert readings[0].events[-1].name == "cancelled"
    assert readings[0].tokens == reference(prompt(2, LONG), len(readings[0].tokens))
    views = await running.wait_settled()
    assert sum(view["stats"]["recomputed_tokens"] for view in views.values()) > 0


async def test_a_drain_may_park_and_its_worker_goes_on_with_the_session(running: Deployment) -> None:
    """B3, H54: both workers drained for their operator; the same processes take the sessions up again."""
    sessions = [await running.create(prompt(n, 300), 6000) for n in range(2)]
    pids = {w: running.worker_ready(w) for w in ("a", "b")}
    async with reading(running, *sessions) as readings:
        for one in readings:
            await one.wait_tokens(10)
        parked = 0
        for _ in range(5):
            drains = [
                await running.call("POST", f"/v1/workers/{worker}/drains", {"mode": "park"}, 202)
                for worker in ("a", "b")
            ]
            for drain in drains:
                view = drain
                with trio.fail_after(60):
                    while view["state"] == "running":
                        await trio.sleep(0.02)
                        view = await running.call("GET", f"/v1/drains/{drain['id']}")
                assert view["state"] == "drained"
                parked += sum(s["outcome"] == "parked" for s in view["sessions"])
        assert parked > 0
        for one in readings:
            await goes_on(running, one)
    for number, one in enumerate(readings):
        one.check_gapless()
        assert one.tokens == reference(prompt(number, 300), len(one.tokens))
    assert {w: running.worker_ready(w) for w in ("a", "b")} == pids
    views = await running.wait_settled()
    assert all(view["stats"]["recomputed_tokens"] == 0 for view in views.values())
    assert all(view["free_blocks"] == view["usable_blocks"] for view in views.values())


FAILING = 'park_bytes = 8388608\npark_dir = "parked"\nallow_failpoints = true'
THERE = ("C.after", "K.before", "K.after", "V.after")
BACK = ("R.after", "K.before", "K.after", "V.after")


async def crash(running: Deployment, point: str) -> None:
    """The coordinator ends at a point of the next move, as a crash does; then it is started again."""
    armed = running.folder / "s" / "failpoints" / f"coordinator.{point}.arm"
    assert armed.parent.is_dir()
    armed.with_suffix(".reached").unlink(missing_ok=True)
    armed.write_text("kill")


async def restarted(running: Deployment) -> None:
    """Once it has ended at the point that was armed."""
    assert running.process is not None
    await trio.to_thread.run_sync(running.process.wait, 60)
    running.launch()
    await running.announced_again()


@pytest.mark.parametrize("running", [FAILING], indirect=True)
async def test_a_coordinator_killed_at_any_step_there_or_back_loses_nothing(running: Deployment) -> None:
    """B3, B22, H142-H147, H19: to the park the source has it until it is released; back, the disk has it."""
    session = await running.create(prompt(5, 400), 12000)
    async with reading(running, session) as readings:
        for there, back in zip(THERE, BACK, strict=True):
            await readings[0].wait_tokens(len(readings[0].tokens) + 10)
            await crash(running, there)
            await take_back_all_at_once(running)
            await restarted(running)
            await take_back_all(running)
            await sessions_are(running, "parked")
            assert running.stop_coordinator() == 0  # what is in memory goes to disk
            running.launch()
            await running.announced_again()
            await sessions_are(running, "parked")
            await crash(running, back)
            await lend_all(running)
            await restarted(running)
            await sessions_are(running, "running")
        await running.call("DELETE", f"/v1/sessions/{session}")
    tokens = readings[0].tokens
    assert tokens == reference(prompt(5, 400), len(tokens))
    views = await running.wait_settled()
    assert all(view["stats"]["recomputed_tokens"] == 0 for view in views.values())
    assert list((running.folder / "parked").iterdir()) == []


async def take_back_all_at_once(running: Deployment) -> None:
    """Without waiting for what becomes of it; an answer may be lost with the coordinator."""
    for name in CARDS.values():
        try:
            await running.call("POST", f"/v1/devices/{name}/take-back", {})
        except Unreachable:
            return
