"""The clocks of sessions: grace without a reader, lifetime, retention (H13-H15). One actor, one sweep."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import trio

from swapd.config import Config
from swapd.errors import Code, SwapdError
from swapd.sessions.live import LiveSession
from swapd.sessions.table import SessionTable
from swapd.store.sessions import delete_expired

log = logging.getLogger("swapd.sessions.keeper")

TICK_S: Final = 0.5
EXPIRE_AT_ONCE: Final = 64
"""Sessions deleted in one transaction: the writer's sweeps stay short."""


def verdict(session: LiveSession, *, wall: float, now: float, grace_s: float) -> tuple[str, Code] | None:
    """How a session must end now, if it must: (state, code). Pure.

    At `max_lifetime_s` exactly it ends (H13); at `grace_s` without a reader it is cancelled if it asked for
    that (H14, decision 9). A paused or continuing session waits for its lifetime.
    """
    if session.over:
        return None
    if wall >= session.record.created_at + session.record.max_lifetime_s:
        return "failed", Code.LIFETIME_EXCEEDED
    unread = session.unread_since
    if session.record.on_disconnect == "cancel" and unread is not None and now >= unread + grace_s:
        return "cancelled", Code.DISCONNECT_GRACE_EXPIRED
    return None


class Keeper:
    """Ends what is due and deletes what has been kept long enough."""

    def __init__(self, config: Config, table: SessionTable, wall: Callable[[], float] = time.time) -> None:
        self._limits = config.limits
        self._sweep_s = config.timers.sweep_s
        self._table = table
        self._wall = wall

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sweep until cancelled."""
        task_status.started()
        next_expiry = trio.current_time()
        while True:
            try:
                await self._end_due()
                if trio.current_time() >= next_expiry:
                    next_expiry = trio.current_time() + self._sweep_s
                    await self._expire()
            except SwapdError as error:
                # The store failed: what is due ends after the restart, the service stays up to say so (H160).
                log.error("sweep stopped", extra={"code": error.code})
                await self._table.store.wait_failed()
                return
            await trio.sleep(TICK_S)

    async def _end_due(self) -> None:
        for session in self._table:
            due = verdict(
                session, wall=self._wall(), now=trio.current_time(), grace_s=self._limits.disconnect_grace_s
            )
            if due is not None:
                await self._table.finish(session, due[0], due[1])

    async def _expire(self) -> None:
        before = self._wall() - self._limits.retention_s
        while await self._table.store.commit(lambda db: delete_expired(db, before, EXPIRE_AT_ONCE)):
            self._table.forget_before(before)
