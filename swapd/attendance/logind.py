"""Reads the login sessions from logind, again after every hint that something changed, and on a timer.

Signals are hints and properties the truth: `Lock` and `Unlock` are requests that a desktop may ignore, and a
signal can be lost. So no signal is looked into; each only makes us read all sessions once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from swapd.attendance.bus import GONE, NOBODY_OWNS_IT, Bus, BusLost, BusRefused, Target, open_bus
from swapd.attendance.rules import NO_MANAGER, REFUSED, LoginSession, Seen, attendance_of
from swapd.attendance.timings import Timings

NAME: Final = "org.freedesktop.login1"
MANAGER: Final = Target(NAME, "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
SESSION_INTERFACE: Final = "org.freedesktop.login1.Session"
HINTS: Final = (
    # SessionNew, SessionRemoved, and PrepareForSleep, whose second one comes after waking up.
    f"type='signal',sender='{NAME}',interface='{MANAGER.interface}'",
    f"type='signal',sender='{NAME}',interface='org.freedesktop.DBus.Properties',"
    f"member='PropertiesChanged',path_namespace='{MANAGER.path}/session'",
    f"type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{NAME}'",
)


class LogindReader:
    """Keeps `on_seen` told of what the sessions say, as long as one connection to the bus lasts."""

    def __init__(self, address: str, timings: Timings, on_seen: Callable[[Seen], None]) -> None:
        self._address = address
        self._timings = timings
        self._on_seen = on_seen
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
                # The whole read has the deadline of one call: many sessions do not add up.
                with trio.move_on_after(self._timings.call_s) as reading:
                    self._on_seen(await read_attendance(bus))
                    self.reads += 1
                if reading.cancelled_caught:
                    raise BusLost("no answer in time", silent=True)
                with trio.move_on_after(self._timings.poll_s):
                    await self._hinted.wait()
                    # Signals come in groups: one read for all of a group, and a bounded rate in a flood.
                    await trio.sleep(self._timings.coalesce_s)

    def _hint(self) -> None:
        self.signals += 1
        self._hinted.set()


async def read_attendance(bus: Bus) -> Seen:
    """Read and judge all sessions. Raises `BusLost`; a login manager that is not there is an answer."""
    try:
        return attendance_of(await read_sessions(bus))
    except BusRefused as error:
        return NO_MANAGER if error.name in NOBODY_OWNS_IT else REFUSED


async def read_sessions(bus: Bus) -> list[LoginSession]:
    """Read every session's properties, without those that end meanwhile. Raises `BusRefused`, `BusLost`."""
    answer = await bus.call(MANAGER, "ListSessions")
    listed = answer[0] if answer else None
    if not isinstance(listed, list):
        raise BusLost("an answer is not what D-Bus promises")
    sessions = []
    for entry in listed:
        # (session id, user id, user name, seat, object path): only the first and the last are looked at.
        name, path = str(entry[0]), str(entry[-1])
        try:
            properties = await bus.properties(Target(NAME, path, SESSION_INTERFACE))
        except BusRefused as error:
            if error.name in GONE:
                continue
            raise
        sessions.append(described(name, properties))
    return sessions


def described(name: str, properties: dict[str, object]) -> LoginSession:
    """Pick what is used of a session's properties; the rest, names of people among it, is forgotten here."""

    def word(key: str) -> str | None:
        value = properties.get(key)
        return value if isinstance(value, str) else None

    def flag(key: str) -> bool | None:
        value = properties.get(key)
        return value if isinstance(value, bool) else None

    return LoginSession(
        id=name,
        session_class=word("Class"),
        type=word("Type"),
        state=word("State"),
        active=flag("Active"),
        remote=flag("Remote"),
        locked_hint=flag("LockedHint"),
        can_lock=flag("CanLock"),
        idle=flag("IdleHint"),
    )
