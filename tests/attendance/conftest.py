"""Buses, what is served on them, and a witness of what the watch tells."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal, cast

import pytest
import trio

from swapd.attendance.bus import BusPlaces
from swapd.attendance.timings import Timings
from swapd.attendance.watch import AttendanceWatch
from swapd.config import OwnerConfig
from swapd.pressure.reading import Attendance
from tests.attendance.buses import MockGameMode, MockLogind, PrivateBus, private_bus
from tests.descriptors import none_left_open

LIMIT_S: Final = 30.0
BY_SIGNALS: Final = Timings(poll_s=3600, call_s=LIMIT_S, coalesce_s=0.01, backoff_first_s=0.01)
"""Only a signal leads to another read, so what is seen came from one."""
IMPATIENT: Final = Timings(poll_s=0.02, call_s=0.3, coalesce_s=0.01, backoff_first_s=0.01, backoff_max_s=0.05)
ONLY_LOGINS: Final = OwnerConfig(gamemode=False)
ONLY_GAMES: Final = OwnerConfig(presence="headless")


class Witness:
    """Listens as the service does, and lets a test wait for what it claims."""

    def __init__(self, owner: OwnerConfig, places: BusPlaces, timings: Timings) -> None:
        self.seen: list[tuple[Attendance, str]] = []
        self.games: list[bool] = []
        self._told = trio.Event()
        self.watch = AttendanceWatch(owner, self._on_change, self._on_game, places, timings)

    def _on_change(self, attendance: Attendance, detail: str) -> None:
        self.seen.append((attendance, detail))
        self._told.set()

    def _on_game(self, game: bool) -> None:
        self.games.append(game)
        self._told.set()

    async def until(self, attendance: Attendance, detail: str | None = None) -> None:
        """Wait until that is the latest that was told."""
        await self._until(
            lambda: bool(self.seen) and self.seen[-1][0] == attendance and detail in (None, self.seen[-1][1])
        )
        assert (self.watch.attendance, self.watch.detail) == self.seen[-1]

    async def until_game(self, game: bool) -> None:
        await self._until(lambda: self.watch.game is game)

    async def until_counted(self, what: Literal["reads", "losses", "crashes"], more: int) -> None:
        """Wait for that many further ones. Nobody is told of them: this looks again and again."""

        def counted() -> int:
            return cast(int, getattr(self.watch.statistics(), what))

        wanted = counted() + more
        with trio.fail_after(LIMIT_S):
            while counted() < wanted:  # noqa: ASYNC110 - there is no event to wait for
                await trio.sleep(0.005)

    async def _until(self, holds: Callable[[], bool]) -> None:
        with suppress(trio.TooSlowError), trio.fail_after(LIMIT_S):
            while not holds():
                self._told = trio.Event()
                await self._told.wait()
        assert holds(), (self.seen, self.games)


@asynccontextmanager
async def watching(
    system: PrivateBus | None,
    session: PrivateBus | None = None,
    owner: OwnerConfig = ONLY_LOGINS,
    timings: Timings = BY_SIGNALS,
) -> AsyncIterator[Witness]:
    """A running watch. Nothing of it is left behind afterwards, not even a file descriptor."""
    nowhere = "unix:path=/nonexistent/bus"
    places = BusPlaces(system.address if system else nowhere, session.address if session else nowhere)
    witness = Witness(owner, places, timings)
    with none_left_open():
        async with trio.open_nursery() as nursery:
            await nursery.start(witness.watch.run)
            yield witness
            nursery.cancel_scope.cancel()


@pytest.fixture
def bus() -> Iterator[PrivateBus]:
    if shutil.which("dbus-daemon") is None:
        pytest.fail("These tests need dbus-daemon and python3-dbusmock: run ops/test, which installs them.")
    with private_bus() as bus:
        yield bus


@pytest.fixture
def logind(bus: PrivateBus) -> Iterator[MockLogind]:
    mock = MockLogind(bus)
    try:
        yield mock
    finally:
        mock.close()


@pytest.fixture
def gamemode(bus: PrivateBus) -> Iterator[MockGameMode]:
    mock = MockGameMode(bus)
    try:
        yield mock
    finally:
        mock.close()
