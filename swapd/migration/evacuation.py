"""One drain at work: it looks again whenever a session made progress, until nothing is left on its worker.

What can move joins a wave, what cannot is noted with its reason, what has ended is noted as such. The
deadline only changes the drain's state: it ends nothing, and a blocked drain goes on trying until it is
cancelled (B14).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import trio

from swapd.errors import Code, SwapdError
from swapd.migration.carrier import Carrier
from swapd.migration.departures import depart
from swapd.migration.drains import FINAL_OUTCOMES, DrainBook, Landing
from swapd.migration.move import Move
from swapd.migration.outlook import Outlook
from swapd.migration.pictures import computed, traveller
from swapd.migration.planner import Assignment
from swapd.migration.records import drain_record
from swapd.migration.rehearsal import REBUILDS
from swapd.migration.tally import Tally
from swapd.migration.transaction import Phase, committed
from swapd.migration.turns import Turn, convoys
from swapd.migration.wave import Wave
from swapd.sessions.live import LiveSession
from swapd.sessions.record import DrainRecord
from swapd.sessions.recovery import Recovery
from swapd.sessions.table import SessionTable
from swapd.store.drains import save_drain
from swapd.views import DrainView, SessionOutcome
from swapd.worker.link import WorkerLink

log = logging.getLogger("swapd.migration")

EVALUATE_EVERY_S: Final = 0.5
COMMITTED: Final = frozenset(str(phase) for phase in Phase if committed(phase))
"""Phases in which a move's session is the target's."""


async def save_all(drains: Sequence[Evacuation]) -> None:
    """Make the books of drains durable as they are, all or none."""
    store = drains[0].store
    records = [drain_record(drain.book) for drain in drains]
    # Shielded, one disk write long: a drain that is in the store must be here, too.
    with trio.CancelScope(shield=True):
        news = await store.commit(lambda db: [save_drain(db, record) for record in records])
        for drain, record, is_new in zip(drains, records, news, strict=True):
            drain.told(record, is_new=is_new)


class Evacuation:
    """The book of one drain, its waves, and its task (`run`). Whoever opens it closes the worker first."""

    def __init__(
        self,
        book: DrainBook,
        table: SessionTable,
        recovery: Recovery,
        links: Mapping[str, WorkerLink],
        outlook: Outlook,
        carrier: Carrier,
        tally: Tally,
        wall: Callable[[], float],
        *,
        parks: bool,
        tell: Callable[[DrainView], None],
    ) -> None:
        """`parks`: whether there is a park. `tell` hears of every change of state that is durable."""
        self.book = book
        self.done = trio.Event()
        self._waves: list[Wave] = []
        self._beginning: dict[str, tuple[LiveSession, str]] = {}
        """Sessions that begin anew, and where; until their old worker has dropped them."""
        self._table = table
        self.store = table.store
        self._recovery = recovery
        self._links = links
        self._outlook = outlook
        self._carrier = carrier
        self._tally = tally
        self._wall = wall
        self._parks = parks
        self._tell = tell

    def view(self) -> DrainView:
        """The book as it is, with how far the moves under way are and who still waits (H54)."""
        book = self.book
        if book.over:
            return book.view()
        now = {session.id: SessionOutcome(session.id, None, None, "planned") for session in self._left()}
        now = {name: outcome for name, outcome in now.items() if name not in book.outcomes}
        for session, target in self._beginning.values():
            if not session.recovering:
                continue  # it has begun, and only its old worker is waited for
            owner = session.record.owner
            phase = Phase.COMMITTED if owner is not None and owner.worker == target else Phase.PLANNED
            now[session.id] = SessionOutcome(session.id, None, None, str(phase), target=target)
        for move in self._moves():
            if move.session.move == move.id:
                # How it ends is told once it has ended: until then a crash may make it end otherwise.
                now[move.session.id] = msgspec.structs.replace(move.result(), outcome=None, reason=None)
        return book.view(now)

    def withdraw(self, why: Code, target: str | None = None) -> None:
        """Bring its moves to a clean end, or only those to `target`: what is not committed is aborted."""
        for wave in self._waves:
            if target is None or wave.target == target:
                wave.withdraw(why)

    async def run(self) -> None:
        """Evacuate until the book is over. Raises only what fails the store."""
        book = self.book
        seen: set[str] = {session.id for session in self._left()} | set(book.outcomes)
        async with trio.open_nursery() as nursery:
            while not book.over:
                left = {session.id for session in self._left()} | self._travelling()
                seen |= left
                left |= self._undecided(seen)
                await self._note_departed(seen - left)
                # First, so that a deadline that has passed already finds out what is in the way.
                self._send_off(self._left(), nursery)
                if book.evaluate(left, self._wall()):
                    await self.save()
                    continue
                await self._table.wait_activity(EVALUATE_EVERY_S)
        if book.state == "cancelled":
            # Who ended since the last look has an own outcome; only who is here was cancelled (H54).
            here = {session.id for session in self._left()} | self._undecided(seen)
            await self._note_departed(seen - here)
            for name in here:
                book.ended(name, "cancelled", Code.DRAIN_CANCELLED)
        await self.save()

    async def save(self) -> None:
        """Make the book durable as it is."""
        await save_all([self])

    def told(self, record: DrainRecord, *, is_new: bool) -> None:
        """A record of it has become durable; `is_new`: with a state that it had not had (H180)."""
        if is_new:
            self._tally.drain_recorded(record.state)
        self._tell(self.book.view())

    def note_clear(self, at: float) -> None:
        """Nothing of its sessions was left on the device at that time (B17); nobody waits for the record."""
        book = self.book
        if not book.cleared(at) or book.time_to_clear_s is None:
            return
        self._tally.cleared(book.time_to_clear_s)
        self.store.post(partial(save_drain, drain=drain_record(book)), lambda _: None)
        self._tell(book.view())

    def rebuilt(self, session: str, positions: int) -> None:
        """What a replay cost is known, perhaps only after this drain is over."""
        book = self.book
        if not book.rebuilt(session, positions):
            return
        if book.over:
            self.store.post(partial(save_drain, drain=drain_record(book)), lambda _: None)
        self._tell(book.view())

    # Who is where ----------------------------------------------------------------------------

    def _left(self) -> list[LiveSession]:
        """Sessions that are still on the worker."""
        return [session for session in self._table.owned_by(self.book.worker) if not session.ended]

    def _moves(self) -> list[Move]:
        return [move for wave in self._waves for move in wave.moves]

    def _travelling(self) -> set[str]:
        """Sessions of waves that have not been settled yet, and those that begin anew."""
        return {move.session.id for move in self._moves()} | set(self._beginning)

    def _undecided(self, seen: set[str]) -> set[str]:
        """Sessions that left with an owner that is gone: what became of them is not known yet (H64)."""
        sessions = (self._table.get(name) for name in seen)
        return {s.id for s in sessions if s is not None and self._recovery.undecided(s)}

    async def _note_departed(self, gone: set[str]) -> None:
        """Sessions that ended where they were, or were rebuilt elsewhere (H59, A21)."""
        book = self.book
        for name in gone:
            old = book.outcomes.get(name)
            if old is not None and old.outcome in FINAL_OUTCOMES:
                continue
            session = await self._stored(name)
            state = session.record.state if session is not None else "completed"
            landing = book.landed.get(name)
            if state == "failed":
                code = session.record.code if session is not None else None
                book.ended(name, "failed", code or Code.RECOVERY_UNAVAILABLE)
            elif old is not None and landing is not None and _landed(session, landing):
                # RY: the last coordinator committed it, and it lives, or ended, where it was sent.
                reuse = 1.0 if landing.outcome == "completed_native" else None
                book.note(msgspec.structs.replace(old, outcome=landing.outcome, reuse=reuse))
            elif state == "cancelled":
                book.ended(name, "cancelled", Code.SESSION_CANCELLED)
            elif state == "completed":
                book.ended(name, "cancelled", Code.ALREADY_FINISHED)
            elif state == "parked":
                book.ended(name, "parked", Code.PARK_FULL)  # no move took it there: it waits without its KV
            else:
                # After the commit it was the target that failed; before, the source (H55, H70).
                reason = Code.SOURCE_LOST if book.mode == "native" else None
                if old is not None and old.phase in COMMITTED:
                    reason = Code.TARGET_FAILED
                if session is not None and session.begun_anew:
                    book.ended(name, "completed_redispatch", reason)
                    continue
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

    # Who leaves ------------------------------------------------------------------------------

    def _send_off(self, left: list[LiveSession], nursery: trio.Nursery) -> None:
        """Plan what can leave now and let it go."""
        book = self.book
        source = self._links.get(book.worker)
        # H143: after a restart nothing moves before every session's owner is known.
        if source is None or source.owner is None or not self._recovery.reconciled:
            return
        now = self._wall()
        here = [s for s in left if s.move is None and not s.recovering and book.may_try(s.id, now)]
        if not here:
            return
        if book.mode in REBUILDS:
            self._rebuild(here, now, nursery)
            return
        by_id = {session.id: session for session in here}
        sight = self._outlook.sight(source)
        leave, anew, stay = depart(
            sight,
            [traveller(session, book.waited_s(session.id, now)) for session in here],
            parks=lambda session: self._parks and book.parks(session),
            borrow=lambda assignment: self._borrow(source, assignment),
            begins=lambda session: sight.migration_enabled or session in book.to_begin,
            begin=lambda session: self._recovery.anew(by_id[session]),
        )
        for refusal in stay:
            detail = refusal.detail or self._outlook.detail(refusal, source.name)
            told = book.waiting(refusal.session, str(refusal.code), "planned", detail)
            if told and not refusal.retry and refusal.code is not Code.ALREADY_FINISHED:
                log.warning("move refused", extra={"session": refusal.session, "code": refusal.code})
            book.queue(refusal.session, now, waits=refusal.code is Code.ARENA_EXHAUSTED)
        by_target: dict[str, dict[str, Move]] = {}
        for departure in leave:
            book.queue(departure.session, now, waits=False)
            by_target.setdefault(departure.target, {})[departure.session] = departure.loan
        for target, moves in by_target.items():
            for together in convoys([Turn(name, computed(move.session)) for name, move in moves.items()]):
                wave = self._carrier.wave(source.name, target, [moves[turn.session] for turn in together])
                self._waves.append(wave)
                nursery.start_soon(self._carrier.carry, wave, book, self._waves.remove)
        for name, link in anew:
            nursery.start_soon(self._begin_anew, by_id[name], link)

    def _rebuild(self, here: list[LiveSession], now: float, nursery: trio.Nursery) -> None:
        """Have sessions made again on other workers: this drain's mode takes no KV along."""
        book = self.book
        for session in here:
            if traveller(session).fresh:
                try:
                    link = self._recovery.anew(session)
                    nursery.start_soon(self._begin_anew, session, link)
                except SwapdError as error:
                    book.waiting(session.id, str(error.code), "planned")
                continue
            reason = self._recovery.send_to_another(session, cold=book.mode == "cold_replay")
            if reason is not None:
                book.waiting(session.id, str(reason), "planned")
            # If it is still here at the next look, nobody took it: that was no reason to ask at once.
            book.put_off(session.id, now)

    async def _begin_anew(self, session: LiveSession, link: WorkerLink) -> None:
        self._beginning[session.id] = session, link.name
        try:
            await self._carrier.begin_anew(session, link, self.book)
        finally:
            del self._beginning[session.id]

    def _borrow(self, source: WorkerLink, assignment: Assignment) -> Move:
        """Borrow what a move needs. Raises why that cannot be."""
        session = self._table.get(assignment.session)
        if session is None or source.ready is None:
            raise SwapdError(Code.NO_TARGET)
        target = self._carrier.peer(assignment.target)
        return self._carrier.borrow(session, source, target, source.ready.info, self.book.id)


def _landed(session: LiveSession | None, landing: Landing) -> bool:
    """Whether a session came where a committed move had sent it, by what is left of it."""
    if session is None or (session.record.owner, session.record.epoch) == (landing.target, landing.epoch):
        return True
    # Nothing had come of it: whoever begins it after that, it was begun anew (B18).
    return landing.outcome == "completed_redispatch"
