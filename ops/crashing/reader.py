"""A client that reads one session to its end and holds every event against what it has seen before."""

from __future__ import annotations

from typing import Any, Final

import trio

from swapd.client import HttpClient, Unreachable
from swapd.errors import SwapdError

TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})
AGAIN_S: Final = 0.05


class Reader:
    """Reads over as many connections as it takes, always from the last event that it has."""

    def __init__(self, client: HttpClient, session: str) -> None:
        self.session = session
        self.tokens: list[int] = []
        self.events: list[tuple[int, str, str]] = []
        self.lost: list[str] = []
        self.doubled: list[str] = []
        self.ending: tuple[str, dict[str, Any]] | None = None
        self.over = trio.Event()
        self._client = client
        self._cursor = -1
        self._grew = trio.Event()
        self._may_read = trio.Event()
        self._may_read.set()
        self._connection = trio.CancelScope()

    async def run(self) -> None:
        while self.ending is None:
            await self._may_read.wait()
            with trio.CancelScope() as self._connection:
                try:
                    await self._read()
                except Unreachable:
                    await trio.sleep(AGAIN_S)
                except SwapdError as error:
                    if not error.retryable:
                        self.lost.append(f"reading was refused: {error.code}")
                        break
                    await trio.sleep(AGAIN_S)
        self.over.set()

    async def _read(self) -> None:
        after = self._cursor if self._cursor >= 0 else None
        async with self._client.events(self.session, after) as events:
            async for event in events:
                if event.id is None:
                    continue
                if event.id <= self._cursor:
                    self.doubled.append(f"event {event.id} came again after {self._cursor}")
                    continue
                if event.id != self._cursor + 1:
                    self.lost.append(f"event {event.id} came after {self._cursor}")
                self._cursor = event.id
                self.events.append((event.id, event.name, event.data))
                if event.name == "token":
                    self.tokens.append(int(event.json()["token_id"]))
                elif event.name in TERMINAL:
                    if self.ending is not None:
                        self.doubled.append(f"a second end: {event.name}")
                    self.ending = event.name, event.json()
                self._grew.set()
                self._grew = trio.Event()

    async def wait_tokens(self, count: int) -> None:
        while len(self.tokens) < count and not self.over.is_set():
            await self._grew.wait()

    def leave(self) -> None:
        """Break the connection off, and read nothing until `come_back`."""
        self._may_read = trio.Event()
        self._connection.cancel()

    def come_back(self) -> None:
        self._may_read.set()
