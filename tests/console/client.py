"""A small HTTP client over raw sockets, so that tests see exactly what is on the wire."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio

from tests.console.service_double import TENANT

WAIT_S = 20
"""A hang fails here; nothing depends on its length."""


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class Frame(NamedTuple):
    """One SSE block; `id` None where it had none."""

    id: int | None
    name: str | None
    data: bytes | None


class Wire:
    """One connection; reads what HTTP promises and no more."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = b""
        self._chunked = False

    async def until(self, mark: bytes) -> bytes:
        """The bytes through `mark`. Raises EOFError where they end before."""
        while mark not in self._buffer:
            data = await self.stream.receive_some(1 << 16)
            if not data:
                raise EOFError(self._buffer)
            self._buffer += bytes(data)
        head, self._buffer = self._buffer.split(mark, 1)
        return head + mark

    async def exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            data = await self.stream.receive_some(1 << 16)
            if not data:
                raise EOFError(self._buffer)
            self._buffer += bytes(data)
        got, self._buffer = self._buffer[:count], self._buffer[count:]
        return got

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.until(b"\r\n\r\n")).decode("latin1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        headers = {name.lower(): value for name, value in headers.items()}
        self._chunked = headers.get("transfer-encoding") == "chunked"
        return int(lines[0].split()[1]), headers

    async def chunk(self) -> bytes:
        size = int(await self.until(b"\r\n"), 16)
        data = await self.exactly(size)
        await self.until(b"\r\n")
        return data

    async def reply(self) -> Reply:
        status, headers = await self.head()
        body = b""
        if self._chunked:
            while data := await self.chunk():
                body += data
        elif status != 204:
            body = await self.exactly(int(headers.get("content-length", "0")))
        return Reply(status, headers, body)


class EventSource:
    """Reads SSE frames off a response that stays open."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._text = b""

    async def heartbeats(self, count: int) -> None:
        """Read until `count` comments have passed and nothing else has."""
        while count > 0:
            self._text += await self._wire.chunk()
            *blocks, self._text = self._text.split(b"\n\n")
            assert all(block.startswith(b":") for block in blocks)
            count -= len(blocks)

    async def frame(self) -> Frame | None:
        """The next frame that is not a comment; None at the clean end of the response."""
        while True:
            while b"\n\n" not in self._text:
                chunk = await self._wire.chunk()
                if not chunk:
                    return None
                self._text += chunk
            block, self._text = self._text.split(b"\n\n", 1)
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
            if not fields:
                continue
            name = fields.get(b"event")
            return Frame(
                int(fields[b"id"]) if b"id" in fields else None,
                name.decode() if name else None,
                fields.get(b"data"),
            )


class Client:
    def __init__(self, port: int) -> None:
        self.port = port

    @asynccontextmanager
    async def wire(self) -> AsyncIterator[Wire]:
        with trio.fail_after(WAIT_S):
            async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
                yield Wire(stream)

    def head(
        self, method: str, path: str, headers: dict[str, str] | None = None, token: str | None = TENANT
    ) -> bytes:
        fields = {"Host": f"127.0.0.1:{self.port}"}
        if token is not None:
            fields["Authorization"] = f"Bearer {token}"
        fields |= headers or {}
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin1")

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        token: str | None = TENANT,
    ) -> Reply:
        fields = dict(headers or {})
        if body is not None:
            fields.setdefault("Content-Type", "application/json")
            fields.setdefault("Content-Length", str(len(body)))
        async with self.wire() as wire:
            await wire.stream.send_all(self.head(method, path, fields, token) + (body or b""))
            return await wire.reply()

    async def alive(self) -> bool:
        return (await self.ask("GET", "/healthz", token=None)).status == 200

    @asynccontextmanager
    async def events(
        self, session: str, last_event_id: object = None, query: str = ""
    ) -> AsyncIterator[EventSource]:
        headers = {} if last_event_id is None else {"Last-Event-ID": str(last_event_id)}
        async with self.wire() as wire:
            await wire.stream.send_all(self.head("GET", f"/v1/sessions/{session}/events{query}", headers))
            status, fields = await wire.head()
            assert status == 200, status
            assert fields["content-type"].startswith("text/event-stream")
            yield EventSource(wire)
