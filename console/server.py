"""The guarded serve loop: no client can end the process, hold its shutdown or freeze its loop.

Built from hypercorn's pieces inside our nursery, because `hypercorn.trio.serve` lets an error of one
connection end all of them, and a client that stops reading hold shutdown for as long as it likes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Final, NamedTuple

import msgspec
import trio
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper
from hypercorn.utils import wrap_app
from quart_trio import QuartTrio

from console.connection import Connection, Deadlines
from console.errors import RETRY_AFTER_S, error_body
from console.protocol import protocol_config
from swapd.config import LimitConfig
from swapd.errors import Code, SwapdError

GRACE_S: Final = 3.0
"""How long open responses may take to end by themselves at shutdown; streams end at once."""
LIFESPAN_S: Final = 10
MAX_PORT: Final = 65535
REFUSAL_S: Final = 1.0
MAX_REFUSALS: Final = 64
"""Connections over the limit that are told so at the same time; further ones are just closed."""

log = logging.getLogger("swapd.http")


class ServerStatistics(NamedTuple):
    open_connections: int
    refused_connections: int
    failed_connections: int


class Server:
    """The open connections of one listener."""

    def __init__(
        self, app: AppWrapper, limits: LimitConfig, deadlines: Deadlines, context: WorkerContext
    ) -> None:
        self._app = app
        self._config = protocol_config()
        self._limit = limits.max_connections
        self._deadlines = deadlines
        self._context = context
        self._open: set[Connection] = set()
        self._refusing = 0
        self._refused = 0
        self._failed = 0
        self._empty = trio.Event()

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(len(self._open), self._refused, self._failed)

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection. Never raises but for cancellation."""
        if len(self._open) >= self._limit:
            return await self._refuse(stream)
        connection = Connection(self._app, self._config, self._context, stream, self._deadlines)
        with self._registered(connection):
            # The supervision boundary of a connection: whatever a client provokes ends here.
            try:
                await connection.run()
            except* Exception as group:
                self._failed += 1
                log.warning("a connection failed", extra={"error_type": type(_first(group)).__name__})
        return None

    async def drained(self) -> None:
        """Return when no connection is open."""
        while self._open:
            self._empty = trio.Event()
            await self._empty.wait()

    def abort(self) -> None:
        """Close every socket, so that nothing can wait for a client any more."""
        for connection in self._open:
            connection.abort()

    @contextmanager
    def _registered(self, connection: Connection) -> Iterator[None]:
        self._open.add(connection)
        try:
            yield
        finally:
            self._open.discard(connection)
            if not self._open:
                self._empty.set()

    async def _refuse(self, stream: trio.SocketStream) -> None:
        """Tell a client over the limit to come back, if that is cheap."""
        self._refused += 1
        self._refusing += 1
        try:
            if self._refusing <= MAX_REFUSALS:
                with trio.move_on_after(REFUSAL_S):
                    await stream.send_all(_REFUSAL)
                    await stream.send_eof()
                    await stream.receive_some(1 << 16)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._refusing -= 1
            stream.socket.close()


async def serve_http(
    app: QuartTrio,
    *,
    host: str,
    port: int,
    limits: LimitConfig,
    wait_stopping: Callable[[], Awaitable[None]] = trio.sleep_forever,
    deadlines: Deadlines | None = None,
    grace_s: float = GRACE_S,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` until `wait_stopping` returns, then end within `grace_s` and a moment.

    Reports the bound port (`port` 0: any). Cancelled, it closes every connection at once. Raises
    `config_invalid` where it cannot listen.
    """
    listeners = await _listen(host, port)
    wrapped = wrap_app(app, limits.max_body_bytes, "asgi")
    context = WorkerContext(None)
    server = Server(wrapped, limits, deadlines or Deadlines(), context)
    async with AsyncExitStack() as stack:
        for listener in listeners:
            await stack.enter_async_context(listener)
        lifespan_nursery = await stack.enter_async_context(trio.open_nursery())
        lifespan = await _start_lifespan(wrapped, lifespan_nursery)
        async with trio.open_nursery() as connections:
            accepting = await connections.start(partial(_accept, listeners, server, connections))
            connections.start_soon(_abort_when_cancelled, server)
            task_status.started(listeners[0].socket.getsockname()[1])
            await wait_stopping()
            accepting.cancel()
            await context.terminated.set()
            with trio.move_on_after(grace_s):
                await server.drained()
            connections.cancel_scope.cancel()
        await lifespan.wait_for_shutdown()
        lifespan_nursery.cancel_scope.cancel()


async def _listen(host: str, port: int) -> list[trio.SocketListener]:
    # Out of range, the system would take another port without a word.
    if not 0 <= port <= MAX_PORT:
        raise SwapdError(Code.CONFIG_INVALID, f"port must be between 0 and {MAX_PORT}")
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        # The system's sentence is all a person needs: in use, not permitted, no such address.
        raise SwapdError(
            Code.CONFIG_INVALID, f"cannot listen on {host} port {port}: {_reason(error)}"
        ) from error


def _reason(error: OSError) -> str:
    return error.strerror or "the system refuses"


async def _accept(
    listeners: list[trio.SocketListener],
    server: Server,
    connections: trio.Nursery,
    *,
    task_status: trio.TaskStatus[trio.CancelScope],
) -> None:
    """Accept until cancelled; the listeners are closed then. Out of files, trio waits and goes on."""
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await trio.serve_listeners(server.serve, listeners, handler_nursery=connections)


async def _abort_when_cancelled(server: Server) -> None:
    """Free the writes that are shielded from cancellation when everything is to end."""
    try:
        await trio.sleep_forever()
    finally:
        server.abort()


async def _start_lifespan(app: AppWrapper, nursery: trio.Nursery) -> Lifespan:
    config = protocol_config()
    config.startup_timeout = config.shutdown_timeout = LIFESPAN_S
    lifespan = Lifespan(app, config, {})
    await nursery.start(lifespan.handle_lifespan)
    await lifespan.wait_for_startup()
    return lifespan


def _first(group: BaseExceptionGroup[Exception]) -> BaseException:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def _refusal() -> bytes:
    body = msgspec.json.encode(error_body(SwapdError(Code.TOO_MANY_CONNECTIONS)))
    head = (
        "HTTP/1.1 503 Service Unavailable\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Retry-After: {RETRY_AFTER_S}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


_REFUSAL: Final = _refusal()
