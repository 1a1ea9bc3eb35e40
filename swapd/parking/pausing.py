"""Sessions that nobody has read for the grace give their worker's room to others (decision 9, B3).

A session with `on_disconnect = "pause"` stops decoding at once when its last reader goes, and its KV would
hold its place until its lifetime ends. After the grace it is parked, if the park has room; `Returning` brings
it back when somebody reads again. Over the park's quota it is freed and replayed then, if its client permits
that. Else, or without a park, it keeps its place: what was thrown away could not be computed again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import trio

from swapd.errors import SwapdError
from swapd.migration.move import Move
from swapd.parking.passage import Passage
from swapd.parking.setting_down import set_down
from swapd.sessions.live import LiveSession
from swapd.sessions.table import SessionTable

log = logging.getLogger("swapd.parking")

LOOK_EVERY_S: Final = 0.5
RETRY_S: Final = 30.0
"""After a move that failed: nobody waits for it."""


def is_idle(session: LiveSession, now: float, grace_s: float) -> bool:
    """Whether nobody has read a paused session for the grace."""
    unread = session.unread_since
    paused = session.record.on_disconnect == "pause" and not session.over and session.durable > 0
    return paused and unread is not None and now >= unread + grace_s


class Pausing:
    """Parks paused sessions. `run` owns the tasks of their moves."""

    def __init__(self, table: SessionTable, passage: Passage, grace_s: float) -> None:
        self._table = table
        self._passage = passage
        self._grace_s = grace_s
        self._not_before: dict[str, float] = {}
        """When to try again for a session whose move came to nothing."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look now and then, until cancelled. Cancelled: its moves come to an end."""
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    idle = list(self._idle())
                    moves = self._passage.set_aside(idle)
                    for source, group in moves.items():
                        nursery.start_soon(self._carry, source, group)
                    for session in idle:
                        if session.move is None and self._passage.is_over_quota(session):
                            await set_down(self._table, session)
                    await trio.sleep(LOOK_EVERY_S)
        except* SwapdError as group:
            # The store failed: nothing is moved before a restart (H160).
            log.error("paused sessions stay", extra={"error_type": type(group.exceptions[0]).__name__})
        await trio.sleep_forever()

    def _idle(self) -> Iterable[LiveSession]:
        now = trio.current_time()
        self._not_before = {name: due for name, due in self._not_before.items() if due > now}
        for session in self._table:
            busy = session.move is not None or session.recovering or session.id in self._not_before
            if not busy and is_idle(session, now, self._grace_s):
                yield session

    async def _carry(self, source: str, moves: list[Move]) -> None:
        await self._passage.carry_aside(source, moves)
        for move in moves:
            if move.outcome != "parked":
                self._not_before[move.session.id] = trio.current_time() + RETRY_S
