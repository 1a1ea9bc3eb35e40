"""Parked sessions go back to a worker as soon as one has room: level-triggered, the oldest first (B3).

Each look compares what is parked with what the workers can take, so that it does not matter what made the
room: an end, a device that is lent again, a worker that came back, a client that reads on. A session that
nobody reads stays where it is, for it would only hold a place; `continue` means that it need not be read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import trio

from swapd.errors import SwapdError
from swapd.migration.move import Move
from swapd.parking.passage import Passage
from swapd.sessions.live import LiveSession
from swapd.sessions.table import SessionTable

log = logging.getLogger("swapd.parking")

LOOK_EVERY_S: Final = 0.5
RETRY_FIRST_S: Final = 0.25
RETRY_MAX_S: Final = 8.0


class Returning:
    """Brings parked sessions back. `run` owns the tasks of their moves."""

    def __init__(self, table: SessionTable, passage: Passage) -> None:
        self._park = passage.park
        self._table = table
        self._passage = passage
        self._failures: dict[str, tuple[int, float]] = {}
        """How often a session's way back came to nothing, and when to try again."""
        self._park.on_credit = table.notify

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look whenever anything changed, until cancelled. Cancelled: its moves come to an end."""
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    there = {kept.header.session for kept in self._park.room}
                    self._failures = {name: e for name, e in self._failures.items() if name in there}
                    moves = self._passage.bring_back(list(self._waiting()))
                    for target, group in moves.items():
                        nursery.start_soon(self._carry, target, group)
                    await self._table.wait_activity(LOOK_EVERY_S)
        except* SwapdError as group:
            # The store failed: nothing can come back before a restart (H160).
            log.error("parked sessions stay", extra={"error_type": type(group.exceptions[0]).__name__})
        await trio.sleep_forever()

    def kept_for(self, worker: str) -> int:
        """Tokens for which room must be left on a worker: a parked session comes before a new one (B3).

        Not while its way back has just failed, nor while nobody reads it: it would keep others out in vain.
        """
        first = self._passage.precedence(self._waiting())
        return first.tokens if first is not None and first.worker == worker else 0

    def _waiting(self) -> Iterable[LiveSession]:
        now = trio.current_time()
        for name in [kept.header.session for kept in self._park.room]:
            session = self._table.get(name)
            if session is None or session.over or session.recovering or session.move is not None:
                continue
            if session.record.owner == self._park.owner and session.producing and now >= self._due(name):
                yield session

    def _due(self, session: str) -> float:
        return self._failures.get(session, (0, 0.0))[1]

    async def _carry(self, target: str, moves: list[Move]) -> None:
        await self._passage.carry_back(target, moves)
        for move in moves:
            if move.outcome in ("aborted_source_resumed", "rehomed_source"):
                failures = self._failures.get(move.session.id, (0, 0.0))[0]
                wait_s = min(RETRY_FIRST_S * 2.0**failures, RETRY_MAX_S)
                self._failures[move.session.id] = (failures + 1, trio.current_time() + wait_s)
        self._table.notify()
