"""Sessions that leave one worker for another together: the move of `transaction`, acted out.

    reserve   ─┐
    pre-copy  ─┤ each session for itself, side by side, while both engines step  (`precopy`)
    quiesce    │ both workers set prefill aside
    freeze     │ one message, one step boundary, all that have at most one block left
    prepare    │ the target imports the tails and enters its next step, tokens held back
    commit     │ during that step: one durable write decides
    activate   │ the tokens may leave  (`succession`)
    release   ─┘ once the first token under the new epoch is durable

A session that is not ready at the freeze goes on decoding and takes part in the next batch, which does not
wait for this one's end. A failure ends only the moves it concerns: before the commit the source resumes
(`ends`), after it the store has decided. Clients of frozen sessions wait from freeze to the target's first
token, so nothing is awaited in between that is not needed for it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Final

import trio

from swapd import failpoints
from swapd.config import Config
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Frozen, FrozenItem, Prepared, Quiesced
from swapd.messages.to_worker import Freeze, FreezeItem, Prepare, PrepareItem, Quiesce, Release
from swapd.migration.ends import abort, discard
from swapd.migration.move import Move
from swapd.migration.precopy import blocks_left, copy, reserve
from swapd.migration.quarantine import target_fault
from swapd.migration.route import Peer, Route
from swapd.migration.succession import activate, release
from swapd.migration.transaction import Event, Phase
from swapd.sessions.table import SessionTable
from swapd.store.ledger import MoveCommit, commit_move

MAX_BATCHES: Final = 8
LEFT_FOR_THE_QUIET: Final = 2
"""Blocks that a session may still have when prefill is set aside: the full one of them is copied then."""


class Wave:
    """One group of moves between two workers. `run` ends when each has its outcome."""

    def __init__(
        self,
        config: Config,
        table: SessionTable,
        source: Peer,
        target: Peer,
        batch: str,
        moves: Sequence[Move],
        *,
        permit: Callable[[], None],
    ) -> None:
        """`permit` raises why a move may not begin, just before the target is asked for room."""
        self._permit = permit
        self._route = Route.between(config, table, source, target)
        self._batch = batch
        self.moves = list(moves)
        self._discards: list[Move] = []
        self._crossing = 0
        """Batches in their pauses: while there is one, both workers keep prefill aside."""
        self._withdrawn: Code | None = None

    @property
    def target(self) -> str:
        """The worker that the sessions go to."""
        return self._route.target.name

    def withdraw(self, why: Code) -> None:
        """Bring the moves to a clean end: those not committed are aborted, with `why` (H61)."""
        self._withdrawn = why
        for move in self.moves:
            move.withdrawn = why

    async def run(self) -> None:
        """Carry all moves to their ends. Raises only what fails the store.

        Cancelled: what is surely not committed is aborted; a committed move stays so, for the next start.
        """
        try:
            async with trio.open_nursery() as nursery:
                for move in self.moves:
                    nursery.start_soon(self._approach, move, LEFT_FOR_THE_QUIET)
            # A batch that is frozen goes on by itself, so that the next one need not wait for its end.
            async with trio.open_nursery() as crossing:
                for number in range(MAX_BATCHES):
                    await self._catch_up(most=LEFT_FOR_THE_QUIET)
                    waiting = self._in(Phase.PRECOPYING)
                    if not waiting:
                        break
                    await crossing.start(self._cross, f"{self._batch}.{number}", waiting)
                self._abort(self._in(Phase.PRECOPYING), Code.PRECOPY_DIVERGED)
            await self._discard()
        except BaseException:
            with trio.move_on_after(self._route.timers.decide_s, shield=True):
                # A store that failed has the last word, and gives it after a restart: nobody is told (SF).
                if not self._route.store.failed:
                    self._abort(self.moves, Code.DRAIN_CANCELLED)
                    await self._discard()
            raise

    async def _approach(self, move: Move, most: int) -> None:
        """Reserve, if that is not done, and pre-copy one session until at most so many blocks are left."""
        try:
            if move.phase is Phase.PLANNED:
                if move.withdrawn is not None:
                    raise SwapdError(move.withdrawn)
                self._permit()  # H136; past this it goes on whatever expires (H135)
                await reserve(self._route, move)
            await copy(self._route, move, most)
        except SwapdError as error:
            self._abort([move], error)
            await self._discard()

    async def _catch_up(self, most: int) -> None:
        """Copy what was filled while the others of the wave copied."""
        async with trio.open_nursery() as nursery:
            for move in self._in(Phase.PRECOPYING):
                if blocks_left(self._route, move) > most:
                    nursery.start_soon(self._approach, move, most)

    # The pause -------------------------------------------------------------------------------

    async def _cross(
        self, batch: str, moves: list[Move], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Quiesce, freeze, prepare, commit, activate; then release outside the pause.

        Started once it is known who is frozen.
        """
        crossed: list[Move] = []
        self._crossing += 1
        try:
            if self._crossing > 1 or await self._quiesce(moves):
                await self._catch_up(most=1)
                frozen = await self._freeze(batch, [move for move in moves if not move.over])
                task_status.started()
                prepared = await self._prepare(batch, frozen)
                self._break_order(prepared)
                crossed = await self._commit(prepared)
                await activate(self._route, crossed)
            else:
                task_status.started()
        finally:
            self._crossing -= 1
            if not self._crossing:
                for link in (self._route.source, self._route.target):
                    link.tell(Quiesce(self._batch, False))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._discard)
            for move in crossed:
                nursery.start_soon(release, self._route, move)

    async def _quiesce(self, moves: list[Move]) -> bool:
        """Have both workers set prefill aside, side by side: each answers at a step boundary of its own."""
        route = self._route
        quiesce, within_s = Quiesce(self._batch, True), route.timers.prepare_s
        refused: list[SwapdError] = []

        async with trio.open_nursery() as nursery:

            async def quiet_target() -> None:
                try:
                    await route.ask_target(moves, quiesce, Quiesced, within_s, imports=False)
                except SwapdError as error:
                    refused.append(error)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(quiet_target)
            try:
                await route.source.request(quiesce, Quiesced, within_s)
            except SwapdError as error:
                refused.append(error)
                nursery.cancel_scope.cancel()
        if refused:
            self._abort(moves, refused[0])
        return not refused

    async def _freeze(self, batch: str, moves: list[Move]) -> list[Move]:
        route = self._route
        if self._withdrawn is not None:
            self._abort(moves, self._withdrawn)
        self._drop_ended(moves)
        asked = [move for move in moves if not move.over]
        if not asked:
            return []
        items = tuple(FreezeItem(m.id, m.session.id, m.epoch, m.lease, m.frontier) for m in asked)
        await failpoints.pass_by("F.before")
        asked_at = trio.current_time()
        try:
            answer = await route.source.request(Freeze(batch, items), Frozen, route.timers.freeze_s)
        except BaseException as error:
            # Whether they froze is unknown, so a Resume is owed (H88).
            for move in asked:
                move.enter(Event.FROZEN)
            if not isinstance(error, SwapdError):
                raise
            self._abort(asked, error)
            return []
        by_id = {item.move: item for item in answer.items}
        for move in asked:
            code = self._take_frozen(move, by_id.get(move.id), asked_at)
            move.mark("frozen", trio.current_time())
            move.timings_ms |= {"boundary": answer.boundary_ms, "export": answer.export_ms}
            if code is not None:
                self._abort([move], code)
        await failpoints.pass_by("F.after")
        self._drop_ended(asked)
        return [move for move in asked if move.phase is Phase.FROZEN]

    def _take_frozen(self, move: Move, item: FrozenItem | None, at: float) -> Code | str | None:
        """Enter what the source says of one session; the reason if its move ends with that."""
        if item is not None and item.status == "not_ready":
            move.enter(Event.NOT_READY)
            return None
        if item is not None and item.status == "finished":
            return Code.ALREADY_FINISHED
        if item is not None and item.status == "unknown":
            return Code.SESSION_UNKNOWN
        move.enter(Event.FROZEN)
        if item is None:
            return Code.INTERNAL
        if item.code is not None:
            return item.code
        move.frozen = item
        move.frozen_at = at  # from the command on, as H197 measures
        if item.manifest is not None:
            move.frozen_bytes = len(item.manifest.blocks) * self._route.block_bytes
            tail = sum(entry.valid for entry in item.manifest.blocks)
            move.loaded = move.frontier * self._route.block_tokens + tail
        self._route.ride(move)
        return None

    async def _prepare(self, batch: str, moves: list[Move]) -> list[Move]:
        route = self._route
        if moves:
            await failpoints.pass_by("T.before")
        items = [item for move in moves if (item := self._prepare_item(move)) is not None]
        prepared = {item.move for item in items}
        # The tokens come before the freeze's answer on the same socket, so a gap is a fault.
        self._abort([move for move in moves if move.id not in prepared], Code.MANIFEST_MISMATCH)
        waiting = [move for move in moves if not move.over]
        if not waiting:
            return []
        await failpoints.pass_by("I.before")
        try:
            prepare = Prepare(batch, tuple(items))
            answer = await route.ask_target(waiting, prepare, Prepared, route.timers.prepare_s, imports=True)
        except SwapdError as error:
            self._abort(waiting, error)
            return []
        results = {result.move: result for result in answer.items}
        for move in waiting:
            result = results.get(move.id)
            if result is None or not result.ok:
                code = result.code if result is not None and result.code else Code.INTERNAL
                move.target_fault = target_fault(code, imports=True)
                self._abort([move], code)
                continue
            move.enter(Event.PREPARED)
            move.mark("prepared", trio.current_time())
            move.timings_ms["import"] = answer.import_ms
            route.ride(move)
        await failpoints.pass_by("I.after")
        return [move for move in waiting if move.phase is Phase.PREPARED]

    def _prepare_item(self, move: Move) -> PrepareItem | None:
        """The tail and all outputs; None if the two do not fit together."""
        frozen, session = move.frozen, move.session
        if frozen is None or frozen.manifest is None or len(session.received) != frozen.position:
            return None
        window = self._route.window if session.producing else 0
        limit = min(frozen.position + window, session.record.max_new_tokens)
        outputs = tuple(session.received)
        return PrepareItem(move.id, session.id, move.epoch + 1, frozen.manifest, outputs, limit)

    async def _commit(self, moves: list[Move]) -> list[Move]:
        """One durable write decides for all; a session that ended meanwhile is not moved (x3)."""
        route = self._route
        if self._withdrawn is not None:
            self._abort(moves, self._withdrawn)
        self._drop_ended(moves)
        moves = [move for move in moves if not move.over]
        if not moves:
            return []
        await failpoints.pass_by("T.after")
        await failpoints.pass_by("K.before")
        commits = [_commit_of(move) for move in moves]

        def op(db: sqlite3.Connection) -> list[str]:
            return [commit_move(db, commit) for commit in commits]

        # Shielded, one disk write long: after it has been asked for, only its answer says who the owner is.
        with trio.CancelScope(shield=True):
            results = await route.store.commit(op)
            for move, result in zip(moves, results, strict=True):
                if result == "committed":
                    move.enter(Event.COMMITTED)
                    move.mark("committed", trio.current_time())
                    route.table.change(move.session, owner=move.target, epoch=move.epoch + 1)
        await failpoints.pass_by("K.after")
        self._abort(moves, Code.EPOCH_STALE)
        return [move for move in moves if move.phase is Phase.COMMITTED]

    def _break_order(self, moves: Sequence[Move]) -> None:
        """For the crash drill, which must be seen to fail: release before the commit, as nobody may."""
        if failpoints.broken(failpoints.COMMIT_ORDER):
            for move in moves:
                self._route.source.tell(Release(move.session.id, move.epoch))

    # Ends ------------------------------------------------------------------------------------

    def _abort(self, moves: Sequence[Move], why: SwapdError | Code | str) -> None:
        self._discards += abort(self._route, moves, why)

    def _drop_ended(self, moves: Sequence[Move]) -> None:
        """Sessions that ended on the way need no move; nothing was lost (x1, x2, H86)."""
        self._abort([move for move in moves if move.session.over], Code.ALREADY_FINISHED)

    async def _discard(self) -> None:
        owed, self._discards = self._discards, []
        await discard(self._route, owed)

    def _in(self, phase: Phase) -> list[Move]:
        return [move for move in self.moves if move.phase is phase]


def _commit_of(move: Move) -> MoveCommit:
    frozen = move.frozen
    assert frozen is not None
    return MoveCommit(
        move.id, move.session.id, move.source, move.epoch, frozen.position, move.target, time.time()
    )
