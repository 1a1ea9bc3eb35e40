"""The same events over a WebSocket, read by trio-websocket."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    WebSocketConnection,
    wrap_client_stream,
)

from console.api.socket import MAX_CLIENT_FRAMES
from console.connection import Deadlines
from tests.console.client import WAIT_S, Client
from tests.console.conftest import serving
from tests.console.service_double import OTHER, TENANT
from tests.console.test_events import wait_readers


@asynccontextmanager
async def reading(
    client: Client,
    session: str,
    query: str = "",
    token: str | None = TENANT,
    *,
    headers: Sequence[tuple[str, str]] = (),
    subprotocols: Sequence[str] | None = None,
) -> AsyncIterator[WebSocketConnection]:
    fields = [] if token is None else [("Authorization", f"Bearer {token}")]
    with trio.fail_after(WAIT_S):
        # The stream is ours: trio-websocket leaves it open after a rejection.
        async with (
            await trio.open_tcp_stream("127.0.0.1", client.port) as stream,
            trio.open_nursery() as nursery,
        ):
            socket = await wrap_client_stream(
                nursery,
                stream,
                f"127.0.0.1:{client.port}",
                f"/v1/sessions/{session}/stream{query}",
                subprotocols=subprotocols,
                extra_headers=fields + list(headers),
            )
            yield socket
            await socket.aclose()


async def read_all(socket: WebSocketConnection) -> tuple[list[str], int]:
    """Every frame, and the close code."""
    frames = []
    while True:
        try:
            frames.append(await socket.get_message())
        except ConnectionClosed as closed:
            return frames, closed.reason.code


async def status_of(
    client: Client, session: str, query: str = "", token: str | None = TENANT, **options
) -> int:
    try:
        async with reading(client, session, query, token, **options):
            return 101
    except ExceptionGroup as group:
        (rejected,) = group.exceptions
        assert isinstance(rejected, ConnectionRejected)
        return rejected.status_code


async def test_the_same_events_in_order_and_then_a_normal_close(client, service):
    """H20"""
    session = service.add("s0", tokens=5)
    async with reading(client, "s0") as socket:
        for _ in range(5):
            await session.token()
        await session.end()
        frames, code = await read_all(socket)
    assert code == 1000
    decoded = [json.loads(frame) for frame in frames]
    assert [frame["id"] for frame in decoded] == list(range(12))
    assert [frame["event"] for frame in decoded] == [event.name for event in session.events]
    # H21: the data is the event's own bytes.
    assert all(event.data.decode() in frame for event, frame in zip(session.events, frames, strict=True))


async def test_a_reader_resumes_by_its_cursor(client, service):
    """H21"""
    session = service.add("s0", tokens=5)
    async with reading(client, "s0", "?after=3") as socket:
        assert json.loads(await socket.get_message())["id"] == 4
    await session.end()
    async with reading(client, "s0", "?after=4") as socket:
        frames, code = await read_all(socket)
    assert [json.loads(frame)["id"] for frame in frames] == [5, 6]
    assert code == 1000
    async with reading(client, "s0", "?after=6") as socket:
        assert await read_all(socket) == ([], 1000)


@pytest.mark.parametrize(
    ("session", "query", "token", "status"),
    [
        ("s0", "", None, 401), ("s0", "", "nobody", 401), ("s0", "?token=tenant-token", None, 401),
        ("s0", "", OTHER, 404), ("none", "", TENANT, 404), ("s0", "?after=-1", TENANT, 400),
        ("s0", "?after=x", TENANT, 400), ("s0", "?after=99", TENANT, 409), ("s0", "", TENANT, 101),
    ],
)  # fmt: skip
async def test_refusals_come_before_the_handshake(client, service, session, query, token, status):
    """H9, H24"""
    service.add("s0", tokens=2)
    assert await status_of(client, session, query, token) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("Origin", "http://evil.example")], 403),
        ([("Sec-Fetch-Site", "cross-site")], 403),
        ([("Sec-Fetch-Site", "same-origin")], 101),
    ],
)
async def test_a_page_of_another_site_cannot_read(client, service, headers, status):
    service.add("s0")
    assert await status_of(client, "s0", headers=headers) == status


async def test_a_browser_brings_its_token_as_a_subprotocol(client, service):
    service.add("s0")
    offered = ["swapd.v1", f"bearer.{TENANT}"]
    async with reading(client, "s0", token=None, subprotocols=offered) as socket:
        assert socket.subprotocol == "swapd.v1"
        assert json.loads(await socket.get_message())["event"] == "created"
    assert await status_of(client, "s0", token=None, subprotocols=["swapd.v1", "bearer.nobody"]) == 401


async def test_what_the_client_sends_is_ignored_up_to_a_limit(client, service):
    session = service.add("s0")
    async with reading(client, "s0") as socket:
        for number in range(MAX_CLIENT_FRAMES - 1):
            await socket.send_message(b"\x00\xff" if number % 2 else "hello")
        await session.token()
        assert [json.loads(await socket.get_message())["id"] for _ in range(2)] == [0, 1]
        await socket.send_message(b"")
        assert await read_all(socket) == ([], 1003)
    await wait_readers(session, 0)


async def test_a_message_over_the_limit_ends_the_connection(client, service):
    session = service.add("s0")
    async with reading(client, "s0") as socket:
        await socket.get_message()
        await socket.send_message("x" * 20_000)
        assert await read_all(socket) == ([], 1009)
    await wait_readers(session, 0)


async def test_compression_is_not_negotiated(client, service):
    """A few kilobytes of it expand to a gigabyte."""
    service.add("s0")
    fields = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "bKdPyn3u98cTfZJSh4TNeQ==", "Sec-WebSocket-Extensions": "permessage-deflate",
    }  # fmt: skip
    async with client.wire() as wire:
        await wire.stream.send_all(client.head("GET", "/v1/sessions/s0/stream", fields))
        status, headers = await wire.head()
    assert status == 101
    assert "sec-websocket-extensions" not in headers


async def test_an_error_after_the_handshake_is_a_close_code(client, service, monkeypatch):
    service.add("s0")

    def broken(*_: object) -> None:
        raise ValueError("zebra")

    monkeypatch.setattr(service, "subscribe", broken)
    async with reading(client, "s0") as socket:
        assert await read_all(socket) == ([], 1011)
    assert await client.alive()


async def test_a_reader_that_stops_reading_delays_nobody_and_is_dropped(service):
    """H29"""
    stalled, lively = service.add("stalled"), service.add("lively")
    async with serving(service, deadlines=Deadlines(write_s=0.3)) as client, client.wire() as wire:
        fields = {
            "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "bKdPyn3u98cTfZJSh4TNeQ==",
        }  # fmt: skip
        await wire.stream.send_all(client.head("GET", "/v1/sessions/stalled/stream", fields))
        await wait_readers(stalled, 1)
        for _ in range(40):
            stalled.append("token", {"text": "x" * 500_000})
        await stalled.wake()
        async with reading(client, "lively") as socket:
            await socket.get_message()
            for position in range(1, 50):
                await lively.token()
                assert json.loads(await socket.get_message())["id"] == position
        await wait_readers(stalled, 0)


async def test_at_shutdown_a_reader_is_told_to_come_back(client, service):
    session = service.add("s0", tokens=1)
    async with reading(client, "s0") as socket:
        await wait_readers(session, 1)
        await service.stop()
        frames, code = await read_all(socket)
    assert [json.loads(frame)["id"] for frame in frames] == [0, 1]
    assert code == 1001
