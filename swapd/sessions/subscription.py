"""One reader of one session: a cursor that moves over durable events (H20-H29)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from swapd.api import Event
from swapd.errors import Code, SwapdError
from swapd.sessions.live import LiveSession

BATCH_EVENTS: Final = 256
"""Events handed to a reader at once; it asks again for the rest, so a slow reader buffers nothing here."""

PARKED: Final = b'{"notice":"parked"}'
RESUMED: Final = b'{"notice":"resumed"}'


class Reader:
    """Implements `swapd.api.Subscription`. Left half-way, it leaves nothing behind."""

    def __init__(
        self, session: LiveSession, after: int | None, stopping: trio.Event, *, notices: bool = False
    ) -> None:
        if after is not None and after > session.cursor:
            raise SwapdError(Code.CURSOR_AHEAD, f"the last event is {session.cursor}")
        self._session = session
        self._after = -1 if after is None else after
        self._stopping = stopping
        self._notices = notices
        self._parked = False

    @property
    def cursor(self) -> int:
        return max(self._after, 0)

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Sequence[Event]:
        """Wait for the next events. Cancelled: the cursor stays where it is."""
        session = self._session
        while not self._stopping.is_set():
            parked = self._notices and session.record.state == "parked"
            if self._parked and not parked:
                self._parked = False
                return (Event(self.cursor, "notice", RESUMED),)
            batch = session.events(self._after, BATCH_EVENTS)
            if batch:
                self._after = batch[-1].id
                return batch
            if session.ended:
                break
            if parked and not self._parked:
                # After all that it had to give, so that the reader knows what it waits for (B6).
                self._parked = True
                return (Event(self.cursor, "notice", PARKED),)
            await session.wait_changed()
        raise StopAsyncIteration
