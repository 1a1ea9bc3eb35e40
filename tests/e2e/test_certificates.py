"""A certificate file that covers the workers that run: moves by it, its revocation, and a start over it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from swapd.certify.certificate import Certificate, Gate, issue, write
from swapd.config import SimConfig
from swapd.engines.sim import SimEngine
from swapd.messages.snapshot import SNAPSHOT_SCHEMA
from swapd.ops.client import open_state_events
from tests.e2e.deployment import REPO, Deployment, reading

TOKENS = 3000
TOP = 'certificate_path = "CERTIFICATE.json"\nevidence_profile = "cpu_release"\n'


def covering(fingerprint: str) -> Certificate:
    """As an evaluation of a real engine would issue it today."""
    return issue(
        issued_at=int(time.time()),
        evidence_profile="cpu_release",
        snapshot_schema=SNAPSHOT_SCHEMA,
        engine="vllm",
        basis="evaluated",
        fingerprints=[fingerprint],
        gates=[Gate("G1", "passed", "0" * 64)],
        build="a test",
    )


def command(deployment: Deployment, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the command line, on this deployment."""
    line = [sys.executable, "-m", "swapd", *words, "--config", str(deployment.config)]
    return subprocess.run(line, cwd=REPO, capture_output=True, text=True, timeout=60, check=False)


@asynccontextmanager
async def certified() -> AsyncIterator[Deployment]:
    """Two sim workers that may move by a certificate alone."""
    fingerprint = SimEngine(SimConfig()).info.fingerprint
    deployment = Deployment("sim", top=TOP, extra="[sim]\nstep_ms = 10\n", self_certify=False)
    (deployment.folder / "CERTIFICATE.json").write_bytes(write(covering(fingerprint)))
    try:
        await deployment.start()
        yield deployment
    finally:
        await trio.to_thread.run_sync(deployment.close)


async def waits_for(deployment: Deployment, drain: str, reason: str) -> dict[str, Any]:
    """The drain's one session, once that is why it stays."""
    with trio.fail_after(60):
        while True:
            view = await deployment.call("GET", f"/v1/drains/{drain}")
            if view["sessions"] and view["sessions"][0]["reason"] == reason:
                found: dict[str, Any] = view["sessions"][0]
                return found
            await trio.sleep(0.05)


@pytest.mark.timeout(240)
async def test_a_certificate_that_is_revoked_in_a_drain_stays_revoked() -> None:
    """H129, H137, H161, H62: moved by it; denied at once and over a crash; its client reads on to the end."""
    async with certified() as deployment:
        plans = await deployment.call("GET", "/v1/plans")
        [certificate] = plans["certificates"]
        assert {each["basis"] for each in plans["edges"]} == {"evaluated"}
        assert {(each["edge"]["source"], each["edge"]["target"]) for each in plans["edges"]} == {
            ("a", "b"),
            ("b", "a"),
        }
        session = await deployment.create([1, 2, 3], TOKENS)
        async with reading(deployment, session) as [one]:
            await one.wait_tokens(5)
            source = await deployment.where(session)
            view = await deployment.drain(source)
            assert (view["state"], view["sessions"][0]["outcome"]) == ("drained", "completed_native")

            source = await deployment.where(session)
            await deployment.call("PUT", "/v1/switches/migration", {"on": False})
            drain = await deployment.call("POST", f"/v1/workers/{source}/drains", {"deadline_s": 600}, 202)
            await waits_for(deployment, drain["id"], "migration_disabled")
            async with open_state_events(deployment.folder / "s", "certificate") as receive:
                revoked = command(deployment, "revoke", certificate["id"], "--json")
                assert (revoked.returncode, json.loads(revoked.stdout)["certificate"]) == (
                    0,
                    certificate["id"],
                )
                with trio.fail_after(60):
                    event = await receive()
            assert (event.kind, event.fields["kind"]) == ("certificate", "revoked")
            assert event.fields["certificate"] == certificate["id"]
            await deployment.call("PUT", "/v1/switches/migration", {"on": True})
            told = await waits_for(deployment, drain["id"], "certificate_revoked")
            assert "revoked" in told["detail"]

            deployment.kill_coordinator()
            await deployment.start(workers=2)
            await waits_for(deployment, drain["id"], "certificate_revoked")
            plans = json.loads(command(deployment, "plans", "--json").stdout)
            assert plans["edges"] == []
            assert {each["code"] for each in plans["certification_refusals"]} == {"revoked"}
            assert await deployment.where(session) == source
            status, metrics = await deployment.client.request("GET", "/readyz")
            assert status == 200, metrics
            await one.wait_tokens(min(len(one.tokens) + 5, TOKENS))
        one.check_gapless()
        assert len(one.tokens) == TOKENS
        assert one.events[-1].name == "completed"


@pytest.mark.timeout(120)
async def test_a_start_stops_at_a_certificate_that_it_cannot_read() -> None:
    """H124, H127: `check-config` says the same; evidence that allows nothing only warns."""
    deployment = Deployment("sim", top=TOP, self_certify=False)
    try:
        path = deployment.folder / "CERTIFICATE.json"
        for content in (None, b"{}"):
            if content is not None:
                path.write_bytes(content)
            for words in (("check-config",), ("serve",)):
                ended = command(deployment, *words)
                assert ended.returncode == 2, words
                assert "certificate_unreadable" in ended.stderr, words
        path.write_bytes(write(covering("another")))
        assert command(deployment, "check-config").returncode == 0
    finally:
        deployment.close()
