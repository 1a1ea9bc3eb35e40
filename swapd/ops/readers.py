"""Subscriptions that stay open between two polls of one client.

A poll of the `events` command reads a session as an open SSE stream does: while someone polls, the session
counts as having a reader, and decoding goes on. So each (client, session) has one reader task that holds
the subscription; it ends when its client has not polled for `IDLE_S`. What has been handed out stays in
the reader until a later cursor confirms it, so that a poll whose answer was lost can be repeated.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

import trio

from swapd.api import Event, Service
from swapd.errors import Code, SwapdError
from swapd.views import Caller

IDLE_S: Final = 15.0
MAX_READERS: Final = 256
MAX_HELD_EVENTS: Final = 2048
"""Events that a reader fetches ahead of its client; then the subscription waits."""

TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})

logger = logging.getLogger("swapd.ops")

Key = tuple[bytes, str]


class EventReaders:
    """All readers of the ops socket. `poll` is called from the tasks of commands."""

    def __init__(
        self, service: Service, caller: Caller, nursery: trio.Nursery, idle_s: float = IDLE_S
    ) -> None:
        self._service = service
        self._caller = caller
        self._nursery = nursery
        self._idle_s = idle_s
        self._readers: dict[Key, _Reader] = {}

    @property
    def open_readers(self) -> int:
        return len(self._readers)

    async def poll(
        self, client: bytes, session: str, after: int | None, limit: int, wait_s: float
    ) -> tuple[list[Event], bool]:
        """Events strictly after `after`, and whether none can follow them.

        Returns an empty list when none came within `wait_s`. If cancelled, nothing is lost: the cursor
        decides what the next poll gets. Raises what `Service.subscribe` raises.
        """
        key = (client, session)
        reader = self._readers.get(key)
        if reader is None or not reader.continues(after):
            if reader is not None:
                reader.scope.cancel()
            elif len(self._readers) >= MAX_READERS:
                raise SwapdError(Code.CAPACITY, f"{MAX_READERS} event readers are open")
            reader = _Reader(after)
            self._readers[key] = reader
            self._nursery.start_soon(self._run, key, reader)
        reader.confirm(after)
        reader.touched.set()
        with trio.move_on_after(wait_s):
            await reader.wait_more()
        reader.touched.set()
        if reader.refusal is not None and not reader.held:
            self._forget(key, reader)
            raise reader.refusal
        events = [reader.held[index] for index in range(min(limit, len(reader.held)))]
        ended = reader.ended and len(events) == len(reader.held)
        return events, ended

    async def _run(self, key: Key, reader: _Reader) -> None:
        try:
            with reader.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch_idle, reader)
                    await reader.read(self._service, self._caller, key[1])
                    # Keep what was read for a poll whose answer was lost, until the client goes away.
                    await trio.sleep_forever()
        finally:
            self._forget(key, reader)

    async def _watch_idle(self, reader: _Reader) -> None:
        while True:
            reader.touched = trio.Event()
            with trio.move_on_after(self._idle_s) as waited:
                await reader.touched.wait()
            if waited.cancelled_caught and reader.pollers == 0:
                reader.scope.cancel()
                return

    def _forget(self, key: Key, reader: _Reader) -> None:
        if self._readers.get(key) is reader:
            del self._readers[key]
        reader.scope.cancel()


class _Reader:
    def __init__(self, after: int | None) -> None:
        self.scope = trio.CancelScope()
        self.touched = trio.Event()
        self.held: deque[Event] = deque()
        self.ended = False
        self.refusal: SwapdError | None = None
        self.pollers = 0
        self._start = after
        self._confirmed = after
        self._more = trio.Event()
        self._room = trio.Event()

    def continues(self, after: int | None) -> bool:
        """Whether the events after this cursor are those that are held or come next."""
        if self.scope.cancel_called or self.refusal is not None:
            return False
        if after == self._confirmed:
            return True
        return after is not None and any(event.id == after for event in self.held)

    def confirm(self, after: int | None) -> None:
        """Forget what the client has got; `continues(after)` is true."""
        while after is not None and self.held and self.held[0].id <= after:
            self.held.popleft()
        self._confirmed = after
        self._room.set()

    async def wait_more(self) -> None:
        self.pollers += 1
        try:
            while not (self.held or self.ended or self.refusal is not None):
                # One event for all that wait: a second poll must not take the first one's away.
                if self._more.is_set():
                    self._more = trio.Event()
                await self._more.wait()
        finally:
            self.pollers -= 1

    async def read(self, service: Service, caller: Caller, session: str) -> None:
        last: str | None = None
        try:
            async with service.subscribe(caller, session, self._start) as subscription:
                async for batch in subscription:
                    self.held.extend(batch)
                    last = batch[-1].name if batch else last
                    self._more.set()
                    while len(self.held) > MAX_HELD_EVENTS:
                        self._room = trio.Event()
                        await self._room.wait()
            if service.stopping and last not in TERMINAL:
                # The stream ends, the session does not: its cursor stays good for the next coordinator.
                self.refusal = SwapdError(Code.STOPPING)
            self.ended = self.refusal is None
        except SwapdError as error:
            self.refusal = error
        except Exception as error:
            # The supervision boundary of a subscription: a bug in one is answered and ends nothing else.
            logger.error("internal error in a subscription", extra={"error_type": type(error).__name__})
            self.refusal = SwapdError(Code.INTERNAL)
        finally:
            self._more.set()
