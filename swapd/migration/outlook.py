"""What a drain sees when it looks around, and what it tells people of what is in the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swapd.errors import Code
from swapd.migration.departures import Sight
from swapd.migration.ledger import CapacityLedger
from swapd.migration.pictures import candidate, holders, progress
from swapd.migration.planner import Bars, Refusal
from swapd.migration.quarantine import Quarantine
from swapd.sessions.admission import Admission
from swapd.sessions.table import SessionTable
from swapd.worker.link import WorkerLink


class Outlook:
    """The workers as they are now. `migration_off` says who switched moves off; None: they may begin.

    `bars` is the evidence for moves.
    """

    def __init__(
        self,
        table: SessionTable,
        ledger: CapacityLedger,
        admission: Admission,
        links: Mapping[str, WorkerLink],
        quarantine: Quarantine,
        migration_off: Callable[[], str | None],
        bars: Bars,
    ) -> None:
        self._table = table
        self._ledger = ledger
        self._admission = admission
        self._links = links
        self._quarantine = quarantine
        self._migration_off = migration_off
        self._bars = bars

    def sight(self, source: WorkerLink, ledger: CapacityLedger | None = None) -> Sight:
        """For the planner; `ledger` may be a copy, to try out what would fit."""
        ledger = ledger if ledger is not None else self._ledger
        return Sight(
            candidate(source, ledger, self._admission),
            [candidate(link, ledger, self._admission) for link in self._links.values()],
            migration_enabled=self._migration_off() is None,
            bars=self._bars,
        )

    def detail(self, refusal: Refusal, source: str) -> str | None:
        """For people: who holds the targets' places (H48), or how far the session is (H56)."""
        if refusal.code is Code.TARGET_FULL:
            others = [name for name in self._links if name != source]
            return holders(self._table, self._ledger, others)
        if refusal.code is Code.MIGRATION_DISABLED:
            return self._migration_off()
        if refusal.code is Code.NO_TARGET:
            return "; ".join(self._admission.closed[name] for name in self._quarantine.workers()) or None
        if refusal.code is Code.NOT_ELIGIBLE:
            session = self._table.get(refusal.session)
            return progress(session) if session is not None else None
        return None
