"""Asks GameMode whether a game runs: an instant sign that the owner plays, before any load is measured.

Games, or their launchers, register with `gamemoded` on their user's session bus. No GameMode, no bus and no
answer to be had mean that no game is known of. Asking never starts the daemon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from swapd.attendance.bus import GONE, NOBODY_OWNS_IT, Bus, BusRefused, Target, open_bus
from swapd.attendance.timings import Timings

GAMEMODE: Final = Target(
    "com.feralinteractive.GameMode", "/com/feralinteractive/GameMode", "com.feralinteractive.GameMode"
)
HINTS: Final = (
    # GameRegistered, GameUnregistered and PropertiesChanged of ClientCount.
    f"type='signal',sender='{GAMEMODE.name}',path='{GAMEMODE.path}'",
    f"type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{GAMEMODE.name}'",
)


class GameModeReader:
    """Keeps `on_game` told whether GameMode has clients, as long as one connection to the bus lasts."""

    def __init__(self, address: str, timings: Timings, on_game: Callable[[bool], None]) -> None:
        self._address = address
        self._timings = timings
        self._on_game = on_game
        self._hinted = trio.Event()
        self.reads = 0
        self.signals = 0

    async def run(self) -> None:
        """Read now, after hints, and every `poll_s`. Raises `BusLost`, possibly in an exception group."""
        async with open_bus(self._address, self._hint, self._timings.call_s) as bus:
            for rule in HINTS:
                await bus.watch(rule)
            while True:
                # Before the read: what changes during it must lead to another one.
                self._hinted = trio.Event()
                self._on_game(await read_game(bus))
                self.reads += 1
                with trio.move_on_after(self._timings.poll_s):
                    await self._hinted.wait()
                    await trio.sleep(self._timings.coalesce_s)

    def _hint(self) -> None:
        self.signals += 1
        self._hinted.set()


async def read_game(bus: Bus) -> bool:
    """Whether GameMode has clients. Raises `BusLost`."""
    try:
        count = (await bus.properties(GAMEMODE)).get("ClientCount")
    except BusRefused as error:
        if error.name in NOBODY_OWNS_IT or error.name in GONE:
            return False
        raise
    return isinstance(count, int) and count > 0
