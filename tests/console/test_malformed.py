"""No client can end the process, freeze its loop or keep what it held."""

import contextlib
import socket
import struct

import pytest
import trio

from console import protocol
from console.connection import Deadlines
from console.protocol import Protocol
from console.streams import StreamTimers
from swapd.config import LimitConfig
from tests.console.client import WAIT_S, Client
from tests.console.conftest import serving
from tests.console.malformed import HEAD, MALFORMED, POST, UPGRADE, frame
from tests.console.test_events import wait_readers

PATIENT = Deadlines(header_s=WAIT_S, write_s=0.3, linger_s=0.2)
"""Where the machine stands still for a moment, an honest client must not look like one that sends no head."""
QUICK = Deadlines(header_s=0.5, write_s=0.3, linger_s=0.2)
"""Only for clients that never end their heads."""
LIVELY = StreamTimers(heartbeat_s=0.1)
"""A client that left is noticed at the latest when it is written to."""


async def send_all(stream: trio.SocketStream, parts: tuple[bytes, ...]) -> None:
    """Send the parts; the server may hang up at any point."""
    with contextlib.suppress(trio.BrokenResourceError):
        for part in parts:
            await stream.send_all(part)


async def drain(stream: trio.SocketStream) -> bytes:
    """What the server answers until it hangs up or falls silent over our half-close."""
    got = bytearray()
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async for data in stream:
            got += data
    return bytes(got)


def reset(stream: trio.SocketStream) -> None:
    """Close with a RST instead of a FIN."""
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


async def abuse(client: Client, parts: tuple[bytes, ...], end: str) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", client.port) as stream, trio.open_nursery() as nursery:
        # A client that only writes would fill the buffers of both sides.
        nursery.start_soon(drain, stream)
        await send_all(stream, parts)
        if end == "half-close":
            with contextlib.suppress(OSError, trio.BrokenResourceError):
                await stream.send_eof()
            # It goes on reading while others are served.
            assert await client.alive()
        if end == "reset":
            reset(stream)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("end", ["close", "reset", "half-close"])
@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_client_ends_only_its_own_connection(service, caplog, name, end):
    live = service.add("live", tokens=3)
    with trio.fail_after(WAIT_S):
        async with serving(service, deadlines=PATIENT, timers=LIVELY) as client:
            await abuse(client, MALFORMED[name], end)
            assert await client.alive()
            await wait_readers(live, 0)
    # Nor does one get as far as an error of ours.
    assert not caplog.records


async def test_all_malformed_clients_at_once(service):
    live = service.add("live", tokens=3)
    with trio.fail_after(WAIT_S):
        async with serving(service, deadlines=PATIENT, timers=LIVELY) as client:
            async with trio.open_nursery() as nursery:
                for number, parts in enumerate(MALFORMED.values()):
                    nursery.start_soon(abuse, client, parts, ("close", "reset", "half-close")[number % 3])
                for _ in range(20):
                    assert await client.alive()
            assert await client.alive()
            await wait_readers(live, 0)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("garbage", 400), ("no host", 400), ("negative content length", 400), ("huge header", 431),
        ("http/2 preface and junk", 505), ("http/2 upgrade with bad settings", 200), ("two hosts", 400),
        ("length beyond every number", 400), ("HTTP/9.9", 505), ("HTTP to a websocket route", 422),
        ("websocket without version", 400), ("websocket to no route", 404),
        ("websocket with trailing bytes", 400), ("path with bad escapes", 404),
    ],
)  # fmt: skip
async def test_what_can_be_answered_is_answered(service, name, status):
    service.add("live")
    async with serving(service, deadlines=PATIENT) as client, client.wire() as wire:
        await send_all(wire.stream, MALFORMED[name])
        assert (await wire.head())[0] == status


async def test_an_error_in_one_connection_is_that_connections_own(service, monkeypatch, caplog):
    """H183: and it is logged by its type."""
    handle = Protocol.handle

    async def broken(self, event):
        if b"zebra" in getattr(event, "data", b""):
            raise RuntimeError("zebra")
        await handle(self, event)

    monkeypatch.setattr(Protocol, "handle", broken)
    async with serving(service) as client, client.wire() as wire:
        await wire.stream.send_all(b"GET /zebra HTTP/1.1\r\n")
        assert not await drain(wire.stream)
        assert await client.alive()
    assert [record.error_type for record in caplog.records] == ["RuntimeError"]
    assert "zebra" not in caplog.text


@pytest.mark.parametrize("path", ["/v1/sessions/live/events", "/v1/sessions/live/stream"])
async def test_a_reset_in_the_middle_of_a_stream_frees_the_reader(service, path):
    """The handler sends on after the reset; its sends must yield, or nobody else would run."""
    live = service.add("live")
    request = (
        UPGRADE if path.endswith("stream") else b"GET " + path.encode() + b" HTTP/1.1\r\n" + HEAD + b"\r\n"
    )
    async with serving(service, deadlines=PATIENT) as client:
        for _ in range(5):
            async with await trio.open_tcp_stream("127.0.0.1", client.port) as stream:
                await stream.send_all(request)
                await wait_readers(live, 1)
                for _ in range(2000):
                    live.append("token", {"text": "x" * 2000})
                await live.wake()
                await stream.receive_some(1000)
                reset(stream)
            assert await client.alive()
            await wait_readers(live, 0)


