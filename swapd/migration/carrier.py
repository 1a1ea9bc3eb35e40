"""Moves from what they borrow to their records: for drains, and for the way into the park and back.

A move is borrowed for first (`borrow`); then it must be carried, for only that gives back what it has.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from swapd import failpoints
from swapd.certify.registry import End
from swapd.config import Config
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Done, EngineInfo
from swapd.messages.generation import PARK, Owner
from swapd.messages.to_worker import Cancel
from swapd.migration.drains import DrainBook
from swapd.migration.ends import end_reason
from swapd.migration.loans import Loans
from swapd.migration.move import Move
from swapd.migration.outcomes import within
from swapd.migration.planner import Bars
from swapd.migration.quarantine import Quarantine
from swapd.migration.records import planned, redispatched
from swapd.migration.route import Peer
from swapd.migration.tally import Tally
from swapd.migration.transaction import Phase
from swapd.migration.wave import Wave
from swapd.parking.gate import Gate
from swapd.sessions.live import LiveSession
from swapd.sessions.record import MoveRecord
from swapd.sessions.recovery import Recovery
from swapd.sessions.table import SessionTable
from swapd.store.moves import finish_move, plan_move
from swapd.views import Outcome, SessionOutcome
from swapd.worker.link import WorkerLink

log = logging.getLogger("swapd.migration")

ASK_AGAIN_S: Final = 0.25


class Carrier:
    """Carries the moves of all drains and of the park. `gate` is None where nothing is parked."""

    def __init__(
        self,
        config: Config,
        table: SessionTable,
        recovery: Recovery,
        links: Mapping[str, WorkerLink],
        loans: Loans,
        tally: Tally,
        quarantine: Quarantine,
        gate: Gate | None,
        bars: Bars,
        wall: Callable[[], float],
    ) -> None:
        self._config = config
        self._table = table
        self._store = table.store
        self._recovery = recovery
        self._links = links
        self._loans = loans
        self._tally = tally
        self._quarantine = quarantine
        self._gate = gate
        self._park = gate.park if gate is not None else None
        self._bars = bars
        self._wall = wall

    def peer(self, name: str) -> Peer:
        """A worker, or the park. Raises `parking_off`."""
        if name != PARK:
            return self._links[name]
        if self._park is None:
            raise SwapdError(Code.PARKING_OFF)
        return self._park

    def borrow(
        self, session: LiveSession, source: Peer, target: Peer, info: EngineInfo, drain: str | None
    ) -> Move:
        """Borrow what a move needs; `info` is the engine's that made its KV. Raises why that cannot be."""
        source_owner, target_owner = source.owner, target.owner
        if source_owner is None or target_owner is None:
            raise SwapdError(Code.NO_TARGET)
        name = f"mov_{secrets.token_hex(8)}"
        if self._gate is not None and target.name == PARK:
            self._gate.expect(name, session, info)
        try:
            lease = self._loans.lend(session, target.name, info)
        except SwapdError:
            if self._park is not None:
                self._park.settle(name)
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

    def wave(self, source: str, target: str, moves: Sequence[Move]) -> Wave:
        """The moves that go between these two together."""
        batch = f"bat_{secrets.token_hex(6)}"
        one, other = self.peer(source), self.peer(target)
        return Wave(
            self._config, self._table, one, other, batch, moves, permit=lambda: self._permit(one, other)
        )

    def _permit(self, source: Peer, target: Peer) -> None:
        """Raise what the evidence for a move lacks by now: it was planned a moment ago (H136)."""
        ready = source.ready or target.ready
        if ready is None:
            return  # a worker that is gone: the next step says so
        ends = [End(peer.name, (peer.ready or ready).info.fingerprint) for peer in (source, target)]
        if (bar := self._bars(*ends)) is not None:
            raise SwapdError(bar.code, bar.detail)

    async def carry(
        self,
        wave: Wave,
        book: DrainBook | None = None,
        settled: Callable[[Wave], None] = lambda wave: None,
    ) -> None:
        """One wave from its durable plan to its records; nothing of it stays behind.

        `book` is that of the drain that sends it; `settled` is told when all is given back. Raises only what
        fails the store.
        """
        try:
            now = self._wall()
            records = [planned(move, now) for move in wave.moves]
            await failpoints.pass_by("P.before")
            await self._store.commit(lambda db: _plan_all(db, records))
            await failpoints.pass_by("P.after")
            await wave.run()
            await failpoints.pass_by("Z.before")
        finally:
            self._settle(wave, book)
            settled(wave)
            self._table.notify()
        await failpoints.pass_by("Z.after")

    async def begin_anew(self, session: LiveSession, link: WorkerLink, book: DrainBook) -> None:
        """Have `link` begin a session of which nothing has come, to its record (B18).

        `Recovery.anew` has taken the room there. The row is written with the new owner: if the coordinator
        dies after that, the next one finds the outcome in it.
        """
        name = f"mov_{secrets.token_hex(8)}"
        source, epoch, at = session.record.owner, session.record.epoch, self._wall()
        assert source is not None, "a drain's sessions have an owner"

        def note(db: sqlite3.Connection, target: Owner) -> None:
            plan_move(db, redispatched(name, session.id, book.id, source, target, epoch, at))

        how, why = await self._recovery.begin_anew(session, link, note)
        result = SessionOutcome(session.id, None, None, str(Phase.COMMITTED), target=link.name)
        match how:
            case "stayed":
                if why is not Code.NOT_ELIGIBLE:  # then its first token came: it moves as others do
                    book.put_off(session.id, self._wall())
                return
            case "begun":
                result = msgspec.structs.replace(
                    result, outcome="completed_redispatch", phase=str(Phase.FINISHED)
                )
            case "ended":
                result = msgspec.structs.replace(result, outcome="cancelled", reason=str(end_reason(session)))
            case "home":
                result = msgspec.structs.replace(result, outcome="rehomed_source", reason=str(why))
                book.put_off(session.id, self._wall())
            case "lost":
                # Recovery decides what becomes of it; that is noted when it is known.
                result = msgspec.structs.replace(result, reason=str(why))
        book.note(result)
        self._record(name, result.outcome or "failed", result)
        if how == "begun":
            await self._dropped(session, source, epoch)

    async def _dropped(self, session: LiveSession, owner: Owner, epoch: int) -> None:
        """Return when an owner has nothing of a session any more, or is gone.

        Till then its worker is not empty, and its drain must not say so.
        """
        link = self._links[owner.worker]
        while link.is_owner(owner):
            try:
                await link.request(Cancel(session.id, epoch), Done, self._config.timers.rpc_s)
                return
            except SwapdError as error:
                if error.code is not Code.TIMEOUT:
                    log.warning("not dropped", extra={"session": session.id, "code": error.code})
                    return
                await self._table.wait_activity(ASK_AGAIN_S)

    def _settle(self, wave: Wave, book: DrainBook | None) -> None:
        for move in wave.moves:
            session = move.session
            session.move = None
            if move.target_fault is not None:
                self._quarantine.put(move.target, move.target_fault)
            self._loans.settle(move)
            if self._park is not None:
                self._park.settle(move.id)
            self._note(book, move)
            if session.ended:
                self._recovery.abandon(session)
                continue
            if move.outcome == "failed":
                # After the commit the target may be there and yet not have it: its link says nothing of that.
                self._recovery.disown(session)
            else:
                self._recovery.look_at(session)
        self._loans.give_back([move.lease for move in wave.moves])

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
        self._tally.took(result, move.loaded if move.outcome == "completed_native" else 0)
        outcome = move.outcome
        if outcome is None or self._store.failed:
            return  # The row stays open: the next start resolves it by what is durable (H146, H147).
        self._record(move.id, outcome, result)

    def _record(self, move: str, outcome: Outcome, result: SessionOutcome) -> None:
        """End a move's row, and count it when that is durable (H180)."""
        at = self._wall()
        reason = within(msgspec.structs.replace(result, outcome=outcome)).reason
        result = msgspec.structs.replace(result, reason=reason)

        def recorded(ended: bool | BaseException) -> None:
            if ended is True:
                self._tally.move_recorded(outcome)

        self._store.post(lambda db: finish_move(db, move, outcome, reason, result, at), recorded)


def _plan_all(db: sqlite3.Connection, records: Sequence[MoveRecord]) -> None:
    for record in records:
        plan_move(db, record)
