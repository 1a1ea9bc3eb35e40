"""Who may be parked, and to which worker a parked session may go back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from swapd.certify.registry import Bar, End
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import EngineInfo
from swapd.messages.generation import PARK
from swapd.migration.ledger import CapacityLedger, blocks_for
from swapd.migration.pictures import candidate, parked, traveller
from swapd.migration.planner import Assignment, Bars, Candidate, Refusal, plan
from swapd.parking.ledger import ParkLedger, park_size
from swapd.parking.link import ParkLink
from swapd.sessions.admission import Admission
from swapd.sessions.live import LiveSession
from swapd.worker.link import WorkerLink


class Precedence(NamedTuple):
    """A parked session, the worker whose next room is its own, and how many tokens that is."""

    session: str
    worker: str
    tokens: int


class Gate:
    """The park's entrance and exit. Decides; moves nothing."""

    def __init__(
        self,
        ledger: CapacityLedger,
        admission: Admission,
        links: Mapping[str, WorkerLink],
        park: ParkLink,
        migration_off: Callable[[], str | None],
        bars: Bars,
    ) -> None:
        """`bars` is the evidence for moves: who comes in must be able to go out by it, too."""
        self.park = park
        self._migration_off = migration_off
        self._bars = bars
        self._ledger = ledger
        self._admission = admission
        self._links = links

    def expect(self, move: str, session: LiveSession, info: EngineInfo) -> None:
        """Promise a move its room. `park.settle` ends the promise.

        Raises `park_full`; and `migration_disabled`, or what the evidence lacks, because nothing is parked
        that could not come back natively.
        """
        self._check(session, info)
        self.park.expect(move, _positions_soon(session, info), info)

    def rehearse(self, ledger: ParkLedger, session: LiveSession, info: EngineInfo) -> None:
        """Promise a session its room in a copy of the park's ledger. Raises as `expect` does."""
        self._check(session, info)
        ledger.expect(session.id, _positions_soon(session, info), info)

    def _check(self, session: LiveSession, info: EngineInfo) -> None:
        if (off_by := self._migration_off()) is not None:
            raise SwapdError(Code.MIGRATION_DISABLED, off_by)
        if (bar := self._bar(session, info.fingerprint)) is not None:
            raise SwapdError(bar.code, bar.detail)

    def _bar(self, session: LiveSession, fingerprint: str) -> Bar | None:
        """What keeps KV of that fingerprint out of the park."""
        owner = session.record.owner
        return self._bars(
            End(owner.worker if owner is not None else PARK, fingerprint), End(PARK, fingerprint)
        )

    def could_take(self, session: LiveSession) -> bool:
        """Whether the park would take a session, now or as soon as others have come to rest there."""
        return self._room_for(session) is True

    def is_full(self, session: LiveSession) -> bool:
        """Whether room is all that the park lacks for a session."""
        return self._room_for(session) is False

    def _room_for(self, session: LiveSession) -> bool | None:
        """None: it is not parked, whatever the room."""
        owner = session.record.owner
        link = self._links.get(owner.worker) if owner is not None else None
        if link is None or link.ready is None or session.durable == 0:
            return None
        info = link.ready.info
        if self._migration_off() is not None or self._bar(session, info.fingerprint) is not None:
            return None
        self.park.room.look_at_disk()
        return self.park.room.ledger.could_take_soon(park_size(_positions_soon(session, info), info))

    def way_back(self, session: LiveSession, first: Precedence | None = None) -> WorkerLink | None:
        """The worker that a parked session may go to now, by the rules of every native move.

        `first` has its room on one worker kept, also from those that wait after it.
        """
        assignments, _ = self._way(session, first)
        return self._links[assignments[0].target] if assignments else None

    def waits_for(self, session: LiveSession) -> Code | None:
        """Why a parked session may go to no worker now, if that is so."""
        _, refusals = self._way(session)
        return refusals[0].code if refusals else None

    def _way(
        self, session: LiveSession, first: Precedence | None = None
    ) -> tuple[list[Assignment], list[Refusal]]:
        kept = self.park.room.get(session.id)
        if kept is None:
            return [], []
        candidates = [candidate(link, self._ledger, self._admission) for link in self._links.values()]
        return plan(
            parked(kept.header.fingerprint),
            [_beside(worker, first) for worker in candidates],
            [traveller(session)],
            migration_enabled=self._migration_off() is None,
            bars=self._bars,
        )

    def precedence(self, waiting: Iterable[LiveSession]) -> Precedence | None:
        """Whose room is kept: that of the one that waits longest and that some open worker could hold (B3).

        Small sessions would else take each place as it comes free, and one that needs more than one place
        would never come back. Only one worker is held to it, the one that is nearest to having the room:
        new sessions go to the others, and to what is left of it.
        """
        if self._migration_off() is not None:
            return None  # nobody can come back: nothing is kept
        for session in waiting:
            kept = self.park.room.get(session.id)
            if kept is None:
                continue
            tokens = session.record.spec().budget
            able = [
                worker
                for worker in (
                    candidate(link, self._ledger, self._admission) for link in self._links.values()
                )
                if worker.admitting and self._bars(parked(kept.header.fingerprint).end, worker.end) is None
                if (capacity := self._ledger.worker(worker.worker)) is not None
                and capacity.could_hold(tokens)
            ]
            if able:
                nearest = max(able, key=lambda worker: (worker.free_blocks, worker.worker))
                return Precedence(session.id, nearest.worker, tokens)
        return None


def _beside(worker: Candidate, first: Precedence | None) -> Candidate:
    """A worker as those see it who come after `first`."""
    if first is None or worker.worker != first.worker:
        return worker
    blocks = blocks_for(first.tokens, worker.block_tokens)
    return msgspec.structs.replace(
        worker, free_blocks=worker.free_blocks - blocks, free_slots=worker.free_slots - 1
    )


def _positions_soon(session: LiveSession, info: EngineInfo) -> int:
    """Positions that it may have at its freeze: it decodes on while it is copied."""
    now = len(session.record.prompt) + len(session.received)
    return min(now + 2 * info.block_tokens, session.record.spec().budget)
