"""Sessions whose owner is gone, and all sessions after a restart: who owns them now (H142-H158).

What the store says is true: each thing that a worker holds is judged by it (`examination`). What an owner has
of its own goes on at once (B38). Of the rest nothing is decided before every worker has attached with an
inventory or is found absent, because a session may be frozen at one worker and prepared at another; then one
that no worker has is replayed if its client permits that, else ended (`replay`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

import trio

from swapd.config import Config
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Inventory
from swapd.messages.generation import Owner
from swapd.messages.to_worker import Resend
from swapd.migration.ledger import CapacityLedger
from swapd.sessions.admission import Admission
from swapd.sessions.cost import ask_cost
from swapd.sessions.examination import Examination
from swapd.sessions.live import LiveSession
from swapd.sessions.reassignment import Note, Reassignment
from swapd.sessions.reconciliation import Reconciliation
from swapd.sessions.replay import LOOK_AGAIN_S, Replay
from swapd.sessions.table import OwnerLink, SessionTable
from swapd.views import ReconciliationView
from swapd.worker.link import WorkerLink

log = logging.getLogger("swapd.sessions.recovery")

INTRODUCTION_S: Final = 30.0
"""How long workers may take to be found at start before their sessions count as unprovable (H155)."""

AnewEnd = Literal["begun", "stayed", "ended", "home", "lost"]
"""begun: by the worker that was asked. stayed: its owner has it as before. ended: on the way.
home: begun again by its old owner. lost: by nobody yet, recovery decides."""


class Anew(NamedTuple):
    """How it went to begin a session anew elsewhere; `why` it did not come to that."""

    how: AnewEnd
    why: Code | None


class Recovery:
    """Decides about sessions without a living owner. `run` owns the tasks."""

    def __init__(
        self,
        config: Config,
        table: SessionTable,
        ledger: CapacityLedger,
        admission: Admission,
        links: dict[str, WorkerLink],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.replayed_tokens = 0
        """Positions that replays computed again, as their workers said with their first tokens."""
        self.on_rebuilt: Callable[[LiveSession], None] = lambda session: None
        table.on_rebuilt = self._rebuilt
        table.on_unpriced = self._unpriced
        admission.keepers.append(self.kept_for)
        self.outcomes: Counter[str] = Counter()
        self._config = config
        self._table = table
        self._store = table.store
        self._ledger = ledger
        self._admission = admission
        self._links = links
        self._wall = wall
        self.findings = Reconciliation([worker.worker_id for worker in config.workers], wall())
        self._introduced: set[str] = set()
        self._examining: set[str] = set()
        self._all_introduced = trio.Event()
        self._reconciled = trio.Event()
        self.again = Reassignment(config, table, ledger, admission, links)
        self._replay = Replay(
            config, table, ledger, admission, links, self.again, self.findings, self.outcomes
        )
        self._examination = Examination(table, ledger, self.findings, self.outcomes, wall)
        self._nursery: trio.Nursery | None = None

    @property
    def salvaged_tokens(self) -> int:
        """Positions that replays did not have to compute, because a move had brought them."""
        return self.again.salvaged_tokens

    @property
    def reconciled(self) -> bool:
        """Whether every session that the store had open at start is resolved (H142)."""
        return self._reconciled.is_set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Resolve what the last run left, then whatever is lost from now on."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            left_open = list(self._table)
            task_status.started()
            try:
                with trio.move_on_after(INTRODUCTION_S):
                    await self._all_introduced.wait()
                self._all_introduced.set()
                self.findings.all_met(trio.current_time(), self._wall())
                while self._examining or any(self.undecided(session) for session in self._table):
                    for session in self._table:
                        self.look_at(session)
                    await self._table.wait_activity(LOOK_AGAIN_S)
                self.findings.finish(
                    [(session.record, session.durable) for session in left_open],
                    trio.current_time(),
                    self._wall(),
                )
                self._reconciled.set()
                report = self.report()
                counted = {
                    "sessions": len(report.sessions) + report.left_out,
                    "took_s": report.found_to_ready_s,
                }
                log.info("reconciled", extra=counted)
                while True:
                    self._replay_parked()
                    await self._table.wait_activity(LOOK_AGAIN_S)
            finally:
                self._nursery = None

    def report(self) -> ReconciliationView:
        """What this start found of the last run, so far (H152)."""
        undecided = 0 if self.reconciled else sum(self.undecided(session) for session in self._table)
        return self.findings.view(undecided)

    def introduced(self, worker: str) -> None:
        """A worker was found, or found absent."""
        self.findings.met(worker, "absent")
        self._introduced.add(worker)
        if self._introduced >= set(self._links):
            self.findings.all_met(trio.current_time(), self._wall())
            self._all_introduced.set()

    def lost(self, owner: Owner) -> None:
        """An incarnation is gone, and with it what it held (H104)."""
        for session in self._table.owned_by(owner.worker):
            if session.record.owner == owner:
                self.look_at(session)

    def look_at(self, session: LiveSession) -> None:
        """Begin to decide about a session if its owner is gone and nobody else is at it."""
        if not self._table.unresolved(session) or session.recovering or session.move is not None:
            return
        if self._nursery is None or not self._all_introduced.is_set() or self._examining:
            return  # Its source may be about to say that it has it frozen; `attached` looks again.
        self._begin(session)

    # Sessions that are sent to another worker ------------------------------------------------

    def send_to_another(self, session: LiveSession, *, cold: bool) -> Code | None:
        """Rebuild a running session on another worker from its transcript, because an operator wants that.

        Returns why not: its client did not permit replay, it has not begun, or nobody has room. `cold` keeps
        the target from using what its prefix cache has.
        """
        if self._nursery is None:
            return Code.NOT_ELIGIBLE
        try:
            link = self.again.place(session, self._ledger)
        except SwapdError as error:
            return error.code
        session.recovering = True
        session.wake()
        self._nursery.start_soon(self._send, session, link, cold)
        return None

    def anew(self, session: LiveSession) -> WorkerLink:
        """Take in hand a session of which nothing has come, for another worker; `begin_anew` must follow.

        Raises `not_eligible`, `no_target`, `target_full`.
        """
        if session.recovering or session.move is not None:
            raise SwapdError(Code.NOT_ELIGIBLE)
        link = self.again.place_anew(session, self._ledger)
        session.recovering = True
        session.wake()
        return link

    async def begin_anew(self, session: LiveSession, link: WorkerLink, note: Note) -> Anew:
        """Have `link`, which `anew` charged, begin a session from its prompt; its old owner drops it (B18).

        `note` is written with the new owner. If that one does not begin it, the old one does so again where
        it can, else recovery decides.
        """
        old, epoch = session.record.owner, session.record.epoch
        how: AnewEnd = "begun"
        why: Code | None = None
        try:
            await self.again.start(session, link, leaving=(old, epoch), unbegun=note)
        except SwapdError as error:
            why = error.code
            self._ledger.free(link.name, session.id)
            log.warning("not begun anew", extra={"session": session.id, "code": why})
            if session.record.epoch == epoch:
                how = "stayed"
                self._goes_on(session, old)
            elif session.over:
                how = "ended"
            else:
                came_home = await self._home(session, old)
                how = "home" if came_home else "ended" if session.over else "lost"
        finally:
            session.recovering = False
            session.wake()
            self._table.notify()
            self.look_at(session)
        if how == "lost":
            self.disown(session)  # its new owner may be there, and yet does not have it
        return Anew(how, why)

    def _goes_on(self, session: LiveSession, owner: Owner | None) -> None:
        """The owner did not change after all: what it sent meanwhile was not taken, so it must come again."""
        link = self._table.owner_link(owner)
        if link is None or not link.is_owner(owner) or session.over or self._store.failed:
            return
        limit = self._table.limit(session)
        link.tell(Resend(session.id, session.record.epoch, session.durable, limit))

    async def _home(self, session: LiveSession, old: Owner | None) -> bool:
        """Have the worker that dropped a session begin it again, closed as it may be: else it might end."""
        link = self._links.get(old.worker) if old is not None else None
        if link is None or not link.is_owner(old):
            return False
        if not self._ledger.charge(link.name, session.id, session.record.spec().budget):
            return False
        try:
            await self.again.start(session, link)
        except SwapdError as error:
            self._ledger.free(link.name, session.id)
            log.warning("not begun again", extra={"session": session.id, "code": error.code})
            return False
        return True

    async def _send(self, session: LiveSession, link: WorkerLink, cold: bool) -> None:
        """`link` is charged already."""
        old, epoch = session.record.owner, session.record.epoch
        try:
            await self.again.start(session, link, cold=cold, leaving=(old, epoch))
            self.outcomes["replayed"] += 1
        except SwapdError as error:
            self._ledger.free(link.name, session.id)
            log.warning("replay refused", extra={"session": session.id, "code": error.code})
            if session.record.epoch != epoch:
                await self._replay.decide(session)  # it left its old owner, and the new one did not take it
        finally:
            session.recovering = False
            session.wake()
            self._table.notify()
            self.look_at(session)

    # A session whose owner is gone -----------------------------------------------------------

    def disown(self, session: LiveSession) -> None:
        """Decide about a session whose owner does not have it, connected or not."""
        if session.over or session.recovering or self._nursery is None or self._store.failed:
            self._replay.abandon(session)
            return
        self._begin(session)

    def abandon(self, session: LiveSession) -> None:
        """Have a target free what a move left there, where nobody takes it up (B24)."""
        self._replay.abandon(session)

    def undecided(self, session: LiveSession) -> bool:
        """Whether its owner is gone and it is not known yet what becomes of it."""
        return session.recovering or self._table.unresolved(session)

    def _begin(self, session: LiveSession) -> None:
        assert self._nursery is not None
        session.recovering = True
        session.wake()
        self._nursery.start_soon(self._replay.decide, session)

    def kept_for(self, worker: str) -> int:
        """Tokens for which room must be left on a worker: who waits to be rebuilt comes before a new session.

        The one that waits longest is enough, and it waits no longer than its lifetime. While a worker is
        asked to take it nothing is kept, nor for one that nobody reads: others would be kept out in vain.
        """
        first = self.again.precedence(self._waiting())
        return first.tokens if first is not None and first.worker == worker else 0

    def _waiting(self) -> Iterator[LiveSession]:
        """Parked sessions without their KV that somebody reads, the oldest first."""
        for session in self._table:
            waits = session.waits_to_replay and not session.over and not session.recovering
            if waits and session.producing:
                yield session

    def _replay_parked(self) -> None:
        """Begin to rebuild parked sessions that lost their KV, as far as workers have room for them."""
        for session in list(self._waiting()):
            if self.again.has_room(session):
                session.waits_to_replay = False
                self._begin(session)

    def _rebuilt(self, session: LiveSession) -> None:
        positions = session.rebuilt_positions or 0
        self.replayed_tokens += positions
        self.findings.rebuilt(session.id, positions)
        self.on_rebuilt(session)

    def _unpriced(self, session: LiveSession) -> None:
        """It ended before its replay gave a token; the worker that has it says what that cost."""
        owner = session.record.owner
        link = self._links.get(owner.worker) if owner is not None else None
        if self._nursery is not None and link is not None and link.is_owner(owner):
            self._nursery.start_soon(self._price, session, link)
        else:
            session.priced(0)
            self._rebuilt(session)

    async def _price(self, session: LiveSession, link: WorkerLink) -> None:
        # A worker that hangs answers when it goes on, or is taken down: then nobody knows.
        session.priced(await ask_cost(link, session, self._config.timers.dead_s))
        self._rebuilt(session)

    # A worker that attached ------------------------------------------------------------------

    async def attached(self, link: OwnerLink, inventory: Inventory) -> None:
        """Bring a worker's sessions in line with the store. Runs once a connection."""
        owner = link.owner
        if owner is None:
            return
        # What it owned when it said what it has; from here on it may be given more.
        expected = [s for s in self._table.owned_by(link.name) if s.record.owner == owner]
        self._examining.add(link.name)
        try:
            self.findings.met(link.name, "found")
            self.introduced(link.name)
            kept: set[str] = set()
            # What the store says is here is nobody else's: that need not wait for slow workers (B38).
            own = [item for item in inventory.items if self._examination.owns(owner, item)]
            for item in own:
                await self._examination.examine(link, owner, item, kept)
            with trio.move_on_after(INTRODUCTION_S):
                await self._all_introduced.wait()
            for item in inventory.items:
                if item not in own:
                    await self._examination.examine(link, owner, item, kept)
        finally:
            self._examining.discard(link.name)
            self._table.notify()
        for session in expected:
            if self._table.unresolved(session):
                continue  # parked before the restart, and not on disk: its source may have it still (B22)
            if session.record.owner == owner and session.id not in kept and session.move is None:
                # The worker is the owner and does not have it: as good as lost.
                self.disown(session)
        for session in self._table:
            self.look_at(session)
