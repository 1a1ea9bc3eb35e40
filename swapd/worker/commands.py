"""What each command does, on the engine thread, at a step boundary.

The book decides, the engine is told, the copy threads are given what takes time. Everything here returns at
once: a step of all other sessions waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

from swapd import failpoints
from swapd.engines.base import Engine
from swapd.errors import Code, SwapdError
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.worker.book import Book
from swapd.worker.copier import CopyThread
from swapd.worker.mailbox import EVENT_TICKET, Checked, Request, Takeover, Ticket
from swapd.worker.schedule import ScheduleBook
from swapd.worker.session import Session
from swapd.worker.staging import Reservation, Staging
from swapd.worker.transfers import ArenaSlot, Cargo, Transfers

Status = Literal["frozen", "finished", "not_ready", "unknown"]
Post = Callable[[Ticket, out.FromWorker], None]


class Rooms(NamedTuple):
    """What the commands work on; one set a worker."""

    engine: Engine
    book: Book
    staging: Staging
    arena: ArenaSlot
    transfers: Transfers
    precopy: CopyThread
    tails: CopyThread
    schedule: ScheduleBook


class Commands:
    """Carries out one request at a time. `step` numbers the Tokens messages."""

    def __init__(self, rooms: Rooms, post: Post) -> None:
        self._rooms = rooms
        self._post = post
        self._quiet: set[str] = set()
        self._entering: list[tuple[Ticket, out.Prepared]] = []
        self._token_ticket = EVENT_TICKET
        self.step = 0
        self.stop_wanted = False

    def handle(self, work: Request | Checked | Takeover) -> None:
        """Carry out `work` and answer, or leave the answer to a copy thread."""
        if isinstance(work, Takeover):
            self._take_over(work)
        elif isinstance(work, Checked):
            self._enter(work)
        else:
            try:
                answer = self._answer(work)
            except SwapdError as error:
                answer = out.Refused(error.code, error.detail)
            # Request id 0 asks for no answer; a refusal is worth one all the same.
            if answer is not None and (work.ticket.request or isinstance(answer, out.Refused)):
                self._post(work.ticket, answer)

    def grant(self, grant: into.Grant) -> None:
        self.send(self._rooms.book.grant(grant))

    def announce_prepared(self) -> None:
        """Answer every Prepare whose sessions are in the step that begins now."""
        for ticket, prepared in self._entering:
            failpoints.reach("I.after")
            self._post(ticket, prepared)
        self._entering.clear()

    def expire(self, now_s: float) -> int:
        """Free imports that nobody completes and count them; prepared and frozen ones stay (decision 3)."""
        expired = self._rooms.staging.expired(now_s)
        for move in expired:
            self._discard(move)
        return len(expired)

    def _answer(self, request: Request) -> out.FromWorker | None:
        book = self._rooms.book
        match request.body:
            case into.Start() as start:
                return self._start(start)
            case into.Cancel(session=session, epoch=epoch) | into.Release(session=session, epoch=epoch):
                return self._drop(request.body, session, epoch)
            case into.Reserve() as reserve:
                return self._reserve(reserve, request.at_s)
            case into.Export() as export:
                self._export(request.ticket, export)
                return None
            case into.Quiesce(batch=batch, on=on):
                (self._quiet.add if on else self._quiet.discard)(batch)
                self._rooms.engine.set_prefill(not self._quiet)
                return out.Quiesced(batch)
            case into.Freeze() as freeze:
                self._freeze(request, freeze)
                return None
            case into.Activate(items=items):
                return self._activate(items)
            case into.Resume(session=session, epoch=epoch, new_epoch=new_epoch):
                book.resume(session, epoch, new_epoch)
                return out.Done()
            case into.Discard(move=move):
                self._discard(move)
                return out.Done()
            case into.InventoryQuery():
                return out.Inventory(book.inventory(), self._rooms.engine.free_blocks())
            case into.Resend(session=session, epoch=epoch, accepted=accepted, limit=limit):
                self.send(book.resend(session, epoch, accepted, limit))
                return out.Done()
            case into.Schedule():
                return out.ScheduleLog(self._rooms.schedule.take())
            case into.Stop():
                self.stop_wanted = True
                return out.Done()
            case _:
                raise SwapdError(Code.FRAME_MALFORMED, "not a command for the engine")

    def _start(self, start: into.Start) -> out.Started:
        spec, epoch = start.spec, start.epoch
        found = self._rooms.book.peek(spec.session, epoch)
        if found is not None and found.stage == "reserved":
            self._take_up(start, found)
        self._rooms.book.start(spec, epoch, start.limit, start.outputs)
        started = self._rooms.book.peek(spec.session, epoch)
        return out.Started(spec.session, epoch, (started.kept or 0) if started is not None else 0)

    def _take_up(self, start: into.Start, found: Session) -> None:
        """Make the session of an import that nobody completes; one in doubt is freed instead (B24)."""
        assert found.move is not None
        kept = self._keep(start, found.move, found)
        if kept:
            self._rooms.book.take_up(found, start.outputs, start.limit, kept)
        else:
            self._discard(found.move)

    def _keep(self, start: into.Start, move: str, found: Session) -> int:
        """Shut the gate and say how many positions of the import can be used: those that were checked."""
        rooms = self._rooms
        try:
            reservation = rooms.staging.get(move)
            rooms.staging.remove(move)
            rooms.book.check_outputs(start.spec, start.outputs)
        except SwapdError:
            return 0
        if start.salvage != move or start.spec != found.spec or not start.outputs:
            return 0
        # The source may have computed more than was ever accepted of it.
        below = len(start.spec.prompt) + len(start.outputs) - 1
        return min(reservation.whole(rooms.engine.info.block_tokens), below)

    def _drop(self, body: into.ToWorker, session: str, epoch: int) -> out.Done:
        """Cancel frees any phase; Release frees only the copy that a move left frozen behind."""
        book = self._rooms.book
        found = book.find(session, epoch)
        if found is None:
            return out.Done(book.spent(session, epoch))
        if isinstance(body, into.Release) and found.stage not in ("frozen", "finished"):
            raise SwapdError(Code.NOT_ELIGIBLE, "nothing here was frozen")
        book.note_spent(session, epoch, self._rooms.engine.recomputed_for(found.key))
        self._forget(found)
        return out.Done(book.spent(session, epoch))

    def _forget(self, session: Session) -> None:
        if session.move is not None:
            self._rooms.staging.remove(session.move)
        self._rooms.book.forget(session)

    def _discard(self, move: str) -> None:
        # The gate first: after this no copy writes into the blocks.
        self._rooms.staging.remove(move)
        found = self._rooms.book.by_move(move)
        if found is not None:
            self._rooms.book.forget(found)

    def _reserve(self, reserve: into.Reserve, now_s: float) -> out.Reserved:
        failpoints.reach("R.before")
        rooms = self._rooms
        session, is_new = rooms.book.reserve(reserve.move, reserve.spec, reserve.epoch)
        if is_new:
            # A removal that waits for the settlement may hold the very blocks that are wanted.
            self.remove_forgotten()
            try:
                rooms.engine.reserve(session.key, reserve.spec)
            except SwapdError:
                rooms.book.forget(session)
                raise
            table = rooms.engine.block_table(session.key)
            rooms.staging.add(
                Reservation(reserve.move, reserve.spec, reserve.epoch, reserve.lease, table, reserve.ttl_s),
                now_s,
            )
        return out.Reserved(reserve.move, rooms.book.blocks_for(reserve.spec.budget))

    def remove_forgotten(self) -> None:
        for key in self._rooms.book.take_removed():
            self._rooms.engine.remove(key)

    def _export(self, ticket: Ticket, export: into.Export) -> None:
        session = self._rooms.book.require(export.session, export.epoch)
        if session.finish is not None:
            raise SwapdError(Code.ALREADY_FINISHED)
        if session.stage not in ("running", "frozen"):
            raise SwapdError(Code.NOT_ELIGIBLE)
        self._rooms.arena.get()
        computed = 0
        table: tuple[int, ...] = ()
        if session.place in ("prefill", "stepping", "held"):
            computed = self._rooms.engine.computed(session.key)
            table = self._rooms.engine.block_table(session.key)
        end = computed // self._rooms.engine.info.block_tokens
        cargo = self._cargo(export, session, table, end, computed)
        self._rooms.precopy.submit(self._rooms.transfers.export(ticket, cargo))

    def _freeze(self, request: Request, freeze: into.Freeze) -> None:
        """Hold all that are ready at this one boundary; the tails are copied beside the next step."""
        failpoints.reach("F.before")
        rooms = self._rooms
        rooms.arena.get()
        items: list[out.FrozenItem] = []
        tails: list[Cargo] = []
        for item in freeze.items:
            status, session, computed = self._freeze_one(item)
            position = session.position if session else 0
            items.append(out.FrozenItem(item.move, status, position, computed))
            if session is not None and status == "frozen":
                table = rooms.engine.block_table(session.key)
                cargo = self._cargo(item, session, table, rooms.book.blocks_for(computed), computed)
                tails.append(cargo._replace(spec=session.spec, outputs=rooms.engine.outputs(session.key)))
        boundary_ms = (time.monotonic() - request.at_s) * 1000
        job = rooms.transfers.export_tails(request.ticket, freeze.batch, items, tails, boundary_ms)
        rooms.tails.submit(job)

    def _freeze_one(self, item: into.FreezeItem) -> tuple[Status, Session | None, int]:
        """H81, H85, H86, B20: eligible is who decodes and has one block left at most."""
        rooms = self._rooms
        session = rooms.book.find(item.session, item.epoch)
        if session is None:
            return ("finished" if rooms.book.ended(item.session, item.epoch) else "unknown"), None, 0
        if session.finish is not None:
            return "finished", session, 0
        if session.stage not in ("running", "frozen") or session.place not in ("stepping", "held"):
            return "not_ready", session, 0
        computed = rooms.engine.computed(session.key)
        if (
            not rooms.engine.decoding(session.key)
            or computed != len(session.spec.prompt) + session.position - 1
        ):
            return "not_ready", session, computed
        if session.stage != "frozen" and rooms.book.blocks_for(computed) - item.from_block > 1:
            return "not_ready", session, computed
        rooms.book.freeze(session, item.move)
        return "frozen", session, computed

    @staticmethod
    def _cargo(
        item: into.Export | into.FreezeItem, session: Session, table: tuple[int, ...], end: int, computed: int
    ) -> Cargo:
        return Cargo(
            item.move,
            session.spec.session,
            session.epoch,
            item.lease,
            table,
            max(item.from_block, 0),
            end,
            computed,
        )

    def _enter(self, checked: Checked) -> None:
        """Let all that verified step from the next settlement on, together."""
        items = tuple(self._enter_one(item, result) for item, result in checked.items)
        prepared = out.Prepared(checked.batch, items, checked.import_ms)
        self._entering.append((checked.ticket, prepared))

    def _enter_one(self, item: into.PrepareItem, result: out.PreparedItem) -> out.PreparedItem:
        book = self._rooms.book
        if not result.ok:
            # A repeat that comes after Activate finds no reservation, but the session.
            known = book.peek(item.session, item.epoch)
            entered = known is not None and known.stage in ("running", "finished")
            return out.PreparedItem(item.move, True) if entered else result
        try:
            book.prepare(item.move, item.outputs, item.limit)
        except SwapdError as error:
            return out.PreparedItem(item.move, False, error.code)
        return result

    def _activate(self, items: tuple[into.SessionEpoch, ...]) -> out.Activated:
        failpoints.reach("V.before")
        runs: list[out.TokenRun] = []
        unknown: list[str] = []
        for item in items:
            session = self._rooms.book.peek(item.session, item.epoch)
            move = session.move if session else None
            held, run = self._rooms.book.activate(item.session, item.epoch)
            if not held:
                unknown.append(item.session)
            elif move is not None:
                self._rooms.staging.remove(move)
            if run is not None:
                runs.append(run)
        self.send(*runs)
        failpoints.reach("V.after")
        return out.Activated(tuple(unknown))

    def send(self, *runs: out.TokenRun | None) -> None:
        """Send tokens in one message, to the coordinator that the engine thread knows of, to no later one."""
        there = tuple(run for run in runs if run is not None)
        if there:
            self._post(self._token_ticket, out.Tokens(self.step, there))

    def _take_over(self, work: Takeover) -> None:
        """The batches of the coordinator before are nobody's; the new one says what it has."""
        self._token_ticket = Ticket(work.connection, 0)
        self._rooms.book.mute()
        if self._quiet:
            self._quiet.clear()
            self._rooms.engine.set_prefill(True)
