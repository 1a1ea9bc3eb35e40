"""The coordinator is killed under running sessions and started again; its workers live on (H142-H153)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import trio

from ops.restarting.findings import Findings, compare, judge
from swapd.client import Unreachable
from tests.e2e.deployment import Deployment, reading
from tests.e2e.test_sim import prompt

LOOK_EVERY_S: Final = 0.02
PATIENCE_S: Final = 60.0
PROMPT_TOKENS: Final = 64


async def kill_and_restart(
    deployment: Deployment, *, sessions: int, tokens: int, tell: Callable[[str], None]
) -> Findings:
    """Run the part; the deployment is running before and after. Timing is a figure, not a claim."""
    found = Findings(f"coordinator killed under {sessions} sessions", [], {})
    prompts = [prompt(number, PROMPT_TOKENS) for number in range(sessions)]
    names = [await deployment.create(text, tokens) for text in prompts]
    async with reading(deployment, *names) as readings:
        for one in readings:
            await one.wait_tokens(5)
        tell(f"{sessions} sessions run; killing the coordinator")
        deployment.kill_coordinator()
        killed_at = time.monotonic()
        deployment.launch()
        await _ready(deployment)
        # Both clocks are this machine's: `/readyz` said yes so long after the service had its workers back.
        ready_at, took_s = time.time(), time.monotonic() - killed_at
        report: Any = await deployment.call("GET", "/v1/reconciliation")
        found.figures["killed_to_ready_s"] = took_s
        found.figures["found_to_ready_s"] = ready_at - report["found_at"]
        found.figures["found_to_decided_s"] = report["found_to_ready_s"]
        tell(f"ready again; {report['counts']}")
    listed = {one["session"]: one["result"] for one in report["sessions"]}
    carried = sum(listed.get(name) == "resumed" for name in names)
    found.claim("every session is in the report", set(names) <= set(listed), f"{len(listed)} entries")
    found.claim(
        "every session is resumed", carried == sessions, f"{carried} of {sessions}: {report['counts']}"
    )
    found.claim("nothing is undecided", report["undecided"] == 0, f"{report['undecided']} at readiness")
    completed = sum(one.events[-1].name == "completed" for one in readings)
    found.claim("every session completes", completed == sessions, f"{completed} of {sessions}")
    judge(found, compare(readings, prompts, tokens))
    return found


async def _ready(deployment: Deployment) -> None:
    """Wait until `/readyz` is 200."""
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                status, _ = await deployment.client.request("GET", "/readyz", timeout_s=2)
                if status == 200:
                    return
            except Unreachable:
                pass
            await trio.sleep(LOOK_EVERY_S)
