"""A real server on a loopback port, in the test's own nursery."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from quart_trio import QuartTrio

from console.app import create_app
from console.connection import Deadlines
from console.server import serve_http
from console.streams import StreamTimers
from swapd.config import LimitConfig
from tests.console.client import Client
from tests.console.service_double import ServiceDouble


@pytest.fixture
async def service() -> ServiceDouble:
    return ServiceDouble()


@pytest.fixture
async def app(service: ServiceDouble) -> QuartTrio:
    return create_app(service, LimitConfig())


@asynccontextmanager
async def serving(
    service: ServiceDouble,
    *,
    limits: LimitConfig | None = None,
    deadlines: Deadlines | None = None,
    timers: StreamTimers | None = None,
    grace_s: float = 3.0,
    body_timeout_s: float | None = None,
) -> AsyncIterator[Client]:
    """Serve until the body ends, then stop as `swapd serve` does and insist on an end."""
    limits = limits or LimitConfig()
    app = create_app(service, limits, timers=timers)
    if body_timeout_s is not None:
        app.config["BODY_TIMEOUT"] = body_timeout_s
    async with trio.open_nursery() as nursery:
        port = await nursery.start(
            partial(
                serve_http,
                app,
                host="127.0.0.1",
                port=0,
                limits=limits,
                wait_stopping=service.wait_stopping,
                deadlines=deadlines,
                grace_s=grace_s,
            )
        )
        yield Client(port)
        await service.stop()


@pytest.fixture
async def client(service: ServiceDouble) -> AsyncIterator[Client]:
    async with serving(service) as client:
        yield client
