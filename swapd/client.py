"""A client of the HTTP API, for the CLI, the quickstart and the benches.

One connection a request: plain HTTP/1.1 to a service on this machine or near it. A stream of events is
read strictly after a cursor and, where asked, picked up again after a broken connection, so that each event
is seen once.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import h11
import msgspec
import trio

from swapd.errors import REASONS, Code, SwapdError
from swapd.sse import SseEvent, SseParser

CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 60.0
SILENCE_TIMEOUT_S: Final = 45.0
"""The service sends a sign of life at least every 15 s (H28); three missed ones are a dead connection."""
BACKOFF_MIN_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0
RECONNECT_PATIENCE_S: Final = 120.0
"""How long a stream is tried again without a sign of life: a service that restarts needs less."""
MAX_ANSWER_BYTES: Final = 32 << 20
READ_BYTES: Final = 65536
TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})

T = TypeVar("T")


class Unreachable(SwapdError):
    """No connection, or it broke before the answer was complete: whether it had effect is unknown."""

    def __init__(self, detail: str) -> None:
        super().__init__(Code.NOT_READY, detail)


class HttpClient:
    """Requests to one service. Safe for use by many tasks; every call opens its own connection."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        parts = urlsplit(base_url)
        if parts.scheme != "http" or parts.hostname is None:
            raise SwapdError(Code.INVALID_REQUEST, f"{base_url} is not an http:// address")
        self.base_url = base_url.rstrip("/")
        self._host = parts.hostname
        self._port = parts.port or 80
        self._authority = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/")
        self._token = token

    async def request(
        self, method: str, path: str, body: object = None, *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> tuple[int, Any]:
        """Send one request; returns status and decoded JSON (None for an empty body).

        Raises `Unreachable`. If cancelled, the request may or may not have had effect.
        """
        try:
            with trio.fail_after(timeout_s):
                async with self._exchange(method, path, body) as exchange:
                    content = b""
                    while (chunk := await exchange.read()) is not None:
                        content += chunk
                        if len(content) > MAX_ANSWER_BYTES:
                            raise Unreachable(f"an answer of over {MAX_ANSWER_BYTES} bytes")
                    return exchange.status, _decoded(content)
        except trio.TooSlowError:
            raise Unreachable(f"{self.base_url} did not answer within {timeout_s:g} s") from None

    async def view(self, method: str, path: str, kind: type[T], body: object = None) -> T:
        """Send one request and read its answer as a view. Raises the service's refusal as `SwapdError`."""
        status, content = await self.request(method, path, body)
        if status >= 400:
            raise refusal(status, content)
        try:
            return msgspec.convert(content, kind)
        except msgspec.ValidationError:
            raise SwapdError(Code.FRAME_MALFORMED, f"{method} {path} answered something else") from None

    @asynccontextmanager
    async def events(
        self,
        session: str,
        after: int | None = None,
        *,
        reconnect: bool = False,
        on_lost: Callable[[SwapdError], None] | None = None,
    ) -> AsyncIterator[EventStream]:
        """The session's events strictly after a cursor, as an async iterator.

        Without `reconnect` a broken connection raises `Unreachable`; with it the stream goes on from its
        cursor, after a growing pause, and raises only after `RECONNECT_PATIENCE_S`. `on_lost` hears of each
        break once, however many attempts it takes.
        """
        stream = EventStream(self, session, after, reconnect, on_lost)
        try:
            yield stream
        finally:
            await stream.aclose()

    @asynccontextmanager
    async def _exchange(
        self, method: str, path: str, body: object = None, headers: tuple[tuple[str, str], ...] = ()
    ) -> AsyncIterator[_Exchange]:
        exchange = await self._begin(method, path, body, headers)
        try:
            yield exchange
        finally:
            await trio.aclose_forcefully(exchange.stream)

    async def _begin(
        self, method: str, path: str, body: object, headers: tuple[tuple[str, str], ...]
    ) -> _Exchange:
        content = b"" if body is None else msgspec.json.encode(body)
        sent = [("Host", self._authority), ("Connection", "close"), *headers]
        if self._token is not None:
            sent.append(("Authorization", f"Bearer {self._token}"))
        if body is not None:
            sent += [("Content-Type", "application/json"), ("Content-Length", str(len(content)))]
        elif method == "POST":
            sent.append(("Content-Length", "0"))
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                stream = await trio.open_tcp_stream(self._host, self._port)
        except (OSError, trio.TooSlowError):
            raise Unreachable(f"no service answers at {self.base_url}") from None
        exchange = _Exchange(stream, self.base_url)
        try:
            await exchange.send(h11.Request(method=method, target=self._prefix + path, headers=sent), content)
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return exchange


class _Exchange:
    """One request on one connection, as far as it has been answered."""

    def __init__(self, stream: trio.SocketStream, where: str) -> None:
        self.stream = stream
        self.status = 0
        self._where = where
        self._h11 = h11.Connection(h11.CLIENT)

    async def send(self, request: h11.Request, content: bytes) -> None:
        """Send the request and read the answer's head. Raises `Unreachable`."""
        sent = self._h11.send(request) or b""
        sent += self._h11.send(h11.Data(data=content)) or b"" if content else b""
        sent += self._h11.send(h11.EndOfMessage()) or b""
        # A refusal may have been sent before the body was read: go on to read it.
        with contextlib.suppress(trio.BrokenResourceError):
            await self.stream.send_all(sent)
        event = await self._next_event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._next_event()
        if not isinstance(event, h11.Response):
            raise Unreachable(f"{self._where} closed the connection")
        self.status = event.status_code

    async def read(self) -> bytes | None:
        """The next bytes of the body, None at its end. Raises `Unreachable`; useless once cancelled."""
        event = await self._next_event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        return None

    async def _next_event(self) -> object:
        try:
            while (event := self._h11.next_event()) is h11.NEED_DATA:
                self._h11.receive_data(await self.stream.receive_some(READ_BYTES))
        except (h11.RemoteProtocolError, trio.BrokenResourceError):
            raise Unreachable(f"{self._where} broke the connection") from None
        return event


class EventStream:
    """Events of one session, each once and in order; ends after the terminal event.

    `cursor` is the last id handed out, `reconnects` how often the stream was picked up again.
    """

    def __init__(
        self,
        client: HttpClient,
        session: str,
        after: int | None,
        reconnect: bool,
        on_lost: Callable[[SwapdError], None] | None = None,
    ) -> None:
        self.cursor = after
        self.reconnects = 0
        self._client = client
        self._session = session
        self._reconnect = reconnect
        self._on_lost = on_lost
        self._lost_at: float | None = None
        self._exchange: _Exchange | None = None
        self._parser = SseParser(after)
        self._ready: deque[SseEvent] = deque()
        self._ended = False
        self._delay_s = BACKOFF_MIN_S

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> SseEvent:
        """Raises `SwapdError` for a refusal, `Unreachable` without `reconnect` or when patience ends.

        If cancelled, no event is lost: the cursor has not moved.
        """
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            try:
                await self._fill()
            except SwapdError as error:
                await self._drop()
                again = isinstance(error, Unreachable) or error.retryable
                if not (self._reconnect and again and self._patient(error)):
                    raise
                await self._pause()
            except BaseException:
                await self._drop()
                raise
        event = self._ready.popleft()
        if event.id is not None:
            self.cursor = event.id
        self._ended = self._ended or event.name in TERMINAL
        self._delay_s = BACKOFF_MIN_S
        return event

    async def aclose(self) -> None:
        """Close the connection at once."""
        self._ended = True
        await self._drop()

    async def _fill(self) -> None:
        if self._exchange is None:
            await self._open()
            return
        try:
            with trio.fail_after(SILENCE_TIMEOUT_S):
                chunk = await self._exchange.read()
        except trio.TooSlowError:
            raise Unreachable(f"the stream was silent for {SILENCE_TIMEOUT_S:g} s") from None
        if chunk is None:
            # A stream that ends without a terminal event was ended by a stopping service.
            raise Unreachable("the stream ended early")
        self._lost_at = None
        try:
            self._ready.extend(self._parser.feed(chunk, trio.current_time()))
        except ValueError as error:
            raise Unreachable(str(error)) from None

    async def _open(self) -> None:
        headers = () if self.cursor is None else (("Last-Event-ID", str(self.cursor)),)
        path = f"/v1/sessions/{self._session}/events"
        self._parser = SseParser(self.cursor)
        try:
            with trio.fail_after(ANSWER_TIMEOUT_S):
                self._exchange = exchange = await self._client._begin("GET", path, None, headers)
                if exchange.status == 200:
                    return
                content = b""
                while exchange.status != 204 and (chunk := await exchange.read()) is not None:
                    content += chunk
        except trio.TooSlowError:
            raise Unreachable(f"{self._client.base_url} did not answer") from None
        await self._drop()
        if exchange.status == 204:
            # H25: the cursor stands at the terminal event.
            self._ended = True
        else:
            raise refusal(exchange.status, _decoded(content))

    def _patient(self, error: SwapdError) -> bool:
        """Whether to try again; the first failure since a sign of life is told."""
        if self._lost_at is None:
            self._lost_at = trio.current_time()
            if self._on_lost is not None:
                self._on_lost(error)
        return trio.current_time() - self._lost_at < RECONNECT_PATIENCE_S

    async def _pause(self) -> None:
        self.reconnects += 1
        await trio.sleep(self._delay_s)
        self._delay_s = min(self._delay_s * 2, BACKOFF_MAX_S)

    async def _drop(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await trio.aclose_forcefully(exchange.stream)


def refusal(status: int, content: object) -> SwapdError:
    """The service's refusal as the error that it raised."""
    error = content.get("error") if isinstance(content, dict) else None
    fields = error if isinstance(error, dict) else {}
    message = str(fields.get("message", f"HTTP status {status}"))
    try:
        code = Code(str(fields.get("code")))
    except ValueError:
        return SwapdError(Code.INTERNAL, message)
    return SwapdError(
        code, message.removeprefix(REASONS[code].sentence).strip().removeprefix("(").removesuffix(")")
    )


def _decoded(content: bytes) -> Any:
    if not content:
        return None
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        return None
