"""Writes down every few seconds what was lent and served, and tells it for any time since.

A crash loses at most `RECORD_EVERY_S` of lent time. Of tokens none is lost: they are counted from their own
rows (see `swapd.store.activity`), by the next start if this one ends before.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import trio

from swapd.activity.lent_time import LentTime
from swapd.activity.view import activity_view, step_of
from swapd.activity.visits import Visits
from swapd.device_views import ActivityView
from swapd.errors import Code, SwapdError
from swapd.lending.device import LentDevice
from swapd.store.activity import (
    ACTIVITY_KEPT_S,
    add_activity,
    bucket_of,
    count_tokens,
    prune_activity,
    recorded,
)
from swapd.store.meta import load_visits, save_visits
from swapd.store.writer import Store

LOOK_EVERY_S: Final = 1.0
"""How exact lent time is, for each time that a device begins or ends to be lent."""
RECORD_EVERY_S: Final = 10.0
SESSIONS_AT_ONCE: Final = 64
"""Sessions whose tokens are counted in one operation: the writer's turns stay short."""
LATE_S: Final = 60.0
"""How late an end may become durable; later ones wait for the next start, or for the deletion."""
PRUNE_EVERY_S: Final = 3600.0
VIEWS_KEPT: Final = 32

log = logging.getLogger("swapd.activity")


class ActivityKeeper:
    """`run` is its task; the rest may be called from any task of the service."""

    def __init__(
        self, store: Store, devices: Mapping[str, LentDevice], wall: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._devices = devices
        self._wall = wall
        self._lent = LentTime()
        self._counted_until = 0.0
        self._pruned_at = 0.0
        self._visits = Visits()
        self._views: dict[int, ActivityView] = {}
        """Of this state of the records, by `since`: many pages ask for the same."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Record until cancelled, and once more then. A store that failed ends it: nothing can be written."""
        self._visits = await self._store.read(load_visits)
        task_status.started()
        try:
            while True:
                due = trio.current_time() + RECORD_EVERY_S
                while trio.current_time() < due:
                    self._look()
                    await trio.sleep(LOOK_EVERY_S)
                if not self._store.full:  # the last room is for sessions (B40); nothing is lost by waiting
                    await self.record()
        except SwapdError as error:
            log.error("activity is not recorded", extra={"code": error.code})
        finally:
            # Only posted: the store ends after us, and finishes what it was given.
            self._look()
            self._store.post(self._recording(), lambda _: None)

    def _look(self) -> None:
        now = trio.current_time()
        for name, device in self._devices.items():
            self._lent.look(name, now, is_lent=device.state == "lent")

    async def record(self) -> None:
        """Bring the records up to date. Raises `store_failed`.

        Cancelled: tokens are counted by the next call; lent time may be lost, at most what this call took.
        """
        self._look()
        now = self._wall()
        counted = await self._store.commit(self._recording())
        while counted == SESSIONS_AT_ONCE:
            counted = await self._store.commit(
                partial(count_tokens, now=now, ended_after=self._counted_until, limit=SESSIONS_AT_ONCE)
            )
        self._counted_until = now - LATE_S
        self._views = {}

    def _recording(self) -> Callable[[sqlite3.Connection], int]:
        now, lent, ended_after = self._wall(), self._lent.take(), self._counted_until
        prunes = now - self._pruned_at >= PRUNE_EVERY_S
        if prunes:
            self._pruned_at = now

        def write(db: sqlite3.Connection) -> int:
            for device, seconds in lent.items():
                add_activity(db, now, "lent_s", seconds, device)
            if prunes:
                prune_activity(db, now - ACTIVITY_KEPT_S)
            return count_tokens(db, now, ended_after, SESSIONS_AT_ONCE)

        return write

    async def view(self, since: float) -> ActivityView:
        """What happened from `since` (seconds since 1970) on; at most `RECORD_EVERY_S` behind.

        Raises `invalid_request` for what is no time. Older than a month is taken as a month ago.
        """
        now = self._wall()
        if not 0.0 <= since <= now + LATE_S:
            raise SwapdError(Code.INVALID_REQUEST, "since is a time in the past, in seconds since 1970")
        begin = bucket_of(max(since, now - ACTIVITY_KEPT_S))
        known = self._views.get(begin)
        if known is None:
            names = tuple(self._devices)
            views = self._views
            step_s = step_of(now - begin)
            found = await self._store.read(lambda db: recorded(db, begin, names, step_s))
            known = activity_view(found, begin, names, step_s)
            if len(views) < VIEWS_KEPT:
                views[begin] = known
        return known

    def visit(self) -> float | None:
        """An owner looks: note it, and tell when the visit before this one ended; None: there was none."""
        self._visits = visits = self._visits.look(self._wall())
        self._store.post(lambda db: save_visits(db, visits), lambda _: None)
        return visits.before

    def visit_before(self) -> float | None:
        """When the owner's visit before this one ended, for somebody whose look is no visit of theirs."""
        return self._visits.before
