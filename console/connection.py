"""One client's TCP connection, and every deadline it lives under.

A client may be slow, silent, hostile or gone; none of that may cost more than this connection. It has
`header_s` to send a request's head, `write_s` for each piece it is sent, and `linger_s` to take the
last answer. Writes are shielded, because a cut write breaks the framing, so only the deadline or closing
the socket ends one: `abort` is how the server takes back a connection at shutdown.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final, NamedTuple

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import TrioSingleTask, WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr

from console.protocol import MAX_HEADER_BYTES, Protocol, ProtocolRefused

RECEIVE_BYTES: Final = MAX_HEADER_BYTES
"""Reading no more at once keeps the limit of a head: h11 checks only what is not yet whole."""
WRITE_BYTES: Final = 1 << 16
"""One write deadline covers this much, so a slow reader of a long replay is not a dead one."""
MAX_WEBSOCKET_INBOUND_BYTES: Final = 1 << 20
"""Readers send nothing but pongs; an hour of those is below 100 KB."""
MAX_LINGER_BYTES: Final = 4 << 20
MS_PER_S: Final = 1000


class Deadlines(NamedTuple):
    """Seconds that a client has."""

    header_s: float = 15.0
    """For a request's head, from the connection's begin or the last answer; also the idle time."""
    write_s: float = 30.0
    linger_s: float = 2.0
    """Closing with unread input resets the connection and can destroy the answer under way: discard first."""


class Connection:
    """Reads, writes and closes one stream; the protocol decides what the bytes mean."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        stream: trio.SocketStream,
        deadlines: Deadlines,
    ) -> None:
        self._app = app
        self._config = config
        self._context = context
        self._stream = stream
        self._deadlines = deadlines
        self._send_lock = trio.Lock()
        self._idle = TrioSingleTask()
        self._reading = trio.CancelScope()
        self._closing = False
        self._tasks = TaskGroup()

    async def run(self) -> None:
        """Serve until either side is done. Raises what the protocol raises; the caller guards."""
        try:
            sock = self._stream.socket
            sock.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._deadlines.write_s * MS_PER_S)
            )
            client = parse_socket_addr(sock.family, sock.getpeername())
            server = parse_socket_addr(sock.family, sock.getsockname())
            with trio.CancelScope() as everything:
                async with self._tasks:
                    protocol = Protocol(
                        self._app,
                        self._config,
                        self._context,
                        self._tasks,
                        ConnectionState({}),
                        False,
                        client,
                        server,
                        self._send,
                    )
                    self._protocol = protocol
                    await self._idle.restart(self._tasks, self._close_when_idle)
                    with self._reading:
                        await self._read(protocol)
                    await self._idle.stop()
                    # Gone or told to go: the application hears it, and nothing is sent any more.
                    self.abort()
                    await protocol.handle(Closed())
                    # Its tasks have no reader any more; hypercorn's pings would sleep on for their interval.
                    everything.cancel()
        except OSError:
            pass  # reset before it began
        finally:
            self.abort()

    def abort(self) -> None:
        """Close the socket at once; whoever waits on it, shielded or not, wakes with an error."""
        self._stream.socket.close()

    async def _read(self, protocol: Protocol) -> None:
        inbound = discarded = 0
        while True:
            try:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if self._closing:
                discarded += len(data)
                if not data or discarded > MAX_LINGER_BYTES:
                    return
                continue
            if protocol.is_websocket:
                inbound += len(data)
                if inbound > MAX_WEBSOCKET_INBOUND_BYTES:
                    return
            with suppress(ProtocolRefused):
                await protocol.handle(RawData(bytes(data)))
            if not data:
                # A client that only closed its sending side looks like one that left, and a reader
                # that left must not count as one (H32).
                return

    async def _send(self, event: Event) -> None:
        """What the protocol does to the connection: bytes, the end, busy or idle."""
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Closed):
            await self._half_close()
            await self._protocol.handle(Closed())
        elif isinstance(event, Updated):
            if event.idle:
                await self._idle.restart(self._tasks, self._close_when_idle)
            else:
                await self._idle.stop()

    async def _write(self, data: bytes) -> None:
        """Send all of it or end the connection; either way the framing stays whole."""
        async with self._send_lock:
            view = memoryview(data)
            for begin in range(0, len(view), WRITE_BYTES):
                with trio.move_on_after(self._deadlines.write_s, shield=True) as deadline:
                    try:
                        await self._stream.send_all(view[begin : begin + WRITE_BYTES])
                    except (trio.BrokenResourceError, trio.ClosedResourceError):
                        deadline.cancel()
                if deadline.cancel_called:
                    # Gone, or too slow (H29) and then it may come back by its cursor. The reading side
                    # may be waiting for the application; only cancelling tells it.
                    self._reading.cancel()
                    return

    async def _half_close(self) -> None:
        """Say that no more will come, and give the client a moment to take what has."""
        if self._closing:
            return
        self._closing = True
        self._reading.deadline = trio.current_time() + self._deadlines.linger_s
        try:
            self._stream.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.abort()

    async def _close_when_idle(self) -> None:
        """End a connection on which no whole request head came in time, or at shutdown."""
        with trio.move_on_after(self._deadlines.header_s):
            await self._context.terminated.wait()
        self._reading.cancel()
