"""A worker whose snapshots are wrong, over real sockets: what its target refuses, and what that costs."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from tests.e2e.deployment import Deployment, reading
from tests.e2e.test_sim import EXTRA, prompt, reference

pytestmark = pytest.mark.timeout(240)

WRONG = {
    "schema": "manifest_mismatch",
    "session": "manifest_mismatch",
    "epoch": "manifest_mismatch",
    "fingerprint": "manifest_mismatch",
    "generation": "manifest_mismatch",
    "state": "manifest_mismatch",
    "valid": "manifest_mismatch",
    "digest": "checksum_mismatch",
    "bytes": "checksum_mismatch",
}


@pytest.fixture
async def running() -> AsyncIterator[Deployment]:
    """Worker a runs under an interpreter that tampers with its exports as `wrong` in the folder says."""
    deployment = Deployment("sim", extra=EXTRA)
    python = deployment.folder / "python"
    wrong = deployment.folder / "wrong"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.worker.tampering {wrong} "$@"\n')
    python.chmod(0o700)
    text = deployment.config.read_text()
    deployment.config.write_text(
        text.replace('worker_id = "a"\n', f'worker_id = "a"\npython = "{python}"\n', 1)
    )
    try:
        await deployment.start()
        yield deployment
    finally:
        await trio.to_thread.run_sync(deployment.close)


async def until(deployment: Deployment, path: str, true: Any) -> Any:
    """What an address answers once that holds."""
    with trio.fail_after(60):
        while True:
            answer = await deployment.call("GET", path)
            if true(answer):
                return answer
            await trio.sleep(0.02)


async def cleared(deployment: Deployment, worker: str) -> None:
    """The operator trusts the worker again, once nothing of the failed move is left there."""
    with trio.fail_after(60):
        while True:
            status, answer = await deployment.client.request("DELETE", f"/v1/workers/{worker}/quarantine")
            if status == 200:
                return
            assert answer["error"]["code"] == "reservations_open", answer
            await trio.sleep(0.02)


async def test_whatever_is_wrong_with_a_snapshot_the_source_goes_on(running: Deployment) -> None:
    """H78, H79, H67, H156: each is refused before the commit, and the target is not trusted any more.

    The client notices nothing: its tokens are those of a session that never moved, also after a move that
    is whole.
    """
    wrong = running.folder / "wrong"
    session = await running.create(prompt(4, 300), 12000)
    async with reading(running, session) as readings:
        await readings[0].wait_tokens(5)
        if await running.where(session) == "b":
            assert (await running.drain("b"))["state"] == "drained"
        for what, code in WRONG.items():
            await readings[0].wait_tokens(len(readings[0].tokens) + 3)
            assert await running.where(session) == "a"
            epoch = (await running.call("GET", f"/v1/sessions/{session}"))["epoch"]
            await trio.Path(wrong).write_text(what)
            drain = await running.call("POST", "/v1/workers/a/drains", {}, 202)
            # A try may end before its tail is ready, on a busy machine; the drain tries again.
            refused = ("aborted_source_resumed", code)
            await until(
                running,
                f"/v1/drains/{drain['id']}",
                lambda view, refused=refused: (
                    refused in [(s["outcome"], s["reason"]) for s in view["sessions"]]
                ),
            )
            workers = await running.workers()
            assert workers["b"]["quarantine"]["code"] == code, what
            assert not workers["b"]["admitting"]
            await readings[0].wait_tokens(len(readings[0].tokens) + 3)
            view = await running.call("GET", f"/v1/sessions/{session}")
            assert (view["worker"], view["epoch"]) == ("a", epoch)
            await running.call("DELETE", f"/v1/drains/{drain['id']}")
            await trio.Path(wrong).unlink()
            await cleared(running, "b")
        view = await running.drain("a")
        assert [s["outcome"] for s in view["sessions"]] == ["completed_native"], view
        await readings[0].wait_tokens(len(readings[0].tokens) + 3)
        assert await running.where(session) == "b"
        await running.cancel_left()
    readings[0].check_gapless()
    tokens = readings[0].tokens
    assert tokens == reference(prompt(4, 300), len(tokens))
    views = await running.wait_settled()
    assert all(view["stats"]["recomputed_tokens"] == 0 for view in views.values())
    assert all(view["free_blocks"] == view["usable_blocks"] for view in views.values())
