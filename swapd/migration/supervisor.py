"""Drains, and the moves that they need: who is to leave, where to, and what became of each (H50-H65).

One task a drain. It closes the worker, then evaluates again whenever a session made progress: what can
move joins a wave, what cannot is noted with its reason, what has ended is noted as such. The deadline
only changes the drain's state: it ends nothing, and a blocked drain goes on trying until it is cancelled
(B14). The worker is closed exactly while a drain of it is running or blocked.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
import trio

from swapd import failpoints
from swapd.config import Config
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import EngineInfo
from swapd.messages.generation import PARK
from swapd.migration.departures import Sight, depart
from swapd.migration.drains import FINAL_OUTCOMES, DrainBook
from swapd.migration.ledger import CapacityLedger
from swapd.migration.loans import Loans
from swapd.migration.move import Move
from swapd.migration.pictures import candidate, holders, progress, traveller
from swapd.migration.planner import Assignment, Refusal
from swapd.migration.preflight import DRAINS_MEASURED, pace
from swapd.migration.quarantine import Quarantine
from swapd.migration.records import drain_record, drain_view, planned, reopened
from swapd.migration.rehearsal import REBUILDS, Rehearsal
from swapd.migration.route import Peer
from swapd.migration.tally import Tally
from swapd.migration.wave import Wave
from swapd.parking.gate import Gate, Precedence
from swapd.parking.link import ParkLink
from swapd.sessions.admission import Admission
from swapd.sessions.live import LiveSession
from swapd.sessions.record import DrainRecord, MoveRecord
from swapd.sessions.recovery import Recovery
from swapd.sessions.table import SessionTable
from swapd.store.drains import load_drain, recent_drains, save_drain
from swapd.store.moves import finish_move, plan_move
from swapd.transport.arena import Arena
from swapd.transport.leases import LeaseBook
from swapd.views import DRAINS_SHOWN, DrainMode, DrainOrigin, DrainView, PreflightView, SessionOutcome
from swapd.worker.link import WorkerLink

log = logging.getLogger("swapd.migration")

EVALUATE_EVERY_S: Final = 0.5


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
    ) -> None:
        self.on_drain: Callable[[DrainView], None] = lambda view: None
        self._config = config
        self._table = table
        self._store = table.store
        self._ledger = ledger
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
        self._gate = (
            Gate(config, ledger, admission, links, park, lambda: self.migration_off())
            if park is not None
            else None
        )
        self.quarantine = Quarantine(table, ledger, admission, links, wall)
        self._books: dict[str, DrainBook] = {}
        self._waves: dict[str, list[Wave]] = {}
        self._done: dict[str, trio.Event] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the drains' tasks until cancelled."""
        await self._store.read(self.tally.load)
        await self.quarantine.load()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    # Calls -----------------------------------------------------------------------------------

    def draining(self, worker: str) -> DrainBook | None:
        """The drain that keeps a worker closed, if one does."""
        for book in self._books.values():
            if book.worker == worker and not book.over:
                return book
        return None

    async def start(
        self, worker: str, deadline_s: float, origin: DrainOrigin, mode: DrainMode = "native"
    ) -> DrainView:
        """Begin a drain; admission is closed before anything else is looked at (H51)."""
        self._drainable(worker)
        book = DrainBook(f"drn_{secrets.token_hex(8)}", worker, origin, self._wall(), deadline_s, mode=mode)
        self._open(book)
        self._admission.close(worker, "drain", f"worker {worker} is draining")
        try:
            await self._save(book)
        except BaseException:
            self._books.pop(book.id, None)
            self._close(book)
            self._reopen(worker)
            raise
        # Who is on the way to a worker that is given back would only have to leave it again (OP).
        for wave in [wave for waves in self._waves.values() for wave in waves]:
            if wave.target == worker:
                wave.withdraw(Code.NO_TARGET)
        self._launch(book)
        return self._live(book)

    async def preflight(self, worker: str, mode: DrainMode = "native") -> PreflightView:
        """What `start` would do with each session now; nothing is reserved. Raises what `start` raises."""
        source = self._drainable(worker)
        measured = pace(await self.views(limit=2 * DRAINS_MEASURED))
        rehearsal = Rehearsal(
            source,
            [session for session in self._table.owned_by(worker) if not session.ended],
            mode,
            lambda ledger: self._sight(source, ledger),
            self.loans.book.copy(),
            self._recovery,
            self._gate,
        )
        return rehearsal.view(lambda refusal: self._detail(refusal, worker), measured)

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
        return [book for book in self._books.values() if not book.over]

    def resume(self, record: DrainRecord, moves: Sequence[MoveRecord] = ()) -> None:
        """Take a drain up again after a restart, with the moves that it made (decision 10, B16)."""
        book = reopened(record, moves)
        self._open(book)
        if book.worker in self._links:
            self._admission.close(book.worker, "drain", f"worker {book.worker} is draining")
        self._launch(book)

    async def view(self, drain: str) -> DrainView:
        """Raises `drain_unknown`."""
        book = self._books.get(drain)
        if book is not None:
            return self._live(book)
        record = await self._store.read(lambda db: load_drain(db, drain))
        if record is None:
            raise SwapdError(Code.DRAIN_UNKNOWN)
        return drain_view(record)

    def _live(self, book: DrainBook) -> DrainView:
        """The book as it is, with how far the moves under way are and who still waits (H54)."""
        if book.over:
            return book.view()
        now = {session.id: SessionOutcome(session.id, None, None, "planned") for session in self._left(book)}
        now = {name: outcome for name, outcome in now.items() if name not in book.outcomes}
        for move in [move for wave in self._waves.get(book.id, []) for move in wave.moves]:
            if move.session.move == move.id:
                # How it ends is told once it has ended: until then a crash may make it end otherwise.
                now[move.session.id] = msgspec.structs.replace(move.result(), outcome=None, reason=None)
        return book.view(now)

    async def views(self, before: str | None = None, limit: int = DRAINS_SHOWN) -> Sequence[DrainView]:
        """The latest drains, newest first; with `before`, those that began before that one."""
        records = await self._store.read(lambda db: recent_drains(db, limit, before))
        live = {book.id: self._live(book) for book in self._books.values()}
        return [live.get(record.id) or drain_view(record) for record in records]

    async def cancel(self, drain: str) -> DrainView:
        """Moves in flight come to a clean end, then the worker is reopened (H61). Over already: unchanged."""
        book = self._books.get(drain)
        if book is None or book.over:
            return await self.view(drain)
        if self._store.failed:
            raise SwapdError(Code.STORE_FAILED)  # a restart takes the drain up again
        done = self._done[drain]
        for wave in self._waves[drain]:
            wave.withdraw(Code.DRAIN_CANCELLED)
        # State first: the drain's own task sees it, lets its waves end and reopens the worker.
        book.cancel(self._wall())
        self._table.notify()
        await done.wait()
        if self._store.failed:
            raise SwapdError(Code.STORE_FAILED)
        return book.view()

    # One drain -------------------------------------------------------------------------------

    def _open(self, book: DrainBook) -> None:
        """From here on it can be seen, and cancelled, also before it is durable."""
        self._books[book.id] = book
        self._done[book.id] = trio.Event()
        self._waves[book.id] = []

    def _close(self, book: DrainBook) -> None:
        self._waves.pop(book.id, None)
        self._done.pop(book.id).set()

    def _launch(self, book: DrainBook) -> None:
        assert self._nursery is not None, "the supervisor runs before it is asked"
        self._nursery.start_soon(self._drain, book)

    async def _drain(self, book: DrainBook) -> None:
        seen: set[str] = {session.id for session in self._left(book)} | set(book.outcomes)
        try:
            async with trio.open_nursery() as nursery:
                while not book.over:
                    left = {session.id for session in self._left(book)} | self._travelling(book)
                    seen |= left
                    left |= self._undecided(seen)
                    await self._note_departed(book, seen - left)
                    # First, so that a deadline that has passed already finds out what is in the way.
                    self._send_off(book, self._left(book), nursery)
                    if book.evaluate(left, self._wall()):
                        await self._save(book)
                        continue
                    await self._table.wait_activity(EVALUATE_EVERY_S)
            if book.state == "cancelled":
                # Who ended since the last look has an own outcome; only who is here was cancelled (H54).
                here = {session.id for session in self._left(book)} | self._undecided(seen)
                await self._note_departed(book, seen - here)
                for name in here:
                    book.ended(name, "cancelled", Code.DRAIN_CANCELLED)
            await self._save(book)
            self._reopen(book.worker)
        except* SwapdError as group:
            # The store failed: nothing more can be decided here; a restart resumes the drain (H160).
            log.error("drain stopped", extra={"drain": book.id, "code": _code(group)})
        finally:
            self._close(book)
        self._forget_old()

    def _left(self, book: DrainBook) -> list[LiveSession]:
        """Sessions that are still on the worker."""
        return [session for session in self._table.owned_by(book.worker) if not session.ended]

    def _travelling(self, book: DrainBook) -> set[str]:
        """Sessions of waves that have not been settled yet."""
        return {move.session.id for wave in self._waves.get(book.id, []) for move in wave.moves}

    def _undecided(self, seen: set[str]) -> set[str]:
        """Sessions that left with an owner that is gone: what became of them is not known yet (H64)."""
        sessions = (self._table.get(name) for name in seen)
        return {s.id for s in sessions if s is not None and self._recovery.undecided(s)}

    async def _note_departed(self, book: DrainBook, gone: set[str]) -> None:
        """Sessions that ended where they were, or were rebuilt elsewhere (H59, A21)."""
        for name in gone:
            old = book.outcomes.get(name)
            if old is not None and old.outcome in FINAL_OUTCOMES:
                continue
            session = await self._stored(name)
            state = session.record.state if session is not None else "completed"
            landed = session is None or (session.record.owner, session.record.epoch) == book.landed.get(name)
            if state == "failed":
                code = session.record.code if session is not None else None
                book.ended(name, "failed", code or Code.RECOVERY_UNAVAILABLE)
            elif old is not None and name in book.landed and landed:
                # RY: the last coordinator committed it, and it lives, or ended, where it was sent.
                book.note(msgspec.structs.replace(old, outcome="completed_native", reuse=1.0))
            elif state == "cancelled":
                book.ended(name, "cancelled", Code.SESSION_CANCELLED)
            elif state == "completed":
                book.ended(name, "cancelled", Code.ALREADY_FINISHED)
            elif state == "parked":
                book.ended(name, "parked", Code.PARK_FULL)  # no move took it there: it waits without its KV
            else:
                reason = Code.SOURCE_LOST if book.mode == "native" else None
                rebuilt = session.rebuilt_positions if session is not None else 0
                book.ended(name, "completed_replay", reason, rebuilt)

    async def _stored(self, session: str) -> LiveSession | None:
        """A session as it is, however long ago it ended; None once its retention is over."""
        try:
            return await self._table.find(session)
        except SwapdError as error:
            if error.code != Code.SESSION_UNKNOWN:
                raise
            return None

    def _send_off(self, book: DrainBook, left: list[LiveSession], nursery: trio.Nursery) -> None:
        """Plan what can leave now and let it go."""
        source = self._links.get(book.worker)
        # H143: after a restart nothing moves before every session's owner is known.
        if source is None or source.owner is None or not self._recovery.reconciled:
            return
        now = self._wall()
        here = [s for s in left if s.move is None and not s.recovering and book.may_try(s.id, now)]
        if not here:
            return
        if book.mode in REBUILDS:
            for session in here:
                reason = self._recovery.send_to_another(session, cold=book.mode == "cold_replay")
                if reason is not None:
                    book.waiting(session.id, str(reason), "planned")
                # If it is still here at the next look, nobody took it: that was no reason to ask at once.
                book.put_off(session.id, now)
            return
        leave, stay = depart(
            self._sight(source, self._ledger),
            [traveller(session) for session in here],
            parks=lambda session: self.park is not None and book.parks(session),
            borrow=lambda assignment: self._begin(book, source, assignment),
        )
        for refusal in stay:
            detail = refusal.detail or self._detail(refusal, source.name)
            told = book.waiting(refusal.session, str(refusal.code), "planned", detail)
            if told and not refusal.retry and refusal.code is not Code.ALREADY_FINISHED:
                log.warning("move refused", extra={"session": refusal.session, "code": refusal.code})
        by_target: dict[str, list[Move]] = {}
        for departure in leave:
            by_target.setdefault(departure.target, []).append(departure.loan)
        for target, moves in by_target.items():
            batch = f"bat_{secrets.token_hex(6)}"
            wave = Wave(self._config, self._table, source, self._peer(target), batch, moves)
            self._waves[book.id].append(wave)
            nursery.start_soon(self._carry, book, wave)

    def _sight(self, source: WorkerLink, ledger: CapacityLedger) -> Sight:
        return Sight(
            candidate(source, ledger, self._admission),
            [candidate(link, ledger, self._admission) for link in self._links.values()],
            migration_enabled=self.migration_off() is None,
            certified=self._config.self_certify,
        )

    def _detail(self, refusal: Refusal, source: str) -> str | None:
        """For people: who holds the targets' places (H48), or how far the session is (H56)."""
        if refusal.code is Code.TARGET_FULL:
            others = [name for name in self._links if name != source]
            return holders(self._table, self._ledger, others)
        if refusal.code is Code.MIGRATION_DISABLED:
            return self.migration_off()
        if refusal.code is Code.NO_TARGET:
            return "; ".join(self._admission.closed[name] for name in self.quarantine.workers()) or None
        if refusal.code is Code.NOT_ELIGIBLE:
            session = self._table.get(refusal.session)
            return progress(session) if session is not None else None
        return None

    def _begin(self, book: DrainBook, source: WorkerLink, assignment: Assignment) -> Move:
        """Borrow what a move needs. Raises why that cannot be."""
        session = self._table.get(assignment.session)
        if session is None or source.ready is None:
            raise SwapdError(Code.NO_TARGET)
        target = self._peer(assignment.target)
        return self._borrow(session, source, target, source.ready.info, book.id)

    def _peer(self, name: str) -> Peer:
        if name != PARK:
            return self._links[name]
        if self.park is None:
            raise SwapdError(Code.PARKING_OFF)
        return self.park

    def _borrow(
        self, session: LiveSession, source: Peer, target: Peer, info: EngineInfo, drain: str | None
    ) -> Move:
        source_owner, target_owner = source.owner, target.owner
        if source_owner is None or target_owner is None:
            raise SwapdError(Code.NO_TARGET)
        name = f"mov_{secrets.token_hex(8)}"
        if self._gate is not None and target.name == PARK:
            self._gate.expect(name, session, info)
        try:
            lease = self.loans.lend(session, target.name, info)
        except SwapdError:
            if self.park is not None:
                self.park.settle(name)
            raise
        move = Move(
            id=name,
            session=session,
            drain=drain,
            source=source_owner,
            target=target_owner,
            epoch=session.record.epoch,
            lease=lease,
        )
        session.move = move.id
        return move

    # Parking ---------------------------------------------------------------------------------

    def can_park(self, session: LiveSession) -> bool:
        """Whether the park would take a session, now or soon."""
        return self._gate is not None and self._gate.could_take(session)

    def is_over_quota(self, session: LiveSession) -> bool:
        """Whether a session stays where it is for want of room in the park; a drain decides about its own."""
        owner = session.record.owner
        drains = owner is not None and self.draining(owner.worker) is not None
        return self._gate is not None and not drains and self._gate.is_full(session)

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

    def precedence(self, waiting: Iterable[LiveSession]) -> Precedence | None:
        """Which of the parked sessions, the longest waiting first, has a worker's next room kept for it."""
        return self._gate.precedence(waiting) if self._gate is not None else None

    def bring_back(self, sessions: Sequence[LiveSession]) -> dict[str, list[Move]]:
        """Begin the moves of parked sessions, in this order, to workers that have room: by worker.

        Each has borrowed what it needs; `carry_back` must follow. Those without a move stay parked.
        """
        by_target: dict[str, list[Move]] = {}
        gate = self._gate
        if gate is None or not self._recovery.reconciled:
            return by_target
        first: Precedence | None = None
        for session in sessions:
            link = gate.way_back(session, first)
            if link is None or link.ready is None:
                first = first or gate.precedence([session])
                continue
            try:
                move = self._borrow(session, gate.park, link, link.ready.info, None)
            except SwapdError as error:
                log.info("not resumed yet", extra={"session": session.id, "code": error.code})
                continue
            by_target.setdefault(link.name, []).append(move)
        return by_target

    def set_aside(self, sessions: Iterable[LiveSession]) -> dict[str, list[Move]]:
        """Begin the moves to the park of sessions that nobody reads, as far as it takes them: by worker.

        Each has borrowed what it needs; `carry_aside` must follow. A draining worker's are left to its drain.
        """
        by_source: dict[str, list[Move]] = {}
        gate = self._gate
        if gate is None or not self._recovery.reconciled:
            return by_source
        for session in sessions:
            owner = session.record.owner
            link = self._links.get(owner.worker) if owner is not None else None
            if link is None or link.ready is None or not link.is_owner(owner) or self.draining(link.name):
                continue
            if not gate.could_take(session):
                continue
            try:
                move = self._borrow(session, link, gate.park, link.ready.info, None)
            except SwapdError as error:
                log.info("not set aside yet", extra={"session": session.id, "code": error.code})
                continue
            by_source.setdefault(link.name, []).append(move)
        return by_source

    async def carry_aside(self, source: str, moves: list[Move]) -> None:
        """One wave from a worker to the park, to its records."""
        batch = f"bat_{secrets.token_hex(6)}"
        wave = Wave(self._config, self._table, self._links[source], self._peer(PARK), batch, moves)
        await self._carry(None, wave)

    async def carry_back(self, target: str, moves: list[Move]) -> None:
        """One wave from the park to a worker, to its records."""
        batch = f"bat_{secrets.token_hex(6)}"
        wave = Wave(self._config, self._table, self._peer(PARK), self._links[target], batch, moves)
        await self._carry(None, wave)

    # One wave --------------------------------------------------------------------------------

    async def _carry(self, book: DrainBook | None, wave: Wave) -> None:
        """One wave from its durable plan to its records; nothing of it stays behind."""
        try:
            now = self._wall()
            records = [planned(move, now) for move in wave.moves]
            await failpoints.pass_by("P.before")
            await self._store.commit(lambda db: _plan_all(db, records))
            await failpoints.pass_by("P.after")
            await wave.run()
            await failpoints.pass_by("Z.before")
        finally:
            with trio.CancelScope(shield=True):  # bounded: memory to overwrite
                await self._settle(book, wave)
        await failpoints.pass_by("Z.after")

    async def _settle(self, book: DrainBook | None, wave: Wave) -> None:
        for move in wave.moves:
            session = move.session
            session.move = None
            if move.target_fault is not None:
                self.quarantine.put(move.target, move.target_fault)
            self.loans.settle(move)
            if self.park is not None:
                self.park.settle(move.id)
            self._note(book, move)
            if session.ended:
                continue
            if move.outcome == "failed":
                # After the commit the target may be there and yet not have it: its link says nothing of that.
                self._recovery.disown(session)
            else:
                self._recovery.look_at(session)
        await self.loans.give_back([move.lease for move in wave.moves])
        waves = self._waves.get(book.id) if book is not None else None
        if waves is not None and wave in waves:
            waves.remove(wave)
        self._table.notify()

    def _note(self, book: DrainBook | None, move: Move) -> None:
        """Enter the outcome in the drain's book and in the move's row."""
        result = move.result()
        if move.outcome == "failed" and not move.session.ended:
            # Whether the session is rebuilt or ends is recovery's to decide; it is noted when that is known.
            result = msgspec.structs.replace(result, outcome=None)
        if book is not None:
            book.note(result)
        if PARK in (move.source.worker, move.target.worker):
            self._table.on_event("session", move.session)  # an operator sees it come and go
        if book is not None and move.outcome in ("aborted_source_resumed", "rehomed_source"):
            book.put_off(move.session.id, self._wall())
        self.tally.took(result, move.loaded if move.outcome == "completed_native" else 0)
        outcome = move.outcome
        if outcome is None or self._store.failed:
            return  # The row stays open: the next start resolves it by what is durable (H146, H147).
        at = self._wall()

        def recorded(ended: bool | BaseException) -> None:
            if ended is True:
                self.tally.move_recorded(outcome)

        self._store.post(lambda db: finish_move(db, move.id, outcome, result.reason, result, at), recorded)

    # Records ---------------------------------------------------------------------------------

    def _reopen(self, worker: str) -> None:
        if self.draining(worker) is None:
            self._admission.reopen(worker, "drain")
            self._table.notify()

    async def _save(self, book: DrainBook) -> None:
        record = drain_record(book)
        # Shielded, one disk write long: a drain that is in the store must be here, too.
        with trio.CancelScope(shield=True):
            if await self._store.commit(lambda db: save_drain(db, record)):
                self.tally.drain_recorded(record.state)
        self.on_drain(book.view())

    def _forget_old(self) -> None:
        """Books of finished drains are in the store; keep the latest here for cheap reads."""
        over = [book.id for book in self._books.values() if book.over]
        for name in over[:-DRAINS_SHOWN]:
            del self._books[name]


def _code(group: BaseExceptionGroup[SwapdError]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error.code) if isinstance(error, SwapdError) else "internal"


def _plan_all(db: sqlite3.Connection, records: Sequence[MoveRecord]) -> None:
    for record in records:
        plan_move(db, record)
