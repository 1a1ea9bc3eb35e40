"""What a worker says that it holds, thing by thing: judged by the store (`inventory`), told to the worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import trio

from swapd.messages.from_worker import InventoryItem
from swapd.messages.generation import Owner
from swapd.messages.to_worker import Resend
from swapd.migration.ledger import CapacityLedger
from swapd.sessions.inventory import judge
from swapd.sessions.live import LiveSession
from swapd.sessions.reconciliation import Reconciliation, tell
from swapd.sessions.table import OwnerLink, SessionTable
from swapd.store.ledger import MoveCommit, commit_move


class Examination:
    """Carries verdicts out; what was found is counted and reported."""

    def __init__(
        self,
        table: SessionTable,
        ledger: CapacityLedger,
        findings: Reconciliation,
        outcomes: Counter[str],
        wall: Callable[[], float],
    ) -> None:
        self._table = table
        self._store = table.store
        self._ledger = ledger
        self._findings = findings
        self._outcomes = outcomes
        self._wall = wall

    def owns(self, owner: Owner, item: InventoryItem) -> bool:
        """Whether a worker goes on with an item, whatever other workers hold."""
        session = self._table.get(item.session)
        if session is None:
            return False
        return judge(item, session.record, session.durable, owner, owner_is_there=True).keeps

    async def examine(
        self,
        link: OwnerLink,
        owner: Owner,
        item: InventoryItem,
        kept: set[str],
    ) -> None:
        """Tell the worker what becomes of one thing that it holds."""
        session = self._table.get(item.session)
        record = session.record if session is not None else None
        durable = session.durable if session is not None else 0
        there = session is not None and not self._table.unresolved(session) and not session.waits_to_replay
        verdict = judge(item, record, durable, owner, owner_is_there=there)
        if (
            verdict.found == "homeless"
            and session is not None
            and await self._come_home(session, owner, item)
        ):
            verdict = judge(item, session.record, session.durable, owner, owner_is_there=False)
        self._outcomes[verdict.found if verdict.found != "homeless" else "released"] += 1
        for command in verdict.commands:
            link.tell(command)
        if record is None or record.terminal:
            dropped = self._findings.dropped(item.session, link.name, item.epoch, known=record is not None)
            tell(dropped)
        if verdict.keeps and session is not None:
            tell(self._findings.kept(session.record, session.durable, verdict.found))
            kept.add(session.id)
            self._ledger.restore(link.name, session.id, session.record.spec().budget)
            limit = self._table.limit(session)
            link.tell(Resend(session.id, session.record.epoch, session.durable, limit))

    async def _come_home(self, session: LiveSession, owner: Owner, item: InventoryItem) -> bool:
        """A new transfer of ownership back to the pinned source, if no token came from the target (B22)."""
        record = session.record
        if session.recovering or record.owner is None:
            return False
        name = f"{session.id}.back.{record.epoch}"
        back = MoveCommit(name, session.id, record.owner, record.epoch, item.position, owner, self._wall())
        with trio.CancelScope(shield=True):  # one disk write
            result = await self._store.commit(lambda db: commit_move(db, back))
            if result == "committed":
                session.waits_to_replay = False
                self._table.change(session, owner=owner, epoch=record.epoch + 1)
        return result == "committed"
