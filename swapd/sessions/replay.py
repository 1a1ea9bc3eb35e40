"""A session that no worker has: rebuilt on one that takes it, where that is permitted, else ended.

Replay is never called recovery of KV: every position that it computes is counted (H73). What a move had
brought to its target before its source was lost is taken up there, and only the rest computed (B24).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

import trio

from swapd.config import Config
from swapd.errors import Code, SwapdError
from swapd.messages.to_worker import Discard
from swapd.migration.ledger import CapacityLedger
from swapd.sessions.admission import Admission
from swapd.sessions.live import LiveSession
from swapd.sessions.reassignment import Reassignment
from swapd.sessions.reconciliation import Reconciliation, tell
from swapd.sessions.table import SessionTable
from swapd.worker.link import WorkerLink

log = logging.getLogger("swapd.sessions.recovery")

LOOK_AGAIN_S: Final = 0.25


class Replay:
    """Brings such a session to its end, one way or the other; what it found is counted and reported."""

    def __init__(
        self,
        config: Config,
        table: SessionTable,
        ledger: CapacityLedger,
        admission: Admission,
        links: Mapping[str, WorkerLink],
        again: Reassignment,
        findings: Reconciliation,
        outcomes: Counter[str],
    ) -> None:
        self._config = config
        self._table = table
        self._store = table.store
        self._ledger = ledger
        self._admission = admission
        self._links = links
        self._again = again
        self._findings = findings
        self._outcomes = outcomes

    async def decide(self, session: LiveSession) -> None:
        """Replay where permitted, else end it, within `decide_s` of a worker being there (H70, H145)."""
        owner = session.record.owner
        link = self._links.get(owner.worker) if owner is not None else None
        connected = link is not None and link.is_owner(owner)
        why = self._findings.loss(owner.worker if owner is not None else None, connected=connected)
        try:
            # Nothing was shown yet: running it anew repeats nothing, so it needs no permission (B18).
            permitted = session.record.allow_replay_fallback or session.durable == 0
            if permitted and await self._replay(session):
                self._outcomes["replayed"] += 1
                rebuilt = session.rebuilt_positions
                tell(self._findings.decided(session.record, session.durable, "replayed", why, rebuilt))
                return
            if permitted and session.record.state == "parked" and not session.over:
                # There was no room for it before its KV was lost, either: it goes on waiting, till its
                # lifetime at most (B3).
                session.waits_to_replay = True
                tell(self._findings.decided(session.record, session.durable, "parked", why))
                return
            if not session.over:
                await self._table.finish(session, "failed", Code.RECOVERY_UNAVAILABLE)
                self._outcomes["failed"] += 1
                tell(self._findings.decided(session.record, session.durable, "failed", why))
        except SwapdError as error:
            log.error("session not resolved", extra={"session": session.id, "code": error.code})
        finally:
            session.recovering = False
            session.wake()
            self._table.notify()

    async def _replay(self, session: LiveSession) -> bool:
        """Start it on whichever worker takes it, in good time. False: nobody did, or it ended meanwhile."""
        old = session.record.owner
        if old is not None:
            self._ledger.free(old.worker, session.id)
        if await self._take_up(session):
            return True
        timers = self._config.timers
        began = since = trio.current_time()
        while not session.over:
            # Where one will be there, ending the session meanwhile would lose what can be saved.
            if any(other.coming for other in self._links.values()):
                since = trio.current_time()
            link = self._again.choose(session, self._links.values(), self._ledger)
            if link is not None:
                try:
                    await self._again.start(session, link)
                    return True
                except SwapdError as error:
                    self._ledger.free(link.name, session.id)
                    if error.code is Code.STORE_FAILED:
                        raise
                    log.warning("replay refused", extra={"session": session.id, "code": error.code})
            # Only after the look: who was waited for may be there now, later than `decide_s`.
            now = trio.current_time()
            if now - since > timers.decide_s or now - began > timers.worker_start_s:
                return False  # H71, A16
            await self._table.wait_activity(LOOK_AGAIN_S)
        return False

    async def _take_up(self, session: LiveSession) -> bool:
        """Rebuild it where a move has brought its first blocks, if there are any (B24).

        False: nothing is left of them, and it is for any worker to rebuild it from its transcript.
        """
        left = session.salvage
        if left is None:
            return False
        link, tokens = self._links.get(left.target.worker), session.record.spec().budget
        there = link is not None and link.is_owner(left.target) and self._admission.admitting(link.name)
        if link is not None and there and self._ledger.charge(link.name, session.id, tokens):
            try:
                await self._again.start(session, link, salvage=left.move)
            except SwapdError as error:
                if error.code is Code.STORE_FAILED:
                    raise
                log.warning("salvage refused", extra={"session": session.id, "code": error.code})
            else:
                session.salvage = None
                return True
        self.abandon(session)
        return False

    def abandon(self, session: LiveSession) -> None:
        """Have a target free what a move left there, where nobody takes it up (B24)."""
        left, session.salvage = session.salvage, None
        if left is None:
            return
        self._ledger.free(left.target.worker, session.id)
        link = self._links.get(left.target.worker)
        # A store that failed has the last word, after a restart (SF); the worker frees it by itself, too.
        if link is not None and link.is_owner(left.target) and not self._store.failed:
            link.tell(Discard(left.move))
