"""A real service with markers in everything that is somebody's: none is in what it tells of itself."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import trio

from swapd.messages.ops.answers import DiagnosticsAnswer
from swapd.ops.client import open_ops
from tests.e2e.deployment import OTHER, TENANT, TOKEN, Deployment, reading

CANARY = "canary4711"
PROGRAM = "owners0815"
"""A program of the owner's: the settings page shows it to its owner, the archive to nobody."""
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
always = ["{PROGRAM}"]

[owner.gpu_pressure]
mode = "fixed"
threshold_pct = 100.0
sustain_s = 3600.0
poll_ms = 250

[sim]
step_ms = {STEP_MS}

[timers]
rpc_s = 20.0
freeze_s = 20.0
prepare_s = 20.0
dead_s = 60.0
"""
LENT = {"a": "core0", "b": "core1"}
PAGES = ("/", "/devices/core0", "/diagnostics", "/away", "/settings", "/status", "/v1/diagnostics")
TOKENS = 12_000
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
        await deployment.start(ready_s=120.0)
        ids = [701, 702, 703, 704, 705, 706, 707, 708]
        session = await deployment.create(ids, TOKENS, stop=[f"{CANARY}-stop"])
        words = await deployment.create(f"{CANARY} is what I ask for", TOKENS, stop=[f"{CANARY}-stop"])
        refused = await deployment.client.request("POST", "/v1/sessions", {"prompt": CANARY, "x": CANARY})
        assert refused[0] == 422
        async with reading(deployment, session, words) as readings:
            for one in readings:
                await one.wait_tokens(30)
            source = await deployment.where(session)
            view = await deployment.drain(source, within_s=120.0)
            assert len(view["sessions"]) >= 1, view
            async with open_ops(deployment.folder / "s") as client:
                await client.log_decisions(60.0)
                await trio.sleep(0.6)  # two readings, so that their decisions are in the log
                answer = await client.export_diagnostics()
                metrics = await client.metrics()
            pages = {path: await trio.to_thread.run_sync(page, deployment, path) for path in PAGES}
            said = ["".join(str(e.json().get("text", "")) for e in one.events[1:40]) for one in readings]
            tokens = [one.tokens[:100] for one in readings]
            await deployment.cancel_left()
        found = members(answer)
        told = {**found, **pages, "metrics": metrics, "stderr": (deployment.folder / "serve.err").read_text()}
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
                assert PROGRAM not in text, name
        what_it_tells(found)
    finally:
        await trio.to_thread.run_sync(deployment.close)


def page(deployment: Deployment, path: str) -> str:
    request = Request(deployment.client.base_url + path, headers={"Authorization": f"Bearer {TOKEN}"})
    with urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def members(answer: DiagnosticsAnswer) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(answer.archive)) as zipped:
        return {name: zipped.read(name).decode() for name in zipped.namelist()}


def what_it_tells(found: dict[str, str]) -> None:
    """The archive is worth having: what happened is in it."""
    assert sum(json.loads(found["status.json"])["sessions"].values()) == 2
    (drain,) = map(json.loads, found["drains.jsonl"].splitlines())
    assert drain["sessions"][0]["outcome"] is not None
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
