"""After the commit: the target owns the session, and the source keeps its copy until that has shown (H68).

    activated, a token durable under e+1       → the source releases
    activated, no reader, one heartbeat since  → the source releases (decision 2)
    activated, and the target is the park      → the source releases: it has all of it, and emits nothing
    target lost, or does not have the session,
      or gives no answer for `decide_s`        → a new transfer back to the source, under e+2 (B22)
    the session ended before it was activated  → both copies are freed (x4)
    a token durable, then the target lost      → released; recovery decides about the target's loss

A release is asked for until the source has answered, or is gone: till then its worker is not empty, whatever
the session does elsewhere, and its drain must not say so (note 3 at L).

There is no roll-back: the re-home is decided by the store, and told to the source only after that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

import trio

from swapd import failpoints
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Activated, Done
from swapd.messages.to_worker import Activate, Cancel, Release, Resume, SessionEpoch
from swapd.migration.ends import end_reason
from swapd.migration.move import Move
from swapd.migration.route import Route
from swapd.migration.transaction import Event, Phase
from swapd.store.ledger import MoveCommit, commit_move

log = logging.getLogger("swapd.migration")

FIRST_TOKEN_POLL_S: Final = 0.25


async def activate(route: Route, moves: Sequence[Move]) -> None:
    """Let the tokens out. Without an answer the moves stay committed: `release` asks again (H72)."""
    if moves:
        await failpoints.pass_by("V.before")
    waiting = []
    for move in moves:
        if move.session.over:
            _end(route, move)
        else:
            waiting.append(move)
    if not waiting:
        return
    items = tuple(SessionEpoch(move.session.id, move.epoch + 1) for move in waiting)
    try:
        answer = await route.target.request(Activate(items), Activated, route.timers.activate_s)
    except SwapdError as error:
        log.warning("activation not acknowledged", extra={"code": error.code})
        return
    for move in waiting:
        if move.session.id in answer.unknown:
            move.reason = Code.SESSION_UNKNOWN
            continue
        move.enter(Event.ACTIVATED)
        move.mark("activated", trio.current_time())
        route.table.regrant(move.session)
    await failpoints.pass_by("V.after")


async def release(route: Route, move: Move) -> None:
    """Wait until the session lives at its target, then free the source; else bring it back (B22).

    Raises `store_failed`: then nobody is told anything before a restart. Cancelled: the move stays committed.
    """
    frozen = move.frozen
    assert frozen is not None
    session = move.session
    heard = route.target.stats
    decide_at = trio.current_time() + route.timers.decide_s
    while not move.over:
        if session.durable > frozen.position:
            await failpoints.pass_by("L.before")
            await _complete(route, move)
            await failpoints.pass_by("L.after")
        elif session.ended:
            if move.phase is Phase.COMMITTED:
                _end(route, move)
            else:
                await _complete(route, move)
        elif route.store.failed:
            raise SwapdError(Code.STORE_FAILED)
        elif not session.over and _missing(route, move, decide_at):
            await _rehome(route, move, frozen.position)
        elif move.phase is Phase.COMMITTED and not session.over:
            await activate(route, [move])
            if move.phase is Phase.COMMITTED:
                await route.table.wait_activity(FIRST_TOKEN_POLL_S)
        elif route.parks or (not session.producing and route.target.stats is not heard):
            await _complete(route, move)
        else:
            await route.table.wait_activity(FIRST_TOKEN_POLL_S)


def _missing(route: Route, move: Move, decide_at: float) -> bool:
    """Whether the target will not run it: gone, without the session, or without an answer (H70)."""
    if not route.target.is_owner(move.target):
        return True
    return move.phase is Phase.COMMITTED and (
        move.reason == Code.SESSION_UNKNOWN or trio.current_time() >= decide_at
    )


async def _complete(route: Route, move: Move) -> None:
    """The session lives at its target. Cancelled: it does all the same, and the source was told so once."""
    if move.phase is Phase.COMMITTED:
        # The acknowledgement was lost; a token says the same (H72).
        move.enter(Event.ACTIVATED)
    move.reason = None
    if not route.parks:
        move.resumed_at = trio.current_time()
        move.mark("first_token", move.resumed_at)
    move.enter(Event.RELEASED)
    move.enter(Event.FINISHED)
    move.outcome = "parked" if route.parks else "completed_native"
    if not await _released(route, move) and not route.source.is_owner(move.source) and not route.parks:
        move.reason = Code.SOURCE_LOST  # rolled forward without it (RF)


async def _released(route: Route, move: Move) -> bool:
    """Have the source free the session; False if it did not say that it has, and is not asked again."""
    while route.source.is_owner(move.source):
        try:
            await route.source.request(Release(move.session.id, move.epoch), Done, route.timers.rpc_s)
            return True
        except SwapdError as error:
            if error.code is not Code.TIMEOUT:
                log.warning("release not acknowledged", extra={"move": move.id, "code": error.code})
                return False
            await route.table.wait_activity(FIRST_TOKEN_POLL_S)
    return False


def _end(route: Route, move: Move) -> None:
    """Ended after the commit, before the target was let run: both copies are freed (x4)."""
    session = move.session
    # The end told the owner it knew, which may have been the source; each is told again under its epoch.
    route.target.tell(Cancel(session.id, move.epoch + 1))
    route.source.tell(Release(session.id, move.epoch))
    move.fail(end_reason(session), Event.ENDED)
    move.outcome = "cancelled"


async def _rehome(route: Route, move: Move, position: int) -> None:
    """A new transfer of ownership back to the pinned source, if no token came under e+1 (B22)."""
    session, source = move.session, move.source
    if not route.source.is_owner(source):
        move.fail(Code.TARGET_LOST)
        move.outcome = "failed"
        return
    epoch = move.epoch + 2
    back = MoveCommit(
        f"{move.id}.back", session.id, move.target, move.epoch + 1, position, source, time.time()
    )
    with trio.CancelScope(shield=True):  # one disk write: what it says has to be told
        result = await route.store.commit(lambda db: commit_move(db, back))
        if result == "committed":
            route.table.change(session, owner=source, epoch=epoch)
    if result != "committed":
        if not session.ended and session.durable <= position:
            move.fail(Code.EPOCH_STALE)
            move.outcome = "failed"
        return  # a token or the end was first: `release` looks again
    # It has not run what it was to run, whether for want of the session or of an answer (H79).
    move.target_fault = Code.SESSION_UNKNOWN if move.reason == Code.SESSION_UNKNOWN else Code.TIMEOUT
    # If the target lives after all, it must not keep what it holds; its tokens are fenced anyway.
    route.target.tell(Cancel(session.id, move.epoch + 1))
    route.source.tell(Resume(session.id, move.epoch, epoch))
    route.table.regrant(session)
    move.fail(Code.TARGET_LOST)
    move.resumed_at = trio.current_time()
    move.outcome = "rehomed_source"
