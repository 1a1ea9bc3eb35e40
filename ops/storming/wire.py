"""One connection to a session's events, in each way that there is to come back by a cursor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal, NamedTuple, Protocol

import h11
import msgspec
import trio
from trio_websocket import ConnectionClosed, HandshakeError, WebSocketConnection, wrap_client_stream

from swapd.sse import SseParser

Way = Literal["header", "query", "both", "socket"]
"""Last-Event-ID; `?after=`; a Last-Event-ID beside a stale `?after=`, as of an EventSource; WebSocket."""
WAYS: Final[tuple[Way, ...]] = ("header", "query", "both", "socket")
READ_BYTES: Final = 65536


class Received(NamedTuple):
    """One event as it came."""

    id: int
    name: str
    data: str


class Asked(NamedTuple):
    """What a request names: its target and its fields."""

    path: str
    fields: list[tuple[str, str]]


class Address(NamedTuple):
    """Where the service listens, and as whom one comes."""

    host: str
    port: int
    token: str

    @property
    def authority(self) -> str:
        return f"{self.host}:{self.port}"

    def asks(self, way: Way, session: str, cursor: int | None) -> Asked:
        """How one asks for all events after `cursor`; None: for all."""
        path = f"/v1/sessions/{session}/" + ("stream" if way == "socket" else "events")
        fields = [("Authorization", f"Bearer {self.token}")]
        if cursor is not None and way != "header":
            # The header goes before the address, which is as old as the page.
            path += f"?after={0 if way == 'both' else cursor}"
        if cursor is not None and way in ("header", "both"):
            fields.append(("Last-Event-ID", str(cursor)))
        return Asked(path, fields)


class Source(Protocol):
    """Where events come from."""

    async def open(self) -> bool:
        """Wait for the answer's head; whether it is one that events follow."""

    async def receive(self) -> Sequence[Received] | None:
        """What has come, as soon as something has; None when nothing will come any more."""


@asynccontextmanager
async def connected(
    address: Address, way: Way, session: str, cursor: int | None
) -> AsyncIterator[Source | None]:
    """Ask for all events after `cursor`, the last one that the client has; None without a connection.

    Leaving breaks the connection off, with whatever is on its way.
    """
    try:
        stream = await trio.open_tcp_stream(address.host, address.port)
    except OSError:
        yield None
        return
    path, fields = address.asks(way, session, cursor)
    try:
        if way == "socket":
            async with trio.open_nursery() as nursery:
                yield _Socket(nursery, stream, address.authority, path, fields)
                nursery.cancel_scope.cancel()
        else:
            source = _Sse(stream)
            yield source if await source.ask(address.authority, path, fields) else None
    finally:
        await trio.aclose_forcefully(stream)


class _Sse:
    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._parser = SseParser()
        self._is_open = False

    async def ask(self, authority: str, path: str, fields: list[tuple[str, str]]) -> bool:
        request = h11.Request(method="GET", target=path, headers=[("Host", authority), *fields])
        sent = (self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b"")
        try:
            await self._stream.send_all(sent)
        except trio.BrokenResourceError:
            return False
        return True

    async def open(self) -> bool:
        if not self._is_open:
            head = await self._next()
            self._is_open = isinstance(head, h11.Response) and head.status_code == 200
        return self._is_open

    async def receive(self) -> Sequence[Received] | None:
        if not await self.open():
            return None
        chunk = await self._next()
        if not isinstance(chunk, h11.Data):
            return None
        events = self._parser.feed(bytes(chunk.data), trio.current_time())
        return [Received(event.id, event.name, event.data) for event in events if event.id is not None]

    async def _next(self) -> object:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._stream.receive_some(READ_BYTES))
        except (h11.RemoteProtocolError, trio.BrokenResourceError):
            return None
        return event


class _Frame(msgspec.Struct):
    id: int
    event: str
    data: msgspec.Raw


_frame = msgspec.json.Decoder(_Frame)


class _Socket:
    def __init__(
        self,
        nursery: trio.Nursery,
        stream: trio.SocketStream,
        authority: str,
        path: str,
        fields: list[tuple[str, str]],
    ) -> None:
        self._nursery = nursery
        self._stream = stream
        self._authority = authority
        self._path = path
        self._fields = fields
        self._socket: WebSocketConnection | None = None

    async def open(self) -> bool:
        if self._socket is None:
            try:
                self._socket = await wrap_client_stream(
                    self._nursery, self._stream, self._authority, self._path, extra_headers=self._fields
                )
            except (HandshakeError, ConnectionClosed, trio.BrokenResourceError):
                return False
        return True

    async def receive(self) -> Sequence[Received] | None:
        if not await self.open():
            return None
        assert self._socket is not None
        try:
            frame = _frame.decode(await self._socket.get_message())
        except ConnectionClosed:
            return None
        return [Received(frame.id, frame.event, bytes(frame.data).decode())]
