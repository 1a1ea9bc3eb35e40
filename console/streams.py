"""A session's events as bytes on the wire: Server-Sent Events and WebSocket frames.

Both pull from a subscription: what a reader has not taken stays in the store and costs no memory here
(H29). A reader resumes by the cursor of the last event it got, so ending a stream early, whether at
shutdown or when a reader is too slow, loses nothing (H21).
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Final, NamedTuple

import trio
from quart.wrappers.response import ResponseBody

from swapd.api import Event, Subscription
from swapd.errors import Code, SwapdError

MAX_CURSOR: Final = (1 << 63) - 1
HEARTBEAT: Final = b":\n\n"
SSE_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    # nginx would hold events back until its buffer is full.
    "X-Accel-Buffering": "no",
}
TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})
"""Names of terminal events; a session's terminal states have the same names."""


class StreamTimers(NamedTuple):
    """Seconds. H28 wants a sign of life at least every 15 s; a slow network takes some of that."""

    heartbeat_s: float = 12.0


def parse_cursor(last_event_id: str | None, after: Sequence[str]) -> int | None:
    """The id after which a reader wants events; None: from `created` (H22).

    `Last-Event-ID` goes before `?after=`: an EventSource that reconnects repeats its URL, stale by then.
    Raises `cursor_invalid` (H24). What is past every possible id stays past every id.
    """
    given = [last_event_id] if last_event_id is not None else list(after)
    if not given:
        return None
    if len(given) > 1 or re.fullmatch(r"[0-9]+", given[0], re.ASCII) is None:
        raise SwapdError(Code.CURSOR_INVALID)
    digits = given[0].lstrip("0")
    return min(int(digits or "0"), MAX_CURSOR) if len(digits) < 20 else MAX_CURSOR


def sse_frames(events: Iterable[Event]) -> bytes:
    """Events as SSE (H20). `data` is JSON and so has no line break of its own; a notice has no id (B6)."""
    return b"".join(
        (b"" if event.name == "notice" else b"id: %d\n" % event.id)
        + b"event: %s\ndata: %s\n\n" % (event.name.encode(), event.data)
        for event in events
    )


def parse_notices(given: Sequence[str]) -> bool:
    """Whether a reader wants notices: `?notices=1` (B6). Raises `invalid_request` for anything else."""
    if list(given) in ([], ["0"], ["1"]):
        return list(given) == ["1"]
    raise SwapdError(Code.INVALID_REQUEST, "notices is 0 or 1")


def sse_opening(after: int | None) -> bytes:
    """What a reader gets at once (H28): its cursor, as an event without data that only sets the id.

    Without a cursor nothing was delivered yet, and an id would make a reconnect skip `created` (id 0),
    which is always durable and follows at once.
    """
    return b": open\n\n" if after is None else b"id: %d\n\n" % after


def websocket_frame(event: Event) -> str:
    """One event as a JSON text frame; `data` as it was encoded, byte for byte (H21). A notice has no id."""
    if event.name == "notice":
        return (b'{"event":"notice","data":%s}' % event.data).decode()
    return (b'{"id":%d,"event":"%s","data":%s}' % (event.id, event.name.encode(), event.data)).decode()


class Reader:
    """Takes batches from a subscription and notices silence."""

    def __init__(self, subscription: Subscription, quiet_s: float) -> None:
        self._subscription = subscription
        self._quiet_s = quiet_s
        self._batches = aiter(subscription)

    async def aclose(self) -> None:
        """End the iteration here and now, not when the garbage collector comes by."""
        if isinstance(self._batches, AsyncGenerator):
            await self._batches.aclose()

    async def read(self) -> Sequence[Event] | None:
        """The next batch, an empty one after `quiet_s` without any, None at the end.

        Cancelled, it has either returned a batch or not taken it.
        """
        # A batch that is there already need not make the task yield, and a send to a peer that is gone
        # does not either: without this a long replay could hold the loop.
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(self._quiet_s):
            try:
                return await anext(self._batches)
            except StopAsyncIteration:
                return None
        # A generator that was cancelled is finished; the subscription still knows its cursor.
        self._batches = aiter(self._subscription)
        return ()


class EventStream(ResponseBody):
    """The body of an SSE response; subscribed while Quart sends it, and no longer (H32)."""

    def __init__(
        self,
        subscription: AbstractAsyncContextManager[Subscription],
        after: int | None,
        timers: StreamTimers,
    ) -> None:
        self._context = subscription
        self._after = after
        self._timers = timers
        self._stack = AsyncExitStack()
        self._reader: Reader | None = None
        self._opened = False

    async def __aenter__(self) -> AsyncIterator[bytes]:
        subscription = await self._stack.enter_async_context(self._context)
        self._reader = Reader(subscription, self._timers.heartbeat_s)
        self._stack.push_async_callback(self._reader.aclose)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(exc_type, exc_value, tb)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._opened:
            self._opened = True
            return sse_opening(self._after)
        assert self._reader is not None
        batch = await self._reader.read()
        if batch is None:
            raise StopAsyncIteration
        return sse_frames(batch) if batch else HEARTBEAT
