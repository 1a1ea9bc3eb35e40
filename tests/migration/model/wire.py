"""Frames between the coordinator and one worker, in memory: held, lost, repeated, but never out of order.

What a socket does to frames is in here, and nothing of what they mean. As on a socket of one host, a frame is
lost only with its connection; but a request or its answer may be, so that nobody knows what became of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from swapd.messages.envelope import EVENT, Command, Report, decode_command, decode_report, encode

Alter = Callable[[Report], Report]
"""What becomes of a report on its way: the test's own eyes, and its forgeries."""


class Wire:
    """One worker's socket and all that hang on it. `stopped`: its process does not run (SIGSTOP)."""

    def __init__(self, alter: Alter) -> None:
        self.stopped = False
        self.hold: type | None = None
        """Frames of this kind, and all behind them, wait."""
        self.lose: type | None = None
        """The next request or answer of this kind is lost."""
        self.said: deque[Report] = deque(maxlen=40)
        self.asked: deque[Command] = deque(maxlen=40)
        self._alter = alter
        self._down: deque[tuple[bytes, bytes]] = deque()
        self._ends: dict[bytes, LinkEnd] = {}
        self._connections = 0
        self._moved = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[LinkEnd]:
        """The coordinator's end, while the block runs."""
        self._connections += 1
        end = LinkEnd(self, b"%d" % self._connections)
        self._ends[end.identity] = end
        try:
            yield end
        finally:
            del self._ends[end.identity]

    async def runs(self) -> None:
        """Return while the worker's process is not stopped."""
        while self.stopped:
            await self._moved.park()

    def changed(self) -> None:
        """Whoever waits looks again."""
        self._moved.unpark_all()

    def cut(self) -> None:
        """The coordinator is gone: nothing that it still says gets anywhere."""
        for end in self._ends.values():
            end.cut = True

    def burn(self) -> None:
        """The worker is gone, and with it what it had not read."""
        self._down.clear()

    def stands(self, kind: type) -> bool:
        return self.stopped or kind is self.hold

    def loses(self, body: object, request: int) -> bool:
        if request == EVENT or type(body) is not self.lose:
            return False
        self.lose = None
        return True

    def to_worker(self, identity: bytes, frame: bytes) -> None:
        command = decode_command(frame)
        self.asked.append(command)
        if not self.loses(command.body, command.request):
            self._down.append((identity, frame))
            self.changed()

    def to_coordinator(self, identity: bytes, frame: bytes) -> None:
        report = decode_report(frame)
        self.said.append(report)
        end = self._ends.get(identity)
        if end is not None and not self.loses(report.body, report.request):
            end.up.append(report)
            self.changed()

    def again(self, report: Report) -> None:
        """A report comes once more, to whoever is connected."""
        for end in self._ends.values():
            end.up.append(report)
        self.changed()

    def once_more(self, command: Command) -> None:
        """A command comes once more, from whoever is connected."""
        for end in self._ends.values():
            self._down.append((end.identity, encode(command)))
        self.changed()

    def late(self, command: Command) -> None:
        """A command comes from a connection that is gone; its answer reaches nobody."""
        self._down.append((b"gone", encode(command)))
        self.changed()

    async def take_down(self) -> list[bytes]:
        while not self._down or self.stands(type(decode_command(self._down[0][1]).body)):
            await self._moved.park()
        await trio.lowlevel.checkpoint_if_cancelled()
        return list(self._down.popleft())

    async def take_up(self, end: LinkEnd) -> bytes:
        while end.cut or not end.up or self.stands(type(end.up[0].body)):
            await self._moved.park()
        await trio.lowlevel.checkpoint_if_cancelled()
        return encode(self._alter(end.up.popleft()))


class LinkEnd:
    """What `WorkerLink` uses of a DEALER."""

    def __init__(self, wire: Wire, identity: bytes) -> None:
        self.identity = identity
        self.up: deque[Report] = deque()
        self.cut = False
        self._wire = wire

    async def send_multipart(self, parts: Sequence[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        if not self.cut:
            self._wire.to_worker(self.identity, parts[0])

    async def recv_batch(self) -> list[list[bytes]]:
        return [[await self._wire.take_up(self)]]


class WorkerEnd:
    """What `Control` uses of a ROUTER."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def recv_multipart(self) -> list[bytes]:
        return await self._wire.take_down()

    async def send_multipart(self, parts: Sequence[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        self.try_send(parts)

    def try_send(self, parts: Sequence[bytes]) -> bool:
        self._wire.to_coordinator(parts[0], parts[1])
        return True
