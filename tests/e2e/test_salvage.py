"""A worker that dies while its sessions are copied away, with real processes (B24)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from ops.soaking.clients import Plan
from tests.e2e.deployment import Deployment, reading
from tests.e2e.failpoints import Points

pytestmark = pytest.mark.timeout(120)

PLAN = Plan(
    prompt=tuple(range(1, 201)),
    max_new_tokens=300,
    temperature=0.8,
    seed=4,
    allow_replay_fallback=True,
    on_disconnect="pause",
    begin_after_s=0.0,
    cancel_at=None,
    restless=0.0,
)
EXTRA = """
[sim]
step_ms = 5.0
[timers]
copy_s = 30.0
freeze_s = 30.0
"""


@pytest.fixture
async def service() -> AsyncIterator[Deployment]:
    deployment = Deployment("sim", extra=EXTRA, top="allow_failpoints = true\nprecopy_duty = 1.0")
    try:
        await deployment.start()
        yield deployment
    finally:
        deployment.close()


@pytest.mark.parametrize(
    ("role", "point"), [("coordinator", "C.after"), ("source", "F.before"), ("source", "X.before")]
)
async def test_blocks_that_were_copied_before_the_source_died_are_not_computed_again(
    service: Deployment, role: str, point: str
) -> None:
    """B24, H73, H158: copying, to be frozen, frozen; the stream is the one that nobody disturbed."""
    session = str((await service.call("POST", "/v1/sessions", PLAN.body(), 201))["id"])
    points = Points(service)
    async with reading(service, session) as readings:
        await readings[0].wait_tokens(20)
        source = await service.where(session)
        target = "b" if source == "a" else "a"
        where = source if role == "source" else role
        points.arm(where, point)
        drain = (await service.call("POST", f"/v1/workers/{source}/drains", {}, 202))["id"]
        await points.reached(where, point)
        service.kill_worker(source)
        points.let_go(where, point)
    readings[0].check_gapless()
    assert readings[0].tokens == PLAN.reference()
    with trio.fail_after(30):
        while (view := await service.call("GET", f"/v1/drains/{drain}"))["state"] == "running":  # noqa: ASYNC110  # others' state
            await trio.sleep(0.02)
    (told,) = view["sessions"]
    assert (told["outcome"], told["reason"], told["reuse"]) == ("completed_replay", "source_lost", None)
    # All of the prompt's 12 full blocks had come, and those of the first outputs.
    assert told["recomputed_tokens"] < len(PLAN.prompt) // 2
    views = await service.wait_settled()
    assert views[target]["stats"]["recomputed_tokens"] == told["recomputed_tokens"]
    assert views[target]["stats"]["swept"] == 0
    assert all(view["free_blocks"] == view["usable_blocks"] for view in views.values())
