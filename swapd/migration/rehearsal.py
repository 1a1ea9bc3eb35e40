"""A drain without its deeds: the rules of `departures` on copies of the real books, for a pre-flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from swapd.errors import Code, SwapdError
from swapd.messages.generation import PARK, Lease
from swapd.migration.departures import Departure, Sight, depart
from swapd.migration.ledger import CapacityLedger, blocks_for
from swapd.migration.loan_book import LoanBook
from swapd.migration.pictures import computed, traveller
from swapd.migration.planner import Assignment, Refusal, Traveller
from swapd.migration.preflight import Fate, Pace, Way, foresee
from swapd.parking.gate import Gate
from swapd.parking.ledger import park_size
from swapd.sessions.live import LiveSession
from swapd.sessions.reassignment import Reassignment
from swapd.views import DrainMode, Foreseen, Leave, PreflightView
from swapd.worker.link import WorkerLink

REBUILDS: Final[frozenset[DrainMode]] = frozenset({"replay", "cold_replay"})
"""Modes whose sessions leave without their KV."""


class Rehearsal:
    """Implements `preflight.Trial`. `loans` is a copy already; it is spoiled."""

    def __init__(
        self,
        source: WorkerLink,
        sessions: Sequence[LiveSession],
        mode: DrainMode,
        sight: Callable[[CapacityLedger], Sight],
        loans: LoanBook,
        again: Reassignment,
        gate: Gate | None,
    ) -> None:
        self._source = source
        self._sessions = {session.id: session for session in sessions}
        self._mode = mode
        self._sight = sight
        self._loans = loans
        self._again = again
        self._gate = gate
        self._park = gate.park.room.ledger.copy() if gate is not None else None
        self._under_way: list[Departure[Lease]] = []

    def view(self, detail: Callable[[Refusal], str | None], measured: Pace | None) -> PreflightView:
        """The whole pre-flight. `detail`: names and numbers of a refusal, for people."""
        ready = self._source.ready
        seen = [_seen(session) for session in self._sessions.values()]
        if ready is None:
            # Its sessions are recovery's: a drain waits for what that decides.
            fates = {each.session: Fate("wait", reason=Code.SOURCE_LOST) for each in seen}
        else:
            fates = foresee(self, seen)
        block_tokens, block_bytes = (
            (ready.info.block_tokens, ready.info.block_bytes) if ready is not None else (1, 0)
        )
        rows = []
        for name, fate in fates.items():
            session = self._sessions[name]
            refusal = Refusal(name, fate.reason, False) if fate.reason is not None else None
            blocks = blocks_for(computed(session), block_tokens) if ready is not None else 0
            rows.append(
                Foreseen(
                    session=name,
                    state=session.state,
                    accepted=session.durable,
                    max_new_tokens=session.record.max_new_tokens,
                    kv_blocks=blocks,
                    kv_bytes=blocks * block_bytes,
                    would=fate.would,
                    then=fate.then,
                    target=fate.target if fate.target != PARK else None,
                    reason=fate.reason,
                    detail=fate.detail or (detail(refusal) if refusal is not None else None),
                )
            )
        copied = sum(row.kv_bytes for row in rows if {"move", "park"} & {row.would, row.then})
        return PreflightView(
            worker=self._source.name,
            mode=self._mode,
            sessions=tuple(rows),
            copy_bytes=copied,
            copy_s=copied / measured.bytes_per_s if measured is not None else None,
            longest_pause_ms=measured.longest_pause_ms if measured is not None else None,
            drains_measured=measured.drains if measured is not None else 0,
        )

    def look(self, travellers: Sequence[Traveller]) -> tuple[dict[str, Way], list[Refusal]]:
        if self._mode in REBUILDS:
            return self._rebuild(travellers)
        sight = self._sight(self._loans.ledger)
        leave, anew, stay = depart(
            sight,
            travellers,
            parks=lambda session: self._gate is not None and self._mode == "park",
            borrow=self._borrow,
            begins=lambda session: sight.migration_enabled,
            begin=lambda session: self._again.place_anew(self._sessions[session], self._loans.ledger),
        )
        self._under_way += leave
        ways = {each.session: Way("park" if each.target == PARK else "move", each.target) for each in leave}
        return ways | {session: Way("anew", link.name) for session, link in anew}, stay

    def arrive(self) -> None:
        for session, target, lease in self._under_way:
            self._loans.arrived(lease)
            if target == PARK and self._park is not None and (ready := self._source.ready) is not None:
                # Less than it was promised: that is for what it decodes on the way.
                self._park.withdraw(session)
                self._park.keep(session, park_size(computed(self._sessions[session]), ready.info))
        self._under_way.clear()

    def _rebuild(self, travellers: Sequence[Traveller]) -> tuple[dict[str, Way], list[Refusal]]:
        gone: dict[str, Way] = {}
        stay: list[Refusal] = []
        for each in travellers:
            how: Leave = "anew" if each.fresh else "replay"
            place = self._again.place_anew if each.fresh else self._again.place
            try:
                link = place(self._sessions[each.session], self._loans.ledger)
                gone[each.session] = Way(how, link.name)
            except SwapdError as error:
                stay.append(Refusal(each.session, error.code, error.retryable))
        return gone, stay

    def _borrow(self, assignment: Assignment) -> Lease:
        session, ready = self._sessions[assignment.session], self._source.ready
        assert ready is not None
        if assignment.target == PARK and self._gate is not None and self._park is not None:
            self._gate.rehearse(self._park, session, ready.info)
        try:
            return self._loans.lend(session.id, session.record.spec().budget, assignment.target, ready.info)
        except SwapdError:
            if self._park is not None:
                self._park.withdraw(session.id)
            raise


def _seen(session: LiveSession) -> Traveller:
    """A session as the drain's looks find it, or skip it: what is being rebuilt is in other hands, too."""
    seen = traveller(session)
    return msgspec.structs.replace(seen, moving=seen.moving or session.recovering)
