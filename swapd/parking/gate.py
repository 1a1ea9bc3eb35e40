"""Who may be parked, and to which worker a parked session may go back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swapd.config import Config
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import EngineInfo
from swapd.migration.ledger import CapacityLedger
from swapd.migration.pictures import candidate, parked, traveller
from swapd.migration.planner import Assignment, Refusal, plan
from swapd.parking.ledger import ParkLedger, park_size
from swapd.parking.link import ParkLink
from swapd.sessions.admission import Admission
from swapd.sessions.live import LiveSession
from swapd.worker.link import WorkerLink


class Gate:
    """The park's entrance and exit. Decides; moves nothing."""

    def __init__(
        self,
        config: Config,
        ledger: CapacityLedger,
        admission: Admission,
        links: Mapping[str, WorkerLink],
        park: ParkLink,
        migration_off: Callable[[], str | None],
    ) -> None:
        self.park = park
        self._migration_off = migration_off
        self._config = config
        self._ledger = ledger
        self._admission = admission
        self._links = links

    def expect(self, move: str, session: LiveSession, info: EngineInfo) -> None:
        """Promise a move its room. `park.settle` ends the promise.

        Raises `park_full`; and `migration_disabled` or `no_edge`, because nothing is parked that could not
        come back natively.
        """
        self._check()
        self.park.expect(move, _positions_soon(session, info), info)

    def rehearse(self, ledger: ParkLedger, session: LiveSession, info: EngineInfo) -> None:
        """Promise a session its room in a copy of the park's ledger. Raises as `expect` does."""
        self._check()
        ledger.expect(session.id, _positions_soon(session, info), info)

    def _check(self) -> None:
        if (off_by := self._migration_off()) is not None:
            raise SwapdError(Code.MIGRATION_DISABLED, off_by)
        if not self._config.self_certify:
            raise SwapdError(Code.NO_EDGE)

    def could_take(self, session: LiveSession) -> bool:
        """Whether the park would take a session, now or as soon as others have come to rest there."""
        owner = session.record.owner
        link = self._links.get(owner.worker) if owner is not None else None
        if link is None or link.ready is None or session.durable == 0:
            return False
        if self._migration_off() is not None or not self._config.self_certify:
            return False
        info = link.ready.info
        return self.park.room.ledger.could_take_soon(park_size(_positions_soon(session, info), info))

    def way_back(self, session: LiveSession) -> WorkerLink | None:
        """The worker that a parked session may go to now, by the rules of every native move."""
        assignments, _ = self._way(session)
        return self._links[assignments[0].target] if assignments else None

    def waits_for(self, session: LiveSession) -> Code | None:
        """Why a parked session may go to no worker now, if that is so."""
        _, refusals = self._way(session)
        return refusals[0].code if refusals else None

    def _way(self, session: LiveSession) -> tuple[list[Assignment], list[Refusal]]:
        kept = self.park.room.get(session.id)
        if kept is None:
            return [], []
        return plan(
            parked(kept.header.fingerprint),
            [candidate(link, self._ledger, self._admission) for link in self._links.values()],
            [traveller(session)],
            migration_enabled=self._migration_off() is None,
            certified=self._config.self_certify,
        )


def _positions_soon(session: LiveSession, info: EngineInfo) -> int:
    """Positions that it may have at its freeze: it decodes on while it is copied."""
    now = len(session.record.prompt) + len(session.received)
    return min(now + 2 * info.block_tokens, session.record.spec().budget)
