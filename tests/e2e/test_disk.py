"""A full disk and a failing fsync under a real service: what is shown is durable, and all goes on after.

The database lies on a small file system of its own; somebody else fills it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio

from swapd.store.ballast import BALLAST_BYTES
from swapd.store.ledger import load_tokens
from tests.e2e.deployment import Deployment, Reading, reading
from tests.e2e.test_sim import prompt, reference
from tests.store.disks import failing_fsync, small_disk

MIB = 1 << 20
SIM = "[sim]\nstep_ms = 10.0\n[timers]\nrpc_s = 20.0\nheartbeat_s = 0.25\n"
COUNT = 500
WINDOW = 8

pytestmark = pytest.mark.timeout(240)


@asynccontextmanager
async def deployed(database: Path, env: Mapping[str, str] | None = None) -> AsyncIterator[Deployment]:
    """A deployment whose workers outlive the coordinator, with its database there."""
    deployment = Deployment("sim", extra=SIM, env=env)
    config = deployment.config.read_text().replace(f"{deployment.folder}/swapd.db", str(database))
    deployment.config.write_text(config.replace('"always"', '"idle"'))
    try:
        await deployment.start()
        yield deployment
        # The last start may be one that must stop them.
        deployment.config.write_text(config)
    finally:
        await trio.to_thread.run_sync(deployment.close)


async def begun(deployment: Deployment, count: int) -> list[str]:
    return [await deployment.create(prompt(n), COUNT) for n in range(count)]


async def unready(deployment: Deployment) -> list[str]:
    """The reasons, once there are any."""
    with trio.fail_after(30):
        while True:
            status, answer = await deployment.client.request("GET", "/readyz")
            if status == 503:
                return list(answer["reasons"])
            await trio.sleep(0.01)


async def accepted(deployment: Deployment, sessions: list[str]) -> list[int]:
    return [(await deployment.call("GET", f"/v1/sessions/{name}"))["accepted"] for name in sessions]


async def refuses(deployment: Deployment, code: str) -> None:
    body = {"prompt": [1], "max_new_tokens": 1}
    answer: Any = await deployment.call("POST", "/v1/sessions", body, 503)
    assert (answer["error"]["code"], answer["error"]["retryable"]) == (code, True)


def check_durable(database: Path, readings: list[Reading]) -> None:
    """Everything that a client has is in the database, as another program finds it now (H18)."""
    received = [list(one.tokens) for one in readings]
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        for one, tokens in zip(readings, received, strict=True):
            assert load_tokens(db, one.session)[: len(tokens)] == tokens
            assert len(tokens) < COUNT


def check_whole(readings: list[Reading]) -> None:
    for number, one in enumerate(readings):
        one.check_gapless()
        assert one.tokens == reference(prompt(number), COUNT)


async def test_a_full_disk_stops_the_tokens_and_room_brings_them_back(tmp_path: Path) -> None:
    """B40, H160, H45: by itself after the first time; after a restart when the last room was used up, too."""
    with small_disk(tmp_path / "small", 2 * BALLAST_BYTES + 8 * MIB) as disk:
        database = disk.path / "swapd.db"
        async with deployed(database) as deployment:
            *sessions, other = await begun(deployment, 4)
            async with reading(deployment, *sessions) as readings:
                for one in readings:
                    await one.wait_tokens(10)
                disk.fill()
                assert await unready(deployment) == ["disk_full"]
                at_once = await accepted(deployment, sessions)
                await refuses(deployment, "disk_full")
                # An end can still be written.
                assert (await deployment.call("DELETE", f"/v1/sessions/{other}"))["state"] == "cancelled"
                await trio.sleep(0.5)
                later = await accepted(deployment, sessions)
                assert all(b - a <= 2 * WINDOW for a, b in zip(at_once, later, strict=True))
                check_durable(database, readings)

                disk.empty()
                await deployment.wait_ready()
                for one, had in zip(readings, later, strict=True):
                    await one.wait_tokens(had + 10)

                # Again, and whoever fills it takes the room that was kept back as well.
                disk.fill()
                assert await unready(deployment) == ["disk_full"]
                while await unready(deployment) == ["disk_full"]:
                    # Each time: what is kept back may be let go after the first only, and is much to write.
                    disk.fill()
                    await deployment.client.request("PUT", "/v1/switches/migration", {"on": False})
                    await deployment.client.request("PUT", "/v1/switches/migration", {"on": True})
                assert (await unready(deployment))[:2] == ["store_failed", "disk_full"]
                await refuses(deployment, "store_failed")
                check_durable(database, readings)
                log = database.with_name("swapd.db-wal")
                assert log.stat().st_size > 0
                disk.empty()
                assert (await unready(deployment))[:2] == ["store_failed", "disk_full"]
                assert await trio.to_thread.run_sync(deployment.stop_coordinator) == 0
                assert log.stat().st_size > 0
                await deployment.start()
            check_whole(readings)


async def test_an_fsync_that_fails_stops_the_tokens_until_a_restart(tmp_path: Path) -> None:
    """H160: once a sync has failed, none is asked for again; the workers hold what they have made."""
    env, armed = failing_fsync(tmp_path)
    database = tmp_path / "swapd.db"
    async with deployed(database, env) as deployment:
        sessions = await begun(deployment, 3)
        async with reading(deployment, *sessions) as readings:
            for one in readings:
                await one.wait_tokens(10)
            armed.touch()
            assert await unready(deployment) == ["store_failed", "disk_error"]
            armed.unlink()
            at_once = await accepted(deployment, sessions)
            await refuses(deployment, "store_failed")
            await trio.sleep(0.3)
            assert await accepted(deployment, sessions) == at_once
            assert await unready(deployment) == ["store_failed", "disk_error"]
            check_durable(database, readings)
            assert await trio.to_thread.run_sync(deployment.stop_coordinator) == 0
            await deployment.start()
        check_whole(readings)
