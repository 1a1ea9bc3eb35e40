"""What happened to a device, for its owner: events and give-backs go to the store, the log and the bus."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from swapd.device_views import DeviceEvent, GiveBackView
from swapd.store.devices import add_device_event, save_give_back
from swapd.store.writer import Store

log = logging.getLogger("swapd.lending")


class Diary:
    """Writes in the order of events and waits for nothing: a store that failed loses only this record."""

    def __init__(self, store: Store, wall: Callable[[], float] = time.time) -> None:
        self.on_event: Callable[[DeviceEvent], None] = lambda event: None
        self.wall = wall
        self._store = store

    def note(self, device: str, kind: str, why: str | None = None, seconds: float | None = None) -> None:
        """One event."""
        event = DeviceEvent(self.wall(), device, kind, why, seconds)
        log.info("device", extra={"device": device, "kind": kind, "reason": why, "after_s": seconds})
        self._store.post(lambda db: add_device_event(db, event), lambda _: None)
        self.on_event(event)

    def give_back(self, device: str, view: GiveBackView) -> None:
        """A give-back as it is now; the same one (by `began_at`) again replaces it."""
        self._store.post(lambda db: save_give_back(db, device, view), lambda _: None)
