"""The ways into the park and back to a worker, for sessions that no drain sends: moves, begun and carried.

Whoever begins moves here must carry them, too: each has borrowed what it needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from swapd.errors import SwapdError
from swapd.messages.generation import PARK
from swapd.migration.carrier import Carrier
from swapd.migration.move import Move
from swapd.parking.gate import Gate, Precedence
from swapd.sessions.live import LiveSession
from swapd.sessions.recovery import Recovery
from swapd.worker.link import WorkerLink

log = logging.getLogger("swapd.migration")


class Passage:
    """The park's traffic. `draining`: whether a drain has a worker's sessions in its hands."""

    def __init__(
        self,
        gate: Gate,
        recovery: Recovery,
        links: Mapping[str, WorkerLink],
        carrier: Carrier,
        draining: Callable[[str], bool],
    ) -> None:
        self.park = gate.park
        self._gate = gate
        self._recovery = recovery
        self._links = links
        self._carrier = carrier
        self._draining = draining

    def precedence(self, waiting: Iterable[LiveSession]) -> Precedence | None:
        """Which of the parked sessions, the longest waiting first, has a worker's next room kept for it."""
        return self._gate.precedence(waiting)

    def bring_back(self, sessions: Sequence[LiveSession]) -> dict[str, list[Move]]:
        """Begin the moves of parked sessions, in this order, to workers that have room: by worker.

        `carry_back` must follow. Those without a move stay parked.
        """
        by_target: dict[str, list[Move]] = {}
        if not self._recovery.reconciled:
            return by_target
        first: Precedence | None = None
        for session in sessions:
            link = self._gate.way_back(session, first)
            if link is None or link.ready is None:
                first = first or self._gate.precedence([session])
                continue
            try:
                move = self._carrier.borrow(session, self.park, link, link.ready.info, None)
            except SwapdError as error:
                log.info("not resumed yet", extra={"session": session.id, "code": error.code})
                continue
            by_target.setdefault(link.name, []).append(move)
        return by_target

    def set_aside(self, sessions: Iterable[LiveSession]) -> dict[str, list[Move]]:
        """Begin the moves to the park of sessions that nobody reads, as far as it takes them: by worker.

        `carry_aside` must follow. A draining worker's are left to its drain.
        """
        by_source: dict[str, list[Move]] = {}
        if not self._recovery.reconciled:
            return by_source
        for session in sessions:
            owner = session.record.owner
            link = self._links.get(owner.worker) if owner is not None else None
            if link is None or link.ready is None or not link.is_owner(owner) or self._draining(link.name):
                continue
            if not self._gate.could_take(session):
                continue
            try:
                move = self._carrier.borrow(session, link, self.park, link.ready.info, None)
            except SwapdError as error:
                log.info("not set aside yet", extra={"session": session.id, "code": error.code})
                continue
            by_source.setdefault(link.name, []).append(move)
        return by_source

    def is_over_quota(self, session: LiveSession) -> bool:
        """Whether a session stays where it is for want of room in the park; a drain decides about its own."""
        owner = session.record.owner
        drains = owner is not None and self._draining(owner.worker)
        return self._recovery.reconciled and not drains and self._gate.is_full(session)

    async def carry_aside(self, source: str, moves: list[Move]) -> None:
        """One wave from a worker to the park, to its records."""
        await self._carrier.carry(self._carrier.wave(source, PARK, moves))

    async def carry_back(self, target: str, moves: list[Move]) -> None:
        """One wave from the park to a worker, to its records."""
        await self._carrier.carry(self._carrier.wave(PARK, target, moves))
