"""The quickstart as a person runs it: the owner's own work on a core gets the core back.

Real vLLM workers, a real load, the real sampler; nothing is fed in by hand.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from swapd.client import HttpClient
from tests.e2e.deployment import REPO, Reading
from tests.e2e.test_lending_sim import quiet
from tests.ports import free_port

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.alone,
    pytest.mark.timeout(400),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be lent twice"),
]

START_S = 240.0
SPIN = "while True: pass"


@pytest.fixture
def quickstart(checkpoint: str) -> Iterator[tuple[HttpClient, HttpClient]]:
    """A served quickstart: its tenant's and its operator's client."""
    if not quiet(*os.sched_getaffinity(0)):
        pytest.skip("the cores are busy with other things: that is an owner's load, and they are not lent")
    with tempfile.TemporaryDirectory(prefix="qs-", dir="/tmp") as made:
        folder = Path(made)
        with (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "swapd",
                    "quickstart",
                    "--port",
                    str(free_port()),
                    "--dir",
                    str(folder / "state"),
                ],
                cwd=REPO,
                env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        late = threading.Timer(START_S, process.terminate)
        late.start()
        try:
            assert process.stdout is not None
            urls = (re.search(r"http://[0-9.]+:\d+", line) for line in process.stdout)
            url = next((found[0] for found in urls if found), None)
            late.cancel()
            assert url is not None, (folder / "err").read_text()[-2000:]
            # The rest of the welcome must not fill the pipe.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            tokens = json.loads((folder / "state" / "tokens.json").read_text())
            yield HttpClient(url, tokens["tenant"]), HttpClient(url, tokens["operator"])
        finally:
            late.cancel()
            process.send_signal(signal.SIGINT)
            assert process.wait(90) == 0, (folder / "err").read_text()[-2000:]
            process.stdout.close()  # type: ignore[union-attr]  # a pipe was asked for


@contextmanager
def load_on(core: int) -> Iterator[None]:
    """Somebody's own work, pinned to one core."""
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\n{SPIN}"
    # A session of its own, as any program that a person starts: the scheduler groups by it.
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def eventually(
    operator: HttpClient, path: str, holds: Callable[[Any], bool], within_s: float, what: str
) -> Any:
    """The answer of `path` once it is as wanted."""
    answer: Any = None
    with trio.move_on_after(within_s):
        while True:
            _, answer = await operator.request("GET", path)
            if holds(answer):
                return answer
            await trio.sleep(0.1)
    raise AssertionError(f"not in {within_s} s: {what}: {answer}")


@asynccontextmanager
async def read(client: HttpClient, session: str) -> AsyncIterator[Reading]:
    """Read a session to its end; leaving waits for it."""
    one = Reading(session)

    async def take() -> None:
        async with client.events(session, reconnect=True) as events:
            async for event in events:
                one.events.append(event)
                one.grew.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        yield one


async def test_the_owners_load_gets_its_core_back_and_the_generation_goes_on(
    quickstart: tuple[HttpClient, HttpClient],
) -> None:
    """R5, R60, D37, B17: pressure, the move, the freed core, and the return; no token lost."""
    client, operator = quickstart
    await eventually(
        operator,
        "/v1/devices",
        lambda answer: all(device["state"] == "lent" for device in answer["devices"]),
        120,
        "both cores are lent",
    )
    body = {"prompt": "The keeper of the light wrote:", "max_new_tokens": 3000, "ignore_eos": True}
    status, created = await client.request("POST", "/v1/sessions", body)
    assert status == 201, created
    session = f"/v1/sessions/{created['id']}"
    source = created["worker"]
    _, workers = await operator.request("GET", "/v1/workers")
    (before,) = [worker for worker in workers["workers"] if worker["id"] == source]
    device = f"/v1/devices/{before['device']}"
    core = sorted(os.sched_getaffinity(0))[int(before["device"].removeprefix("cpu"))]
    async with read(client, created["id"]) as one:
        await one.wait_tokens(5)
        with load_on(core):
            view = await eventually(
                operator, device, lambda answer: answer["state"] == "free", 90, "the core is its owner's"
            )
            assert view["why"] == "pressure", view
            assert view["engaged"] is True
            assert view["last_give_back"]["free_in_s"] is not None
            moved = await eventually(operator, session, lambda answer: answer["worker"] != source, 5, "moved")
            assert moved["state"] in ("running", "completed")
            with pytest.raises(ProcessLookupError):
                os.kill(before["pid"], 0)
            count = len(one.tokens)
            await one.wait_tokens(count + 5)
        returned = await eventually(
            operator, device, lambda answer: answer["state"] == "lent", 120, "the core is lent again"
        )
        assert returned["engaged"] is False
        _, workers = await operator.request("GET", "/v1/workers")
        (after,) = [worker for worker in workers["workers"] if worker["id"] == source]
        assert after["admitting"] is True
        assert after["pid"] != before["pid"]
        status, _ = await client.request("DELETE", session)
        assert status == 200
    one.check_gapless()
    _, drains = await operator.request("GET", "/v1/drains")
    (outcome,) = [
        entry for drain in drains["drains"] for entry in drain["sessions"] if entry["session"] == one.session
    ]
    assert outcome["outcome"] == "completed_native", outcome
    assert outcome["recomputed_tokens"] == 0
    assert {drain["origin"] for drain in drains["drains"]} == {"owner_pressure"}
