"""Sessions that leave one worker for another together: the move of `transaction`, acted out.

    reserve   ─┐
    pre-copy  ─┤ each session for itself, side by side, while both engines step
    quiesce    │ both workers set prefill aside
    freeze     │ one message, one step boundary, all that have at most one block left
    prepare    │ the target imports the tails and enters its next step, tokens held back
    commit     │ during that step: one durable write decides
    activate   │ the tokens may leave
    release   ─┘ once the first token under the new epoch is durable

A session that is not ready at the freeze goes on decoding and takes part in the next batch. A failure
ends only the moves it concerns: before the commit the source resumes, after it the store has decided.
Clients of frozen sessions wait from freeze to the target's first token, so nothing is awaited in between
that is not needed for it.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Sequence
from typing import Final

import trio

from swapd.config import Config
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import (
    Activated,
    Done,
    Exported,
    Frozen,
    FrozenItem,
    Imported,
    Prepared,
    Quiesced,
    Reserved,
)
from swapd.messages.to_worker import (
    Activate,
    Discard,
    Export,
    Freeze,
    FreezeItem,
    Import,
    Prepare,
    PrepareItem,
    Quiesce,
    Release,
    Reserve,
    Resume,
    SessionEpoch,
)
from swapd.migration.move import Move
from swapd.migration.transaction import CleanUp, Event, Phase, clean_up
from swapd.sessions.table import SessionTable
from swapd.store.ledger import MoveCommit, commit_move
from swapd.store.moves import note_phase
from swapd.worker.link import WorkerLink, WorkerLost

log = logging.getLogger("swapd.migration")

MAX_ROUNDS: Final = 8
"""Rounds after which a copy that does not catch up is given up without a pause (B20, decision 16)."""
MAX_BATCHES: Final = 8
FIRST_TOKEN_POLL_S: Final = 0.25


class Wave:
    """One group of moves between two workers. `run` ends when each has its outcome."""

    def __init__(
        self,
        config: Config,
        table: SessionTable,
        source: WorkerLink,
        target: WorkerLink,
        batch: str,
        moves: Sequence[Move],
    ) -> None:
        self._timers = config.timers
        self._table = table
        self._store = table.store
        self._source = source
        self._target = target
        self._batch = batch
        self.moves = list(moves)
        ready = source.ready
        assert ready is not None
        self._block_tokens = ready.info.block_tokens
        self._block_bytes = ready.info.block_bytes
        self._window = config.window_tokens
        self._cancelled = False

    def cancel(self) -> None:
        """Bring the moves to a clean end: those not committed are aborted (H61)."""
        self._cancelled = True

    async def run(self) -> None:
        """Carry all moves to their ends. Never raises for one of them; cancelled: aborts what can be."""
        try:
            async with trio.open_nursery() as nursery:
                for move in self.moves:
                    nursery.start_soon(self._approach, move)
            for number in range(MAX_BATCHES):
                waiting = self._in(Phase.PRECOPYING)
                if not waiting:
                    break
                await self._cross(f"{self._batch}.{number}", waiting)
                async with trio.open_nursery() as nursery:
                    for move in self._in(Phase.PRECOPYING):
                        nursery.start_soon(self._guarded_copy, move)
            for move in self._in(Phase.PRECOPYING):
                await self._abort([move], Code.PRECOPY_DIVERGED)
        except BaseException:
            # Cancelled, or the store failed. Only what is surely not committed may be undone.
            with trio.move_on_after(self._timers.decide_s, shield=True):
                if not self._store.failed:
                    await self._abort([m for m in self.moves if not m.over], Code.DRAIN_CANCELLED)
            raise

    # Before the freeze -----------------------------------------------------------------------

    async def _approach(self, move: Move) -> None:
        """Reserve and pre-copy one session."""
        try:
            reserve = Reserve(
                move.id, move.session.record.spec(), move.epoch + 1, move.lease, self._timers.import_orphan_s
            )
            await self._target.request(reserve, Reserved, self._timers.reserve_s)
            move.enter(Event.RESERVED)
            move.enter(Event.COPYING)
            self._ride(move)
            move.copy_started_at = time.time()
            await self._copy(move)
            move.copy_ended_at = time.time()
        except SwapdError as error:
            await self._abort([move], error)

    async def _guarded_copy(self, move: Move) -> None:
        try:
            await self._copy(move)
        except SwapdError as error:
            await self._abort([move], error)

    async def _copy(self, move: Move) -> None:
        """Rounds of pre-copy until at most one block is left for the freeze (B20)."""
        while self._blocks_left(move) > 1:
            self._check(move)
            if move.session.over:
                return
            if move.rounds >= MAX_ROUNDS:
                raise SwapdError(Code.PRECOPY_DIVERGED, f"{move.rounds} rounds")
            export = Export(move.id, move.session.id, move.epoch, move.lease, move.frontier)
            exported = await self._source.request(export, Exported, self._timers.copy_s)
            if not exported.manifest.blocks:
                # The session's first block is still being filled, or its frontier is not published yet.
                await self._table.wait_activity(FIRST_TOKEN_POLL_S)
                continue
            move.rounds += 1
            await self._target.request(Import(move.id, exported.manifest), Imported, self._timers.copy_s)
            move.precopied_bytes += len(exported.manifest.blocks) * self._block_bytes
            move.frontier = exported.frontier

    def _blocks_left(self, move: Move) -> int:
        """Blocks that the freeze would have to carry, by the tokens received so far."""
        computed = len(move.session.record.prompt) + len(move.session.received) - 1
        return -(-computed // self._block_tokens) - move.frontier

    # The pause -------------------------------------------------------------------------------

    async def _cross(self, batch: str, moves: list[Move]) -> None:
        """Quiesce, freeze, prepare, commit, activate; then release outside the pause."""
        crossed: list[Move] = []
        quiesced = await self._quiesce(batch, moves)
        try:
            if quiesced:
                frozen = await self._freeze(batch, moves)
                prepared = await self._prepare(batch, frozen)
                crossed = await self._commit(prepared)
                await self._activate(crossed)
        finally:
            self._unquiesce(batch)
        if crossed:
            async with trio.open_nursery() as nursery:
                for move in crossed:
                    nursery.start_soon(self._release, move)

    async def _quiesce(self, batch: str, moves: list[Move]) -> bool:
        for link in (self._target, self._source):
            try:
                await link.request(Quiesce(batch, True), Quiesced, self._timers.prepare_s)
            except SwapdError as error:
                await self._abort(moves, error)
                return False
        return True

    def _unquiesce(self, batch: str) -> None:
        for link in (self._source, self._target):
            link.tell(Quiesce(batch, False))

    async def _freeze(self, batch: str, moves: list[Move]) -> list[Move]:
        if self._cancelled:
            await self._abort(moves, Code.DRAIN_CANCELLED)
        items = tuple(
            FreezeItem(m.id, m.session.id, m.epoch, m.lease, m.frontier)
            for m in moves
            if not m.over and not m.session.over
        )
        await self._drop_ended(moves)
        if not items:
            return []
        asked_at = trio.current_time()
        try:
            answer = await self._source.request(Freeze(batch, items), Frozen, self._timers.freeze_s)
        except SwapdError as error:
            # Whether they froze is unknown: Resume is idempotent and says so to a running session as well.
            for move in moves:
                if not move.over:
                    move.enter(Event.FROZEN)
            await self._abort(moves, error)
            return []
        by_id = {item.move: item for item in answer.items}
        frozen = []
        for move in moves:
            item = by_id.get(move.id)
            if item is None or move.over:
                continue
            if self._take_frozen(move, item, asked_at):
                self._ride(move)
                frozen.append(move)
        await self._drop_ended(moves)
        lost = [m for m in moves if not m.over and m.reason is not None]
        if lost:
            await self._abort(lost, Code.ALREADY_FINISHED)
        return [m for m in frozen if not m.over]

    def _take_frozen(self, move: Move, item: FrozenItem, at: float) -> bool:
        if item.status == "not_ready":
            move.enter(Event.NOT_READY)
            return False
        if item.status != "frozen":
            move.reason = Code.ALREADY_FINISHED
            return False
        move.enter(Event.FROZEN)
        move.frozen = item
        move.frozen_at = at  # from the command on, as H197 measures
        if item.manifest is not None:
            move.frozen_bytes = len(item.manifest.blocks) * self._block_bytes
        return True

    async def _prepare(self, batch: str, moves: list[Move]) -> list[Move]:
        items = []
        for move in moves:
            frozen = move.frozen
            if frozen is None or frozen.manifest is None or len(move.session.received) != frozen.position:
                # The tokens come before the freeze's answer on the same socket, so a gap is a fault.
                await self._abort([move], Code.MANIFEST_MISMATCH)
                continue
            items.append(
                PrepareItem(
                    move.id,
                    move.session.id,
                    move.epoch + 1,
                    frozen.manifest,
                    tuple(move.session.received),
                    self._prepared_limit(move),
                )
            )
        waiting = [move for move in moves if not move.over]
        if not items:
            return []
        try:
            answer = await self._target.request(
                Prepare(batch, tuple(items)), Prepared, self._timers.prepare_s
            )
        except SwapdError as error:
            await self._abort(waiting, error)
            return []
        by_id = {item.move: item for item in answer.items}
        ready = []
        for move in waiting:
            item = by_id.get(move.id)
            if item is None or not item.ok:
                await self._abort([move], item.code if item is not None and item.code else Code.INTERNAL)
                continue
            move.enter(Event.PREPARED)
            self._ride(move)
            ready.append(move)
        return ready

    def _prepared_limit(self, move: Move) -> int:
        position = len(move.session.received)
        window = self._window if move.session.producing else 0
        return min(position + window, move.session.record.max_new_tokens)

    async def _commit(self, moves: list[Move]) -> list[Move]:
        """One durable write decides for all; a session that ended meanwhile is not moved (x3)."""
        if self._cancelled:
            await self._abort(moves, Code.DRAIN_CANCELLED)
            return []
        await self._drop_ended(moves)
        commits = [self._commit_of(move) for move in moves if not move.over]
        moves = [move for move in moves if not move.over]
        if not moves:
            return []

        def op(db: sqlite3.Connection) -> list[str]:
            return [commit_move(db, commit) for commit in commits]

        # Shielded, one disk write long: after it has been asked for, only its answer says who the owner is.
        with trio.CancelScope(shield=True):
            results = await self._store.commit(op)
            crossed = []
            for move, result in zip(moves, results, strict=True):
                if result == "committed":
                    move.enter(Event.COMMITTED)
                    self._table.change(move.session, owner=move.target, epoch=move.epoch + 1)
                    crossed.append(move)
        for move in moves:
            if move not in crossed:
                await self._abort([move], Code.EPOCH_STALE)
        return crossed

    def _commit_of(self, move: Move) -> MoveCommit:
        frozen = move.frozen
        assert frozen is not None
        return MoveCommit(
            move.id, move.session.id, move.source, move.epoch, frozen.position, move.target, time.time()
        )

    async def _activate(self, moves: list[Move]) -> None:
        if not moves:
            return
        items = tuple(SessionEpoch(move.session.id, move.epoch + 1) for move in moves)
        try:
            answer = await self._target.request(Activate(items), Activated, self._timers.activate_s)
        except SwapdError as error:
            # After the commit: no way back. `_release` waits for a token or for the worker's loss (H72).
            log.warning("activation not acknowledged", extra={"batch": self._batch, "code": error.code})
            return
        for move in moves:
            if move.session.id in answer.unknown:
                continue
            move.enter(Event.ACTIVATED)
            self._table.regrant(move.session)

    # After the commit ------------------------------------------------------------------------

    async def _release(self, move: Move) -> None:
        """Free the source once the first token under the new epoch is durable (H68, decision 2)."""
        frozen = move.frozen
        assert frozen is not None
        heard = self._target.stats
        while not move.session.over:
            if move.session.durable > frozen.position:
                break
            if not self._target.is_owner(move.target):
                await self._rehome(move)
                return
            acknowledged = move.phase is Phase.ACTIVATED and self._target.stats is not heard
            if acknowledged and not move.session.producing:
                break
            await self._table.wait_activity(FIRST_TOKEN_POLL_S)
        if move.phase is Phase.COMMITTED:
            move.enter(Event.ACTIVATED)
        move.resumed_at = trio.current_time()
        self._source.tell(Release(move.session.id, move.epoch))
        move.enter(Event.RELEASED)
        move.enter(Event.FINISHED)
        move.outcome = "completed_native"

    async def _rehome(self, move: Move) -> None:
        """The target is gone before it showed a token: a new transfer back to the pinned source (B22)."""
        frozen = move.frozen
        assert frozen is not None
        session = move.session
        move.fail(Code.TARGET_LOST)
        if not self._source.is_owner(move.source) or session.over:
            move.outcome = "failed"
            return
        back = MoveCommit(
            f"{move.id}.back",
            session.id,
            move.target,
            move.epoch + 1,
            frozen.position,
            move.source,
            time.time(),
        )
        with trio.CancelScope(shield=True):  # one disk write, then one message
            result = await self._store.commit(lambda db: commit_move(db, back))
            if result != "committed":
                move.outcome = "failed"
                return
            self._table.change(session, owner=move.source, epoch=move.epoch + 2)
        self._source.tell(Resume(session.id, move.epoch, move.epoch + 2))
        self._table.regrant(session)
        move.resumed_at = trio.current_time()
        move.outcome = "rehomed_source"

    # Ends ------------------------------------------------------------------------------------

    async def _abort(self, moves: Sequence[Move], why: SwapdError | Code | str) -> None:
        """Before the commit: the target discards, the source goes on by itself (H67)."""
        code: str = why.code if isinstance(why, SwapdError) else str(why)
        for move in moves:
            if move.over:
                continue
            if isinstance(why, WorkerLost):
                code = Code.SOURCE_LOST if why.worker == self._source.name else Code.TARGET_LOST
            owed = clean_up(move.phase)
            move.fail(code)
            log.info("move aborted", extra={"move": move.id, "phase": move.failed_in, "code": code})
            if owed.decide_forward:
                move.outcome = "failed"
                continue
            move.outcome = "aborted_source_resumed"
            await self._undo(move, owed)

    async def _undo(self, move: Move, owed: CleanUp) -> None:
        if owed.resume_source:
            self._source.tell(Resume(move.session.id, move.epoch))
            move.resumed_at = trio.current_time()
            self._table.regrant(move.session)
        if owed.discard_target:
            try:
                # Awaited: the lease's bytes may be lent again only when the target no longer reads them.
                await self._target.request(Discard(move.id), Done, self._timers.rpc_s)
            except SwapdError as error:
                log.info("discard not acknowledged", extra={"move": move.id, "code": error.code})

    async def _drop_ended(self, moves: Sequence[Move]) -> None:
        """Sessions that ended on the way: both copies are freed, nothing was lost (x1, x2, H86)."""
        for move in moves:
            if move.over or not move.session.over:
                continue
            owed = clean_up(move.phase)
            session = move.session
            ending = session.ending
            client = session.record.state == "cancelled" or (
                ending is not None and ending.state == "cancelled"
            )
            move.fail(Code.SESSION_CANCELLED if client else Code.ALREADY_FINISHED, Event.ENDED)
            move.outcome = "cancelled"
            # The source's copy goes with the session: by its own end, or by the Cancel that ended it.
            await self._undo(move, owed._replace(resume_source=False))

    def _check(self, move: Move) -> None:
        if self._cancelled:
            raise SwapdError(Code.DRAIN_CANCELLED)
        if not self._source.is_owner(move.source):
            raise WorkerLost(self._source.name)
        if not self._target.is_owner(move.target):
            raise WorkerLost(self._target.name)

    def _in(self, phase: Phase) -> list[Move]:
        return [move for move in self.moves if move.phase is phase]

    def _ride(self, move: Move) -> None:
        """Let the phase ride along with the next group commit; nobody waits for it (H66)."""
        phase = str(move.phase)
        self._store.post(lambda db: note_phase(db, move.id, phase), lambda _: None)
