"""A client that is thrown out all the time and comes back by the last event that it has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec
import trio

from ops.storming.wire import WAYS, Address, Received, Source, Way, connected

TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})
AGAIN_S: Final = 0.05
"""After a connection that was refused or ended by the service."""
EARLY: Final = 0.3
"""How many of the connections in the storm are left before any event came."""
MOST_EVENTS: Final = 60
"""After so many at most a connection of the storm is left."""


class Tally(msgspec.Struct):
    """What became of connections, over all clients."""

    reconnects: int = 0
    during_drains: int = 0
    """Of those, how many broke off while a drain was under way."""
    before_any: int = 0
    """Of those, how many had received no event."""
    ways: Counter[str] = msgspec.field(default_factory=Counter)


class Client:
    """Reads one session to its end; every event is held against the one before."""

    def __init__(
        self,
        address: Address,
        session: str,
        rng: random.Random,
        tally: Tally,
        storms: Callable[[], bool],
        drains: Callable[[], bool],
    ) -> None:
        self.session = session
        self.events: list[Received] = []
        self.lost: list[str] = []
        self.doubled: list[str] = []
        self.connections = 0
        self._address = address
        self._rng = rng
        self._tally = tally
        self._storms = storms
        self._drains = drains
        self._scope = trio.CancelScope()

    @property
    def ended(self) -> bool:
        """Whether the end of the session has come."""
        return bool(self.events) and self.events[-1].name in TERMINAL

    @property
    def completed(self) -> bool:
        """Whether that was its own end."""
        return self.ended and self.events[-1].name == "completed"

    @property
    def accepted(self) -> int | None:
        """How many tokens the end says that there were; None without an end, and for one that failed."""
        if not self.ended or self.events[-1].name == "failed":
            return None
        return int(msgspec.json.decode(self.events[-1].data)["accepted"])

    @property
    def tokens(self) -> list[int]:
        return [
            int(msgspec.json.decode(event.data)["token_id"]) for event in self.events if event.name == "token"
        ]

    async def run(self) -> None:
        """Connect until the session's end has come."""
        while True:
            had = len(self.events)
            way = self._rng.choice(WAYS)
            with trio.CancelScope() as self._scope:
                await self._connection(way)
            if self.ended:
                return
            self._tally.reconnects += 1
            self._tally.ways[way] += 1
            self._tally.during_drains += self._drains()
            self._tally.before_any += len(self.events) == had
            await trio.sleep(self._rng.choice([0, 0, 0.01, self._rng.uniform(0, 0.2)]))

    def throw_out(self) -> None:
        """Break the connection off now."""
        self._scope.cancel()

    async def _connection(self, way: Way) -> None:
        cursor = self.events[-1].id if self.events else None
        most = self._patience()
        self.connections += 1
        async with connected(self._address, way, self.session, cursor) as source:
            # 0: gone as soon as it has asked. 1: gone when the answer has begun.
            if source is None or most == 0 or not await source.open():
                await trio.sleep(AGAIN_S if source is None else 0)
                return
            if most != 1:
                await self._read(source, most)

    def _patience(self) -> int | None:
        """How many events this connection is good for; None: it reads on to the end."""
        if not self._storms():
            return None
        if self._rng.random() < EARLY:
            return self._rng.choice([0, 1])
        return self._rng.randint(2, MOST_EVENTS)

    async def _read(self, source: Source, most: int | None) -> None:
        left = most
        while not self.ended and (batch := await source.receive()) is not None:
            for event in batch:
                self.take(event)
                if left is not None:
                    left -= 1
                    if left <= 0 and not self.ended:
                        return  # what else is in this batch was not seen: it must come again

    def take(self, event: Received) -> None:
        """Hold an event against those before it, and keep it."""
        last = self.events[-1].id if self.events else -1
        if event.id <= last:
            self.doubled.append(f"{self.session}: event {event.id} came again after {last}")
            return
        if event.id != last + 1:
            self.lost.append(f"{self.session}: event {event.id} came after {last}")
        if self.ended:
            self.doubled.append(f"{self.session}: {event.name} came after the end")
        self.events.append(event)