@pytest.mark.parametrize("begin", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: y\r\n"])
async def test_a_client_that_never_ends_its_head_is_hung_up_on(service, begin):
    """Bytes one at a time must not extend the time for the head."""
    async with serving(service, deadlines=QUICK) as client, client.wire() as wire:
        await wire.stream.send_all(begin)

        async def dribble() -> None:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while True:
                    await wire.stream.send_all(b"a")
                    await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            if begin:
                nursery.start_soon(dribble)
            with contextlib.suppress(trio.BrokenResourceError):
                assert not await wire.stream.receive_some(100)
            nursery.cancel_scope.cancel()


async def test_a_body_that_never_ends_is_given_up(service):
    async with serving(service, body_timeout_s=0.2) as client, client.wire() as wire:
        await wire.stream.send_all(POST + b"Content-Length: 50\r\n\r\n{")
        reply = await wire.reply()
        assert (reply.status, reply.code) == (408, "body_timeout")


async def test_connections_over_the_limit_are_told_to_come_back(service):
    limits = LimitConfig(max_connections=5)
    async with serving(service, limits=limits) as client, contextlib.AsyncExitStack() as stack:
        held = [await stack.enter_async_context(client.wire()) for _ in range(5)]
        async with client.wire() as wire:
            reply = await wire.reply()
            assert (reply.status, reply.code) == (503, "too_many_connections")
            assert "retry-after" in reply.headers
        # One that is in still works, and leaving makes room.
        await held[0].stream.send_all(client.head("GET", "/healthz"))
        assert (await held[0].reply()).status == 200
        await held[1].stream.aclose()
        while (await first_reply(client)).status == 503:
            await trio.lowlevel.checkpoint()


async def first_reply(client: Client):
    async with client.wire() as wire:
        with contextlib.suppress(trio.BrokenResourceError):
            await wire.stream.send_all(client.head("GET", "/healthz"))
        return await wire.reply()


async def test_a_flood_of_connections_leaves_the_others_alone(service):
    live = service.add("live")
    limits = LimitConfig(max_connections=50)
    # Nobody here is to be timed out, however busy the machine is.
    patient = Deadlines(header_s=WAIT_S, write_s=WAIT_S, linger_s=0.2)
    async with serving(service, limits=limits, deadlines=patient) as client, client.events("live") as source:
        assert (await source.frame()).id == 0
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(abuse, client, (b"GET / HT",), "close")
            for position in range(1, 20):
                await live.token()
                assert (await source.frame()).id == position


async def test_a_client_that_talks_past_its_answer_still_gets_it(service):
    """Closing with unread input would reset the connection under the client's feet."""
    size = 3_500_000
    async with serving(service) as client, client.wire() as wire:
        await wire.stream.send_all(POST + b"Content-Length: %d\r\n\r\n" % size)
        for _ in range(size // 50_000):
            await wire.stream.send_all(b"a" * 50_000)
        assert (await wire.reply()).status == 413


async def test_a_websocket_message_over_the_limit_is_not_read_to_its_end(service):
    """The connection ends though the client neither answers the close nor stops."""
    service.add("live")
    async with serving(service, deadlines=PATIENT) as client, client.wire() as wire:
        await wire.stream.send_all(UPGRADE)
        assert (await wire.head())[0] == 101
        await wire.stream.send_all(frame(1, b"a" * 30000, final=0))
        assert frame(8, b"\x03\xf1", masked=False) in await drain(wire.stream)


async def test_what_a_websocket_client_may_send_is_bounded(service):
    """Pongs are answered by nothing, so nothing else would end them."""
    service.add("live")
    pongs = frame(10, b"p" * 125) * 500
    async with serving(service, deadlines=PATIENT) as client, client.wire() as wire:
        await wire.stream.send_all(UPGRADE)
        assert (await wire.head())[0] == 101

        async def send_for_ever() -> None:
            while True:
                await wire.stream.send_all(pongs)

        with pytest.raises(trio.BrokenResourceError):
            await send_for_ever()


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_client_that_leaves_during_its_body_is_no_error(service, caplog, end):
    async with serving(service) as client:
        async with await trio.open_tcp_stream("127.0.0.1", client.port) as stream:
            await stream.send_all(POST + b"Content-Length: 50\r\n\r\n{")
            assert await client.alive()
            if end == "reset":
                reset(stream)
        assert await client.alive()
    assert not caplog.records


class _Gone(Exception):
    """Stands for Quart's own, which the older of the supported versions does not have."""


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (_Gone(), []),
        (ExceptionGroup("", [_Gone(), ExceptionGroup("", [_Gone()])]), []),
        (ExceptionGroup("", [_Gone(), ValueError("of a prompt")]), ["a response failed"]),
        (ValueError("of a prompt"), ["a response failed"]),
    ],
    ids=["gone", "gone in a group", "not all gone", "a failure"],
)
async def test_a_client_that_goes_before_its_answer_is_no_failure(monkeypatch, caplog, raised, told):
    """H183: nor does a failure's own text get into the log."""
    monkeypatch.setattr(protocol, "CLIENT_GONE", _Gone)
    log = protocol.TypesOnlyLog(protocol.protocol_config())
    try:
        raise raised
    except Exception:
        await log.exception("Error in ASGI Framework")
    assert [record.message for record in caplog.records] == told
