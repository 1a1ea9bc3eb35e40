"""The HTTP client sees each event once, whatever becomes of its connections."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from swapd import client as client_module
from swapd.client import HttpClient, Unreachable
from swapd.errors import Code, SwapdError
from swapd.views import WorkerView

Answer = bytes | Callable[[trio.SocketStream], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(number: int, name: str = "token") -> bytes:
    return chunk(b'id: %d\nevent: %s\ndata: {"pos": %d}\n\n' % (number, name.encode(), number))


def answer(status: int, body: object) -> bytes:
    content = json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(content), content)


def refused(status: int, code: Code) -> bytes:
    error = SwapdError(code, "more")
    return answer(status, {"error": {"code": code, "message": error.sentence, "retryable": error.retryable}})


class Script:
    """A server that answers each connection with the next of its answers and then closes it."""

    def __init__(self, answers: list[Answer]) -> None:
        self.answers = answers
        self.requests: list[bytes] = []
        self.port = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await stream.receive_some()
            self.requests.append(head)
            given = self.answers.pop(0)
            if isinstance(given, bytes):
                await stream.send_all(given)
            else:
                await given(stream)

    @property
    def cursors(self) -> list[bytes | None]:
        """The Last-Event-ID of each request."""
        found = []
        for request in self.requests:
            lines = [line for line in request.split(b"\r\n") if line.lower().startswith(b"last-event-id:")]
            found.append(lines[0].split(b":")[1].strip() if lines else None)
        return found


@asynccontextmanager
async def served(*answers: Answer) -> AsyncIterator[tuple[Script, HttpClient]]:
    script = Script(list(answers))
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, script.serve, 0, host="127.0.0.1")
        listeners = await nursery.start(serve)
        script.port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(20):
            yield script, HttpClient(f"http://127.0.0.1:{script.port}", "the-token")
        nursery.cancel_scope.cancel()


async def test_a_request_carries_token_and_body_and_returns_status_and_json() -> None:
    async with served(answer(201, {"id": "ses_1"})) as (script, client):
        assert await client.request("POST", "/v1/sessions", {"prompt": "é"}) == (201, {"id": "ses_1"})
        head = script.requests[0]
        assert head.startswith(b"POST /v1/sessions HTTP/1.1\r\n")
        assert b"Authorization: Bearer the-token\r\n" in head
        assert b"Content-Type: application/json\r\n" in head


async def test_a_refusal_becomes_the_error_that_the_service_raised() -> None:
    async with served(refused(404, Code.WORKER_UNKNOWN), answer(500, "?"), answer(200, {})) as (_, client):
        with pytest.raises(SwapdError) as caught:
            await client.view("GET", "/v1/workers/z", WorkerView)
        assert (caught.value.code, caught.value.detail) == (Code.WORKER_UNKNOWN, "more")
        with pytest.raises(SwapdError, match="HTTP status 500"):
            await client.view("GET", "/", WorkerView)
        with pytest.raises(SwapdError, match="answered something else"):
            await client.view("GET", "/", WorkerView)


async def test_no_service_is_unreachable() -> None:
    async with served() as (script, _):
        port = script.port
    with pytest.raises(Unreachable, match=f"no service answers at http://127.0.0.1:{port}"):
        await HttpClient(f"http://127.0.0.1:{port}").request("GET", "/healthz")


@pytest.mark.parametrize(
    "broken", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"rubbish\r\n\r\n"]
)
async def test_an_answer_that_breaks_off_is_unreachable(broken: bytes) -> None:
    async with served(broken) as (_, client):
        with pytest.raises(Unreachable):
            await client.request("GET", "/healthz")


async def mute(_stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def test_a_service_that_does_not_answer_is_unreachable_in_time() -> None:
    async with served(mute) as (_, client):
        with pytest.raises(Unreachable, match="did not answer within"):
            await client.request("GET", "/healthz", timeout_s=0.05)


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "BACKOFF_MIN_S", 0.0)


async def test_a_broken_stream_goes_on_strictly_after_its_cursor(no_pause: None) -> None:
    """H21, H23, H153: no gap, no repeat, over three ways to break."""
    async with served(
        HEAD + event(0, "created") + event(1),
        b"",
        HEAD + event(2) + chunk(b'id: 3\nevent: token\ndata: {"po'),
        refused(503, Code.STOPPING),
        HEAD + chunk(b"id: 2\n\n") + event(3) + event(4, "completed") + b"0\r\n\r\n",
    ) as (script, client):
        async with client.events("ses_1", reconnect=True) as stream:
            seen = [(each.id, each.name) async for each in stream]
        assert seen == [(0, "created"), (1, "token"), (2, "token"), (3, "token"), (4, "completed")]
        assert script.cursors == [None, b"1", b"1", b"2", b"2"]
        assert stream.reconnects == 4
        assert stream.cursor == 4


async def test_without_reconnect_a_broken_stream_is_an_error() -> None:
    async with served(HEAD + event(0, "created")) as (_, client), client.events("ses_1") as stream:
        assert (await anext(stream)).id == 0
        with pytest.raises(Unreachable):
            await anext(stream)


async def test_a_stream_read_to_its_end_ends_at_once() -> None:
    """H25: 204 means that nothing will follow."""
    async with served(b"HTTP/1.1 204 No Content\r\n\r\n") as (script, client):
        async with client.events("ses_1", 9, reconnect=True) as stream:
            assert [each async for each in stream] == []
        assert script.cursors == [b"9"]


async def test_a_refused_stream_is_not_tried_again() -> None:
    async with served(refused(409, Code.CURSOR_AHEAD)) as (script, client):
        with pytest.raises(SwapdError) as caught:
            async with client.events("ses_1", 9, reconnect=True) as stream:
                await anext(stream)
        assert caught.value.code is Code.CURSOR_AHEAD
        assert len(script.requests) == 1


async def test_a_cancelled_read_loses_no_event(no_pause: None) -> None:
    async def slowly(stream: trio.SocketStream) -> None:
        await stream.send_all(HEAD + event(0, "created"))
        await trio.sleep_forever()

    async with (
        served(slowly, HEAD + event(1) + event(2, "completed")) as (_, client),
        client.events("ses_1", reconnect=True) as stream,
    ):
        assert (await anext(stream)).id == 0
        with trio.move_on_after(0.01):
            await anext(stream)
        assert [each.id async for each in stream] == [1, 2]


async def test_a_silent_stream_is_taken_for_a_dead_one(
    no_pause: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H28: a service that lives says so every 15 s."""
    monkeypatch.setattr(client_module, "SILENCE_TIMEOUT_S", 0.02)

    async def silent(stream: trio.SocketStream) -> None:
        await stream.send_all(HEAD)
        await trio.sleep_forever()

    async with (
        # On a slow machine an answer that comes at once may seem silent as well.
        served(silent, *[HEAD + event(0, "failed")] * 100) as (_, client),
        client.events("ses_1", reconnect=True) as stream,
    ):
        assert [each.name async for each in stream] == ["failed"]


