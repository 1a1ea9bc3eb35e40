"""A session's events over a WebSocket, for readers that cannot use SSE.

The same events in the same order, one JSON text frame each, resumed by `?after=`. Nothing is expected
from the client: its frames are counted, ignored up to a limit, and then end the connection.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import trio
from quart import websocket

from console import auth
from console.api.sessions import check_cursor
from console.streams import TERMINAL, Reader, StreamTimers, parse_cursor, parse_notices, websocket_frame
from swapd.api import Service
from swapd.views import Caller

MAX_CLIENT_FRAMES: Final = 64

FINISHED: Final = 1000
GOING_AWAY: Final = 1001
UNEXPECTED_FRAMES: Final = 1003
INTERNAL: Final = 1011

log = logging.getLogger("swapd.http")


class SocketRoutes:
    """A refusal before the handshake is an ordinary HTTP answer; after it, a close code."""

    def __init__(self, service: Service, timers: StreamTimers) -> None:
        self._service = service
        self._timers = timers

    async def stream(self, session: str) -> None:
        offered = websocket.requested_subprotocols
        who = auth.caller(self._service, websocket.headers, offered)
        after = parse_cursor(None, websocket.args.getlist("after"))
        notices = parse_notices(websocket.args.getlist("notices"))
        check_cursor(await self._service.session(who, session), after)
        # `bearer.<token>` is never echoed: answers are logged by proxies.
        await websocket.accept(subprotocol=auth.SUBPROTOCOL if auth.SUBPROTOCOL in offered else None)
        code = INTERNAL
        failed: Sequence[Exception] = ()
        try:
            code = await self._pump(who, session, after, notices)
        # The supervision boundary of one reader: after the handshake an error can only be a close code.
        except* Exception as group:
            failed = group.exceptions
        # A client that left cancels its handler; what its leaving provoked is not worth a line.
        await trio.lowlevel.checkpoint()
        for error in failed:
            log.error("a websocket reader failed", extra={"error_type": type(error).__name__})
        await websocket.close(code)

    async def _pump(self, who: Caller, session: str, after: int | None, notices: bool) -> int:
        """Send until the end, the service's stop or too many client frames; return the close code.

        A send waits for the peer; the server's write deadline ends one that never reads (H29).
        """
        code = UNEXPECTED_FRAMES
        async with (
            self._service.subscribe(who, session, after, notices=notices) as subscription,
            aclosing(Reader(subscription, self._timers.heartbeat_s)) as reader,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_ignore_frames, nursery.cancel_scope)
            last = None
            while (batch := await reader.read()) is not None:
                for event in batch:
                    await websocket.send(websocket_frame(event))
                    # After a reset `send` returns without yielding; a long replay would hold the loop.
                    await trio.lowlevel.checkpoint()
                    last = event.name
            finished = last in TERMINAL or not self._service.stopping
            code = FINISHED if finished else GOING_AWAY
            nursery.cancel_scope.cancel()
        return code


async def _ignore_frames(scope: trio.CancelScope) -> None:
    """Take what the client sends, so that its pings and its close are seen, and cancel at the limit."""
    for _ in range(MAX_CLIENT_FRAMES):
        await websocket.receive()
    scope.cancel()
