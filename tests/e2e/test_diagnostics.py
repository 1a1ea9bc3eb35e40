"""A real service with markers in everything that is somebody's: none is in what it tells of itself."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from swapd.messages.ops import DiagnosticsAnswer
from swapd.ops.client import open_ops
from tests.e2e.deployment import OTHER, TENANT, TOKEN, Deployment, reading

CANARY = "canary4711"
STEP_MS = 5.0
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
always = ["{CANARY}-program"]

[owner.gpu_pressure]
mode = "fixed"
threshold_pct = 100.0
sustain_s = 3600.0
poll_ms = 250

[sim]
step_ms = {STEP_MS}

[timers]
freeze_s = 5.0
prepare_s = 10.0
dead_s = 60.0
"""
LENT = {"a": "core0", "b": "core1"}
TOKENS = 4000
"""More than a slow machine makes in this test; the session is cancelled at its end."""

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be lent twice"),
]


def runs_of_four(ids: Sequence[int]) -> set[str]:
    return {" ".join(map(str, ids[at : at + 4])) for at in range(len(ids) - 3)}


def numbers(text: str) -> str:
    """A text's whole numbers, one blank between two, so that a run is found however it is written."""
    return " ".join(re.findall(r"\d+", text))


async def test_nothing_of_anybody_is_in_what_the_service_tells_of_itself() -> None:
    """H182, B42, R128: prompt, stop string, bearer tokens, output and runs of four token ids."""
    deployment = Deployment("sim", extra=EXTRA, lent=LENT)
    try:
        await deployment.start()
        ids = [701, 702, 703, 704, 705, 706, 707, 708]
        session = await deployment.create(ids, TOKENS, stop=[f"{CANARY}-stop"])
        words = await deployment.create(f"{CANARY} is what I ask for", TOKENS, stop=[f"{CANARY}-stop"])
        refused = await deployment.client.request("POST", "/v1/sessions", {"prompt": CANARY, "x": CANARY})
        assert refused[0] == 422
        async with reading(deployment, session, words) as readings:
            for one in readings:
                await one.wait_tokens(30)
            source = await deployment.where(session)
            assert (await deployment.drain(source))["state"] == "drained"
            async with open_ops(deployment.folder / "s") as client:
                await client.log_decisions(60.0)
                await trio.sleep(0.6)  # two readings, so that their decisions are in the log
                answer = await client.export_diagnostics()
                metrics = await client.metrics()
            said = ["".join(str(e.json().get("text", "")) for e in one.events[1:40]) for one in readings]
            tokens = [one.tokens[:100] for one in readings]
            await deployment.cancel_left()
        found = members(answer)
        told = {**found, "metrics": metrics, "stderr": (deployment.folder / "serve.err").read_text()}
        told |= {log.name: log.read_text() for log in (deployment.folder / "s").glob("*.log")}
        secrets = [CANARY, TENANT, OTHER, TOKEN, *(text for text in said if len(text) > 8)]
        secrets += [path.read_text().strip() for path in deployment.folder.glob("*-token") if path.is_file()]
        assert len(list(deployment.folder.glob("*-token"))) == 2
        for name, text in told.items():
            for secret in secrets:
                assert secret not in text, name
            written = numbers(text)
            for run in runs_of_four(ids) | runs_of_four(tokens[0]) | runs_of_four(tokens[1]):
                assert f" {run} " not in f" {written} ", name
            if name in found:
                assert str(deployment.folder) not in text, name
        what_it_tells(found)
    finally:
        await trio.to_thread.run_sync(deployment.close)


def members(answer: DiagnosticsAnswer) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(answer.archive)) as zipped:
        return {name: zipped.read(name).decode() for name in zipped.namelist()}


def what_it_tells(found: dict[str, str]) -> None:
    """The archive is worth having: what happened is in it."""
    assert sum(json.loads(found["status.json"])["sessions"].values()) == 2
    assert "completed_native" in found["drains.jsonl"]
    assert found["samples/core0.csv"].count("\n") >= 1
    assert {line["kind"] for line in map(json.loads, found["events/core0.jsonl"].splitlines())} >= {"lent"}
    service = [json.loads(line) for line in found["log/service.jsonl"].splitlines()]
    assert {"listening", "decision", "debug window"} <= {line["message"] for line in service}
    assert {"log/a.jsonl", "log/b.jsonl", "log/sampler-cpu.jsonl"} <= found.keys()
    parts = {part["name"]: part["word"] for part in json.loads(found["health.json"])["parts"]}
    assert (parts["store"], parts["worker a"], parts["sampler cpu"]) == ("ok", "ok", "ok")
    assert json.loads(found["configuration.json"])["owner"]["consent"] is True
    assert json.loads(found["manifest.json"])["missing"]["calibration/saved.json"]
    assert Path("README.txt").name in found