@pytest.mark.parametrize("address", ["https://h", "ftp://h", "localhost:1", "http://"])
def test_an_address_that_it_cannot_speak_to_is_refused(address: str) -> None:
    with pytest.raises(SwapdError):
        HttpClient(address)


async def test_the_pause_between_attempts_grows_and_starts_again_after_an_event(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []
    client = HttpClient("http://127.0.0.1:1")

    async def fail(*_: object) -> None:
        attempts.append(trio.current_time())
        raise Unreachable("none")

    monkeypatch.setattr(client, "_begin", fail)
    async with client.events("ses_1", reconnect=True) as stream:
        with trio.move_on_after(20):
            await anext(stream)
    pauses = [b - a for a, b in itertools.pairwise(attempts)]
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(pauses) == pytest.approx(client_module.BACKOFF_MAX_S)


async def test_a_service_that_stays_away_is_told_once_and_given_up_in_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[SwapdError] = []
    client = HttpClient("http://127.0.0.1:1")

    async def fail(*_: object) -> None:
        raise Unreachable("none")

    monkeypatch.setattr(client, "_begin", fail)
    began_s = trio.current_time()
    async with client.events("ses_1", reconnect=True, on_lost=told.append) as stream:
        with pytest.raises(Unreachable):
            await anext(stream)
    patience_s = client_module.RECONNECT_PATIENCE_S
    assert patience_s <= trio.current_time() - began_s <= patience_s + client_module.BACKOFF_MAX_S
    assert [str(error.detail) for error in told] == ["none"]
