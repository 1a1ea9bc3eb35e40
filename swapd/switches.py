"""What an operator can turn off for the whole service: admission, and migration (H163, A13).

Both are durable, so that a service that was stopped for a reason does not open by being restarted. Turning
off takes effect before it is written, turning on only after: a crash in between never opens what was closed.
Sessions that run are touched by neither: without admission they go on, without migration they stay put.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import trio

from swapd.config import Config
from swapd.errors import Code, SwapdError
from swapd.store.meta import off_switches, set_switch
from swapd.store.writer import Store
from swapd.views import Switch, SwitchesView

log = logging.getLogger("swapd.switches")


class Switches:
    """The two switches. `load` once, before anything is admitted or moved."""

    def __init__(
        self,
        config: Config,
        store: Store,
        notify: Callable[[], None] = lambda: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`notify` is called when a switch was turned: drains look again."""
        self._configured = config.migration_enabled
        self._store = store
        self._notify = notify
        self._wall = wall
        self._off: dict[Switch, float] = {}
        self._turn = trio.Lock()

    async def load(self) -> None:
        """Take up what the last run was told."""
        self._off = await self._store.read(off_switches)
        for switch in self._off:
            log.warning("switched off by the operator", extra={"kind": switch})

    def refusal(self) -> SwapdError | None:
        """Why no new session is admitted, if an operator stopped that (H163)."""
        return SwapdError(Code.ADMISSION_STOPPED) if "admission" in self._off else None

    def migration_off(self) -> str | None:
        """Who switched moves off, for people; None: sessions may move, both say so (A13)."""
        if not self._configured:
            return "by the configuration"
        return "by the operator" if "migration" in self._off else None

    async def turn(self, switch: Switch, *, on: bool) -> None:
        """Turn a switch; durable when it returns. Turned so already: unchanged. Raises `store_failed`.

        Cancelled: an off switch is off here at once, and durable with the write that was begun.
        """
        async with self._turn:
            if on == (switch not in self._off):
                return
            if not on:
                self._off[switch] = self._wall()
            off_since = None if on else self._off[switch]
            # Shielded, one disk write long: what the store has must be what holds here.
            with trio.CancelScope(shield=True):
                await self._store.commit(lambda db: set_switch(db, switch, off_since))
                if on:
                    self._off.pop(switch, None)
        log.warning("switch turned", extra={"kind": switch, "state": "on" if on else "off"})
        self._notify()

    def view(self) -> SwitchesView:
        """What callers see."""
        return SwitchesView(
            admission="admission" not in self._off,
            migration=self.migration_off() is None,
            migration_configured=self._configured,
            admission_off_since=self._off.get("admission"),
            migration_off_since=self._off.get("migration"),
        )
