"""HTTP/1.1 and WebSocket on one connection: hypercorn's protocol with its dangerous corners cut off.

What is different from hypercorn 0.18, and why:
- no HTTP/2 without TLS: neither the upgrade nor the preface; streams do not need it, and it is the larger
  part of the attack surface;
- no WebSocket compression: a few kilobytes of it expand to a gigabyte, and tokens gain nothing by it;
- a WebSocket message over the limit, or a protocol error, ends the connection with its close code;
  hypercorn goes on reading and its buffer goes on growing;
- its log takes types only, for a traceback may hold a prompt (H183).
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import h11
import quart.wrappers.base
from hypercorn.config import Config
from hypercorn.logging import Logger
from hypercorn.protocol.events import Body, Data, Event, Request, StreamClosed
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol, H11WSConnection
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import FrameTooLargeError, WSStream
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Message, Ping
from wsproto.frame_protocol import CloseReason

from hypercorn.events import Closed  # isort: skip

MAX_HEADER_BYTES: Final = 16 * 1024
MAX_WEBSOCKET_MESSAGE_BYTES: Final = 16 * 1024
WEBSOCKET_PING_INTERVAL_S: Final = 20.0

log = logging.getLogger("swapd.http")

CLIENT_GONE: Final[type[BaseException] | tuple[()]] = getattr(
    quart.wrappers.base, "ClientDisconnectedError", ()
)
"""What Quart raises from 0.23 on when a client leaves before its answer is sent; before, nothing."""


class ProtocolRefused(Exception):
    """This client speaks what we do not; it has its answer, and the connection is over."""


class TypesOnlyLog(Logger):
    """Hypercorn's log, reduced to the type of what was raised (H183)."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.error_logger = log

    async def exception(self, message: str, *args: Any, **kwargs: Any) -> None:
        raised = sys.exc_info()[1]
        if raised is not None and _only_gone(raised):
            return
        log.error("a response failed", extra={"error_type": type(raised).__name__})


def _only_gone(raised: BaseException) -> bool:
    """Whether all that was raised is that the client went, which is no failure of ours."""
    if isinstance(raised, BaseExceptionGroup):
        return all(_only_gone(each) for each in raised.exceptions)
    return isinstance(raised, CLIENT_GONE)


def protocol_config() -> Config:
    config = Config()
    config.errorlog = log
    config.logger_class = TypesOnlyLog
    config.include_server_header = False
    config.h11_max_incomplete_size = MAX_HEADER_BYTES
    config.websocket_max_message_size = MAX_WEBSOCKET_MESSAGE_BYTES
    config.websocket_ping_interval = WEBSOCKET_PING_INTERVAL_S
    return config


class SocketStream(WSStream):
    """A WebSocket that ends at the first frame it cannot accept."""

    async def handle(self, event: Event) -> None:
        early = isinstance(event, Body | Data) and not self.closed and not self.handshake.accepted
        if not early:
            return await super().handle(event)
        # Bytes behind the upgrade that is not answered yet. The answer is 400, and the application must
        # not accept meanwhile: it would write into a connection that is past its response.
        self.closed = True
        await self._send_error_response(400)
        assert self.app_put is not None
        await self.app_put({"type": "websocket.disconnect", "code": CloseReason.ABNORMAL_CLOSURE.value})
        await self.send(StreamClosed(stream_id=self.stream_id))
        return None

    async def _handle_events(self) -> None:
        for event in self.connection.events():
            if isinstance(event, Message):
                try:
                    self.buffer.extend(event)
                except FrameTooLargeError:
                    return await self._end(CloseReason.MESSAGE_TOO_BIG)
                if event.message_finished:
                    assert self.app_put is not None
                    await self.app_put(self.buffer.to_message())
                    self.buffer.clear()
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                if self.connection.state is ConnectionState.REMOTE_CLOSING:
                    await self._send_wsproto_event(event.response())
                    return await self.send(StreamClosed(stream_id=self.stream_id))
                # wsproto reports a frame that breaks the protocol as a close with our code.
                return await self._end(event.code)
        return None

    async def _send_pings(self) -> None:
        # The first after the interval: hypercorn's first crosses the close of a client that leaves at
        # once, and trio-websocket raises on that.
        assert self.config.websocket_ping_interval is not None
        while not self.closed:
            await self.context.sleep(self.config.websocket_ping_interval)
            await self._send_wsproto_event(Ping())

    async def _end(self, code: int) -> None:
        await self._send_wsproto_event(CloseConnection(code=code))
        await self.send(StreamClosed(stream_id=self.stream_id))


class Protocol(H11Protocol):
    """One connection's requests, one after the other."""

    @property
    def is_websocket(self) -> bool:
        return isinstance(self.connection, H11WSConnection)

    async def _check_protocol(self, event: h11.Request) -> None:
        # An `Upgrade: h2c` is ignored, as a server may.
        if event.http_version not in (b"1.0", b"1.1"):
            await self._send_error_response(505)
            await self.send(Closed())
            raise ProtocolRefused

    async def _create_stream(self, request: h11.Request) -> None:
        headers = [
            (name, value) for name, value in request.headers if name.lower() != b"sec-websocket-extensions"
        ]
        arguments = (
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        if _wants_websocket(request):
            assert isinstance(self.connection, h11.Connection)
            self.stream = SocketStream(*arguments)
            self.connection = H11WSConnection(self.connection)
        else:
            self.stream = HTTPStream(*arguments)
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=headers,
                http_version=request.http_version.decode("ascii"),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1
        await self.context.mark_request()


def _wants_websocket(request: h11.Request) -> bool:
    upgrade = connection = b""
    for name, value in request.headers:
        if name == b"upgrade":
            upgrade = value.strip().lower()
        elif name == b"connection":
            connection = value.lower()
    tokens = [token.strip() for token in connection.split(b",")]
    return request.method == b"GET" and upgrade == b"websocket" and b"upgrade" in tokens
