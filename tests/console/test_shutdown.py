"""Shutdown ends in bounded time whatever the clients do, and starting says what is wrong."""

import socket
from functools import partial

import pytest
import trio
import trio.testing

from console.app import create_app
from console.connection import Deadlines
from console.protocol import WEBSOCKET_PING_INTERVAL_S
from console.server import serve_http
from swapd.config import LimitConfig
from swapd.errors import Code, SwapdError
from tests.console.client import WAIT_S, Client
from tests.console.conftest import serving
from tests.console.malformed import HEAD, POST, UPGRADE
from tests.console.test_events import wait_readers
from tests.descriptors import collected, open_files

FOREVER_S = 3600.0
PATIENT = Deadlines(header_s=FOREVER_S, write_s=FOREVER_S, linger_s=FOREVER_S)
"""No deadline of a connection may be what ends these tests."""
EVENTS = b"GET /v1/sessions/live/events HTTP/1.1\r\n" + HEAD + b"\r\n"


async def test_open_streams_end_cleanly_and_lose_nothing(service):
    """H21: the reader gets everything that was durable, then a whole response's end."""
    live = service.add("live", tokens=3)
    async with serving(service, deadlines=PATIENT) as client, client.events("live") as source:
        await wait_readers(live, 1)
        await service.stop()
        seen = []
        while (frame := await source.frame()) is not None:
            seen.append(frame.id)
        assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "request_bytes",
    [EVENTS, UPGRADE, b"", b"GET / HT", POST + b"Content-Length: 50\r\n\r\n{", EVENTS + EVENTS],
    ids=["sse", "websocket", "silent", "half a head", "half a body", "pipelined"],
)
async def test_a_client_that_stops_reading_cannot_hold_shutdown(service, request_bytes):
    live = service.add("live")
    with trio.fail_after(WAIT_S):
        async with serving(service, deadlines=PATIENT, grace_s=0.1) as client:
            stream = await trio.open_tcp_stream("127.0.0.1", client.port)
            await stream.send_all(request_bytes)
            if request_bytes in (EVENTS, UPGRADE):
                await wait_readers(live, 1)
            for _ in range(40):
                live.append("token", {"text": "x" * 500_000})
            await live.wake()
            assert await client.alive()
        assert live.readers == 0
        await stream.aclose()


@pytest.mark.parametrize("request_bytes", [EVENTS, UPGRADE], ids=["sse", "websocket"])
async def test_cancelling_the_server_does_not_wait_for_a_stalled_reader(service, request_bytes):
    """A write is shielded from cancellation; only the closed socket frees it."""
    live = service.add("live")
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            port = await nursery.start(
                partial(
                    serve_http,
                    create_app(service, LimitConfig()),
                    host="127.0.0.1",
                    port=0,
                    limits=LimitConfig(),
                    deadlines=PATIENT,
                )
            )
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(request_bytes)
            await wait_readers(live, 1)
            for _ in range(40):
                live.append("token", {"text": "x" * 500_000})
            await live.wake()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert live.readers == 0
        await stream.aclose()


async def test_after_stopping_nobody_is_accepted(service):
    with trio.fail_after(WAIT_S):
        async with serving(service) as client:
            assert await client.alive()
        with pytest.raises(OSError):
            await trio.open_tcp_stream("127.0.0.1", client.port)


async def test_idle_connections_do_not_use_up_the_grace(service):
    with trio.fail_after(WAIT_S):
        async with serving(service, deadlines=PATIENT, grace_s=FOREVER_S) as client, client.wire() as wire:
            await wire.stream.send_all(client.head("GET", "/healthz"))
            assert (await wire.reply()).status == 200
            await service.stop()
            assert not await wire.stream.receive_some(1)


async def test_an_answer_under_way_is_finished(service, monkeypatch):
    entered, release = trio.Event(), trio.Event()
    create = service.create_session

    async def slow(*arguments):
        entered.set()
        await release.wait()
        return await create(*arguments)

    monkeypatch.setattr(service, "create_session", slow)
    with trio.fail_after(WAIT_S):
        async with serving(service, deadlines=PATIENT) as client, client.wire() as wire:
            body = b'{"prompt":"a","max_new_tokens":1}'
            await wire.stream.send_all(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await entered.wait()
            await service.stop()
            release.set()
            assert (await wire.reply()).status == 201


async def test_a_port_in_use_is_one_clear_error(service):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SwapdError) as refused:
            await serve_http(
                create_app(service, LimitConfig()), host="127.0.0.1", port=port, limits=LimitConfig()
            )
    assert refused.value.code is Code.CONFIG_INVALID
    assert f"127.0.0.1 port {port}" in refused.value.sentence


@pytest.mark.parametrize(("host", "port"), [("203.0.113.7", 0), ("no such host", 0), ("127.0.0.1", 70000)])
async def test_an_address_that_is_not_ours_is_one_clear_error(service, host, port):
    with pytest.raises(SwapdError) as refused:
        await serve_http(create_app(service, LimitConfig()), host=host, port=port, limits=LimitConfig())
    assert refused.value.code is Code.CONFIG_INVALID


async def test_nothing_is_left_open_after_many_clients(service):
    """Neither a file nor a task: a WebSocket's pings end with it, not an interval later."""
    live = service.add("live")
    async with serving(service) as client:
        files, tasks = collected(), trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(come_and_go, client, EVENTS if number % 2 else UPGRADE)
        await wait_readers(live, 0)
        with trio.fail_after(WEBSOCKET_PING_INTERVAL_S / 2):
            while open_files() - files or trio.lowlevel.current_statistics().tasks_living != tasks:
                await trio.testing.wait_all_tasks_blocked()


async def come_and_go(client: Client, request_bytes: bytes) -> None:
    async with client.wire() as wire:
        await wire.stream.send_all(request_bytes)
        await wire.head()
    assert await client.alive()
