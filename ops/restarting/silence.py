"""A worker is stopped (SIGSTOP) and continued after its sessions have got a new owner.

late     nobody ends the worker: what it says when it goes on is of an old epoch, fenced and counted (H40)
silent   it is silent for `dead_s`: it is ended, and its sessions are decided at once; nothing is left to
         continue (B33, B39)
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any, Final

import trio

from ops.restarting.findings import Findings, compare, judge
from tests.e2e.deployment import Deployment, Reading, reading
from tests.e2e.test_sim import prompt

LOOK_EVERY_S: Final = 0.05
PATIENCE_S: Final = 60.0
PROMPT_TOKENS: Final = 64
TOKENS: Final = 12_000
"""More than the part waits for: its sessions are cancelled at the end."""
VICTIM: Final = "a"


async def stop_until_moved(
    deployment: Deployment, *, sessions: int, stop_s: float, tell: Callable[[str], None]
) -> Findings:
    """Stop a worker, have its sessions rebuilt elsewhere, continue it: `late`. `dead_s` must be longer."""
    found = Findings("worker stopped, its sessions moved, then continued", [], {})
    prompts = [prompt(number, PROMPT_TOKENS) for number in range(sessions)]
    names = [await deployment.create(text, TOKENS, allow_replay_fallback=True) for text in prompts]
    async with reading(deployment, *names) as readings:
        for one in readings:
            await one.wait_tokens(5)
        moved = [name for name in names if await deployment.where(name) == VICTIM]
        before = await fenced(deployment)
        tell(f"stopping worker {VICTIM} with {len(moved)} sessions")
        pid = deployment.kill_worker(VICTIM, signal.SIGSTOP)
        stopped_at = time.monotonic()
        try:
            drain = await deployment.call("POST", f"/v1/workers/{VICTIM}/drains", {"mode": "replay"}, 202)
            await _until_moved(deployment, moved)
            found.figures["moved_after_s"] = time.monotonic() - stopped_at
            await trio.sleep(max(0.0, stopped_at + stop_s - time.monotonic()))
        finally:
            os.kill(pid, signal.SIGCONT)
        stopped_s = time.monotonic() - stopped_at
        found.figures["stopped_s"] = stopped_s
        tell(f"continued worker {VICTIM} after {stopped_s:.1f} s")
        late = await _until_fenced(deployment, before)
        await _more(readings, 20)
        alive = [name for name in moved if await deployment.where(name) != VICTIM]
        for name in names:
            await deployment.call("DELETE", f"/v1/sessions/{name}")
    await deployment.call("DELETE", f"/v1/drains/{drain['id']}")
    found.figures["fenced_messages"] = late
    found.claim("the worker had sessions", bool(moved), f"{len(moved)} of {sessions}")
    found.claim("late messages are fenced and counted", late > 0, f"{late:.0f} messages")
    found.claim(
        "the new owner keeps every session", len(alive) == len(moved), f"{len(alive)} of {len(moved)}"
    )
    judge(found, compare(readings, prompts, TOKENS))
    settled = await deployment.wait_settled()
    free = all(view["free_blocks"] == view["usable_blocks"] for view in settled.values())
    found.claim("the continued worker holds nothing", free, "after all sessions ended")
    return found


async def stop_until_dead(
    deployment: Deployment, *, sessions: int, stop_s: float, tell: Callable[[str], None]
) -> Findings:
    """Stop a worker for longer than `dead_s`: `silent`. Every other session permits replay."""
    found = Findings("worker stopped until it counts as dead, then continued", [], {})
    prompts = [prompt(100 + number, PROMPT_TOKENS) for number in range(sessions)]
    names = [
        await deployment.create(text, TOKENS, allow_replay_fallback=number % 4 < 2)
        for number, text in enumerate(prompts)
    ]
    permitted = {name for number, name in enumerate(names) if number % 4 < 2}
    async with reading(deployment, *names) as readings:
        for one in readings:
            await one.wait_tokens(5)
        there = [name for name in names if await deployment.where(name) == VICTIM]
        tell(f"stopping worker {VICTIM} with {len(there)} sessions")
        pid = deployment.kill_worker(VICTIM, signal.SIGSTOP)
        stopped_at = time.monotonic()
        decided = await _until_decided(deployment, there, permitted)
        found.figures["decided_after_s"] = time.monotonic() - stopped_at
        tell(f"decided after {found.figures['decided_after_s']:.1f} s: {decided}")
        await trio.sleep(max(0.0, stopped_at + stop_s - time.monotonic()))
        try:
            os.kill(pid, signal.SIGCONT)
            gone = False
        except ProcessLookupError:
            gone = True
        await _more([one for one in readings if one.session in permitted or one.session not in there], 20)
        for name in names:
            await deployment.call("DELETE", f"/v1/sessions/{name}")
    replayed, failed = decided
    expected = (sum(name in permitted for name in there), sum(name not in permitted for name in there))
    found.claim(
        "the worker had sessions of both kinds", min(expected) > 0, f"{expected[0]} and {expected[1]}"
    )
    found.claim("those that permit replay go on elsewhere", replayed == expected[0], f"{replayed}")
    found.claim("the others end with recovery_unavailable", failed == expected[1], f"{failed}")
    found.claim("nothing of the old worker is left to continue", gone, f"process {pid}")
    judge(found, compare(readings, prompts, TOKENS))
    return found


async def fenced(deployment: Deployment) -> float:
    """Messages of workers that were not obeyed because they were not the owner's, or of an old process."""
    status, text = await _metrics(deployment)
    assert status == 200
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith(
            ('swapd_fenced_messages_total{reason="owner"}', 'swapd_fenced_messages_total{reason="inc')
        )
    )


async def _metrics(deployment: Deployment) -> tuple[int, str]:
    from swapd.ops.client import open_ops

    async with open_ops(deployment.folder / "s") as ops:
        return 200, await ops.metrics()


async def _until_moved(deployment: Deployment, names: list[str]) -> None:
    with trio.fail_after(PATIENCE_S):
        for name in names:
            while await deployment.where(name) == VICTIM:  # noqa: ASYNC110  # another process's state
                await trio.sleep(LOOK_EVERY_S)


async def _until_fenced(deployment: Deployment, before: float) -> float:
    """How many late messages came; 0 after a while without any."""
    late = 0.0
    with trio.move_on_after(10):
        while (late := await fenced(deployment) - before) == 0:  # noqa: ASYNC110  # another process's state
            await trio.sleep(LOOK_EVERY_S)
    return late


async def _until_decided(deployment: Deployment, names: list[str], permitted: set[str]) -> tuple[int, int]:
    """How many sessions were replayed elsewhere, and how many ended because nobody had them."""
    replayed = failed = 0
    with trio.fail_after(PATIENCE_S):
        for name in names:
            view: Any = await deployment.call("GET", f"/v1/sessions/{name}")
            while view["state"] != "failed" and (view["worker"] == VICTIM or view["state"] == "recovering"):
                await trio.sleep(LOOK_EVERY_S)
                view = await deployment.call("GET", f"/v1/sessions/{name}")
            replayed += view["state"] != "failed"
            failed += view["code"] == "recovery_unavailable"
    return replayed, failed


async def _more(readings: list[Reading], count: int) -> None:
    """Wait until each of these clients has received so many tokens more."""
    marks = [len(one.tokens) + count for one in readings]
    for one, mark in zip(readings, marks, strict=True):
        await one.wait_tokens(mark)
