"""State events for tools and dashboards: what happened to sessions, drains and workers, never content."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec
import trio

from swapd.messages.ops.frames import OPS_VERSION, StateEvent

CAPACITY: Final = 1024
"""A burst of a few hundred sessions ending at once fits; a PUB socket keeps no history anyway."""


class BusStatistics(msgspec.Struct, frozen=True):
    published: int
    dropped: int
    waiting: int


class EventBus:
    """A bounded queue from the actors to the PUB socket. `publish` never waits and never fails.

    When nobody takes events fast enough, the oldest are dropped and counted, and readers see the gap in
    `seq`.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._events: deque[StateEvent] = deque()
        self._capacity = capacity
        self._published = 0
        self._dropped = 0
        self._arrival = trio.Event()

    def publish(self, kind: str, fields: dict[str, str | int | float | None]) -> None:
        """Queue one event, from the Trio thread; `kind` is a constant such as `session_ended`."""
        self._published += 1
        if len(self._events) == self._capacity:
            self._events.popleft()
            self._dropped += 1
        self._events.append(
            StateEvent(OPS_VERSION, self._published, round(trio.current_time(), 6), kind, dict(fields))
        )
        self._arrival.set()

    async def take(self) -> list[StateEvent]:
        """Wait for events and take all that are queued. If cancelled, none was taken."""
        while not self._events:
            self._arrival = trio.Event()
            await self._arrival.wait()
        taken = list(self._events)
        self._events.clear()
        return taken

    def statistics(self) -> BusStatistics:
        return BusStatistics(self._published, self._dropped, len(self._events))
