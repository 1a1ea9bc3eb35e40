"""All drains: begun, asked about, cancelled, taken up again after a restart (H50-H65).

Each is an `Evacuation` with a task of its own; their moves go through the one `Carrier`, as do the park's.
The worker is closed exactly while a drain of it is running or blocked.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence, Set

import trio

from swapd.certify.keeper import CertificateKeeper
from swapd.config import Config
from swapd.errors import Code, SwapdError
from swapd.migration.askers import OWNERS, asks
from swapd.migration.carrier import Carrier
from swapd.migration.clearing import wait_clear
from swapd.migration.drains import DrainBook
from swapd.migration.evacuation import Evacuation, save_all
from swapd.migration.ledger import CapacityLedger
from swapd.migration.loans import Loans
from swapd.migration.outlook import Outlook
from swapd.migration.preflight import DRAINS_MEASURED, pace
from swapd.migration.quarantine import Quarantine
from swapd.migration.records import drain_view, reopened
from swapd.migration.rehearsal import Rehearsal
from swapd.migration.tally import Tally
from swapd.parking.gate import Gate
from swapd.parking.link import ParkLink
from swapd.parking.passage import Passage
from swapd.sessions.admission import Admission
from swapd.sessions.live import LiveSession
from swapd.sessions.record import DrainRecord, MoveRecord
from swapd.sessions.recovery import Recovery
from swapd.sessions.table import SessionTable
from swapd.store.drains import load_drain, recent_drains
from swapd.transport.arena import Arena
from swapd.transport.leases import LeaseBook
from swapd.views import DRAINS_SHOWN, Asker, DrainMode, DrainOrigin, DrainView, PreflightView
from swapd.worker.link import WorkerLink

log = logging.getLogger("swapd.migration")


class MigrationSupervisor:
    """Runs all drains. `run` owns their tasks; the other methods may be called from any task."""

    def __init__(
        self,
        config: Config,
        table: SessionTable,
        ledger: CapacityLedger,
        admission: Admission,
        recovery: Recovery,
        links: dict[str, WorkerLink],
        arena: Arena | None,
        leases: LeaseBook | None,
        arena_refusal: SwapdError | None = None,
        park: ParkLink | None = None,
        wall: Callable[[], float] = time.time,
        certificates: CertificateKeeper | None = None,
    ) -> None:
        self.on_drain: Callable[[DrainView], None] = lambda view: None
        self._table = table
        self._store = table.store
        self._ledger = ledger
        lent = {device.name for device in config.devices if config.owner.release == "stop"}
        self._ended_by_owner = {worker.worker_id for worker in config.workers if worker.device in lent}
        self._admission = admission
        self._recovery = recovery
        self._links = links
        self.tally = Tally()
        self.loans = Loans(config, ledger, arena, leases, arena_refusal)
        self.park = park
        self._wall = wall
        by_config = None if config.migration_enabled else "by the configuration"
        self.migration_off: Callable[[], str | None] = lambda: by_config
        """Who switched moves off; None: they may begin (A13)."""
        self.certificates = certificates or CertificateKeeper(config, table.store, (), table.notify, wall)
        bars = self.certificates.bar
        self._gate = (
            Gate(ledger, admission, links, park, lambda: self.migration_off(), bars)
            if park is not None
            else None
        )
        self.quarantine = Quarantine(table, ledger, admission, links, wall)
        self._outlook = Outlook(
            table, ledger, admission, links, self.quarantine, lambda: self.migration_off(), bars
        )
        self._carrier = Carrier(
            config, table, recovery, links, self.loans, self.tally, self.quarantine, self._gate, bars, wall
        )
        self.passage = (
            Passage(
                self._gate, recovery, links, self._carrier, lambda worker: self.draining(worker) is not None
            )
            if self._gate is not None
            else None
        )
        recovery.on_rebuilt = self._rebuilt
        self._drains: dict[str, Evacuation] = {}
        """Those under way, and the latest that are over, for cheap reads."""
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the drains' tasks, and those of loans and certificates, until cancelled."""
        await self._store.read(self.tally.load)
        await self.quarantine.load()
        await self.certificates.load()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self.certificates.run)
            nursery.start_soon(self.loans.run, self._table.notify)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    # Calls -----------------------------------------------------------------------------------

    def draining(self, worker: str) -> DrainBook | None:
        """The drain that keeps a worker closed, if one does."""
        for drain in self._drains.values():
            if drain.book.worker == worker and not drain.book.over:
                return drain.book
        return None

    async def start(
        self,
        worker: str,
        deadline_s: float,
        origin: DrainOrigin,
        mode: DrainMode = "native",
        reason: str | None = None,
    ) -> DrainView:
        """Begin a drain; admission is closed before anything else is looked at (H51)."""
        (view,) = await self.start_all([worker], deadline_s, origin, mode, reason)
        return view

    async def start_all(
        self,
        workers: Sequence[str],
        deadline_s: float,
        origin: DrainOrigin,
        mode: DrainMode = "native",
        reason: str | None = None,
    ) -> list[DrainView]:
        """Begin drains together, all or none: all are closed before any is moved (B16).

        So nobody goes from one of them to another, to leave that one, too.
        """
        for worker in workers:
            self._drainable(worker)
        now = self._wall()
        drains = []
        for worker in workers:
            askers = (Asker(origin, now, reason),)
            name = f"drn_{secrets.token_hex(8)}"
            drains.append(
                self._open(DrainBook(name, worker, origin, now, deadline_s, mode=mode, askers=askers))
            )
            self._admission.close(worker, "drain", f"worker {worker} is draining")
        try:
            await save_all(drains)
        except BaseException:
            for drain in drains:
                self._drains.pop(drain.book.id, None)
                drain.done.set()
            for worker in workers:
                self._reopen(worker)
            raise
        # Who is on the way to a worker that is given back would only have to leave it again (OP).
        for each in self._drains.values():
            for worker in workers:
                each.withdraw(Code.NO_TARGET, target=worker)
        for drain in drains:
            self._launch(drain)
        return [drain.view() for drain in drains]

    async def join(self, drain: str, origin: DrainOrigin, reason: str | None) -> None:
        """One more wants the worker of a running drain empty (B16); durable before it returns.

        Over already, or asked by the same already: unchanged.
        """
        here = self._drains.get(drain)
        if here is None or here.book.over:
            return
        if here.book.join(Asker(origin, self._wall(), reason)):
            await here.save()

    async def leave(self, drain: str, origins: Set[DrainOrigin]) -> None:
        """These want it no more: the drain goes on for whoever else asked, or else is cancelled."""
        here = self._drains.get(drain)
        if here is None or here.book.over:
            return
        if here.book.leave(origins, self._wall()):
            await here.save()
        else:
            await self.cancel(drain)

    def cleared(self, drain: str, ago_s: float) -> None:
        """The device of a drain is free since so long: its owner's give-back has measured it (B17)."""
        here = self._drains.get(drain)
        if here is not None:
            here.note_clear(self._wall() - ago_s)

    async def preflight(self, worker: str, mode: DrainMode = "native") -> PreflightView:
        """What `start` would do with each session now; nothing is reserved. Raises what `start` raises."""
        source = self._drainable(worker)
        measured = pace(await self.views(limit=2 * DRAINS_MEASURED))
        rehearsal = Rehearsal(
            source,
            [session for session in self._table.owned_by(worker) if not session.ended],
            mode,
            lambda ledger: self._outlook.sight(source, ledger),
            self.loans.book.copy(),
            self._recovery.again,
            self._gate,
        )
        return rehearsal.view(lambda refusal: self._outlook.detail(refusal, worker), measured)

    def _drainable(self, worker: str) -> WorkerLink:
        link = self._links.get(worker)
        if link is None:
            raise SwapdError(Code.WORKER_UNKNOWN, f"the workers are {', '.join(sorted(self._links))}")
        running = self.draining(worker)
        if running is not None:
            raise SwapdError(Code.DRAIN_EXISTS, running.id)
        return link

    def open_drains(self) -> list[DrainBook]:
        """Drains that are running or blocked."""
        return [drain.book for drain in self._drains.values() if not drain.book.over]

    def resume(self, record: DrainRecord, moves: Sequence[MoveRecord] = ()) -> None:
        """Take a drain up again after a restart, with the moves that it made (decision 10, B16)."""
        book = reopened(record, moves)
        drain = self._open(book)
        self._await_costs(drain)
        if book.worker in self._links:
            self._admission.close(book.worker, "drain", f"worker {book.worker} is draining")
        self._launch(drain)

    def remember(self, record: DrainRecord) -> None:
        """Keep a drain here that was over before the restart, and does not know yet what a replay cost."""
        drain = self._open(reopened(record))
        drain.done.set()
        self._await_costs(drain)

    def _await_costs(self, drain: Evacuation) -> None:
        """After a restart: a replay that has given no token says what it cost; of any other nobody can."""
        for name in drain.book.unpriced():
            session = self._table.get(name)
            if session is not None and not session.over:
                session.rebuild(session.record.epoch)
            if session is None or session.rebuilding is None:
                drain.rebuilt(name, 0)

    async def view(self, drain: str) -> DrainView:
        """Raises `drain_unknown`."""
        here = self._drains.get(drain)
        if here is not None:
            return here.view()
        record = await self._store.read(lambda db: load_drain(db, drain))
        if record is None:
            raise SwapdError(Code.DRAIN_UNKNOWN)
        return drain_view(record)

    async def views(self, before: str | None = None, limit: int = DRAINS_SHOWN) -> Sequence[DrainView]:
        """The latest drains, newest first; with `before`, those that began before that one."""
        records = await self._store.read(lambda db: recent_drains(db, limit, before))
        live = {name: drain.view() for name, drain in self._drains.items()}
        return [live.get(record.id) or drain_view(record) for record in records]

    async def cancel(self, drain: str) -> DrainView:
        """Moves in flight come to a clean end, then the worker is reopened (H61). Over already: unchanged."""
        here = self._drains.get(drain)
        if here is None or here.book.over:
            return await self.view(drain)
        if self._store.failed:
            raise SwapdError(Code.STORE_FAILED)  # a restart takes the drain up again
        here.withdraw(Code.DRAIN_CANCELLED)
        # State first: the drain's own task sees it, lets its waves end and reopens the worker.
        here.book.cancel(self._wall())
        self._table.notify()
        await here.done.wait()
        if self._store.failed:
            raise SwapdError(Code.STORE_FAILED)
        return here.view()

    def _rebuilt(self, session: LiveSession) -> None:
        for drain in self._drains.values():
            drain.rebuilt(session.id, session.rebuilt_positions or 0)

    # Single sessions -------------------------------------------------------------------------

    def can_park(self, session: LiveSession) -> bool:
        """Whether the park would take a session, now or soon."""
        return self._gate is not None and self._gate.could_take(session)

    def waits(self, session: LiveSession) -> Code | None:
        """Why a session makes no token now: it is held, or parked and may go to no worker."""
        if session.over or session.recovering or session.move is not None:
            return None
        if not session.producing:
            return Code.NO_READER
        if session.waits_to_replay:
            return Code.TARGET_FULL  # it goes on as soon as any worker has room
        parked = session.record.state == "parked"
        return self._gate.waits_for(session) if parked and self._gate is not None else None

    def park_soon(self, session: LiveSession) -> None:
        """Have the drain of its worker park a session, should there be no worker for it."""
        owner = session.record.owner
        book = self.draining(owner.worker) if owner is not None else None
        if book is not None and session.id not in book.to_park:
            book.to_park.add(session.id)
            self._table.notify()

    def begin_anew_soon(self, session: LiveSession) -> None:
        """Have its worker's drain begin it elsewhere, while nothing has come of it, even if moves are off."""
        owner = session.record.owner
        book = self.draining(owner.worker) if owner is not None else None
        if book is not None and session.id not in book.to_begin:
            book.to_begin.add(session.id)
            self._table.notify()

    # One drain -------------------------------------------------------------------------------

    def _open(self, book: DrainBook) -> Evacuation:
        """From here on it can be seen, and cancelled, also before it is durable."""
        drain = Evacuation(
            book,
            self._table,
            self._recovery,
            self._links,
            self._outlook,
            self._carrier,
            self.tally,
            self._wall,
            parks=self.park is not None,
            tell=lambda view: self.on_drain(view),
        )
        self._drains[book.id] = drain
        return drain

    def _launch(self, drain: Evacuation) -> None:
        assert self._nursery is not None, "the supervisor runs before it is asked"
        self._nursery.start_soon(self._evacuate, drain)

    async def _evacuate(self, drain: Evacuation) -> None:
        try:
            await drain.run()
            self._reopen(drain.book.worker)
        except* SwapdError as group:
            # The store failed: nothing more can be decided here; a restart resumes the drain (H160).
            log.error("drain stopped", extra={"drain": drain.book.id, "code": _code(group)})
        finally:
            drain.done.set()
        self._forget_old()
        await self._watch(drain)

    async def _watch(self, drain: Evacuation) -> None:
        """Measure when the device is clear of the sessions that were on the worker (B17)."""
        book, link = drain.book, self._links.get(drain.book.worker)
        if book.state != "drained" or link is None or self._store.failed:
            return
        if book.worker in self._ended_by_owner and asks(book.askers, OWNERS):
            return  # its process will be ended, and the give-back measures when the memory is back
        if await wait_clear(link, self._ledger, set(book.outcomes)):
            drain.note_clear(self._wall())

    def _reopen(self, worker: str) -> None:
        if self.draining(worker) is None:
            self._admission.reopen(worker, "drain")
            self._table.notify()

    def _forget_old(self) -> None:
        """Finished drains are in the store; keep the latest here for cheap reads."""
        books = {name: drain.book for name, drain in self._drains.items()}
        over = [name for name, book in books.items() if book.over and not book.unpriced()]
        for name in over[:-DRAINS_SHOWN]:
            del self._drains[name]


def _code(group: BaseExceptionGroup[SwapdError]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error.code) if isinstance(error, SwapdError) else "internal"
