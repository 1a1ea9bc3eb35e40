"""How a move ends before its commit: who is told what (H67, H86; cells x1 to x3, d1 and d2).

A frozen source waits for nobody: it is told to resume before any target is waited for.
A session that has ended on the way is not resumed; its worker frees it by the end's own `Cancel`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from swapd import failpoints
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Done
from swapd.messages.to_worker import Discard, Resume
from swapd.migration.move import Move
from swapd.migration.route import Route
from swapd.migration.transaction import Event, Phase, clean_up
from swapd.sessions.live import LiveSession
from swapd.sessions.salvage import Salvage
from swapd.worker.dialogue import WorkerLost

log = logging.getLogger("swapd.migration")


def abort(route: Route, moves: Sequence[Move], why: SwapdError | Code | str) -> list[Move]:
    """End those moves that are neither over nor committed: their sources go on at once (H67).

    Returns the moves whose targets must `discard`: owed soon, but no client waits for it.
    """
    discards: list[Move] = []
    for move in moves:
        owed = clean_up(move.phase)
        if move.over or owed.decide_forward:
            continue
        if _leave_for_salvage(route, move, _code(route, why)):
            log.info("copy left for its session", extra={"move": move.id, "blocks": move.frontier})
        elif owed.discard_target:
            discards.append(move)
        if move.session.over:
            move.fail(end_reason(move.session), Event.ENDED)
            move.outcome = "cancelled"
            continue
        code = _code(route, why)
        move.fail(code)
        log.info("move aborted", extra={"move": move.id, "phase": move.failed_in, "code": code})
        if code == Code.ALREADY_FINISHED:
            move.outcome = "cancelled"  # H86: its last tokens are on their way
        elif route.source.is_owner(move.source) and code != Code.SESSION_UNKNOWN:
            move.outcome = "aborted_source_resumed"
        else:
            # Its owner is lost, or does not have it, so no later try can do better (H56): recovery decides.
            move.outcome = "failed"
        if owed.resume_source:
            route.source.tell(Resume(move.session.id, move.epoch))
            move.resumed_at = trio.current_time()
            route.table.regrant(move.session)
    return discards


async def discard(route: Route, moves: Sequence[Move]) -> None:
    """Have the target throw away what it holds of ended moves.

    Returns when it has, or `rpc_s` later: the lease's bytes may be lent again only when the target no longer
    reads them. Cancelled: all is told, not all acknowledged.
    """
    async with trio.open_nursery() as nursery:
        for move in moves:
            nursery.start_soon(_discard, route, move)


def end_reason(session: LiveSession) -> Code | str:
    """Why a session that is over needs no move any more."""
    ending = session.ending
    state = ending.state if ending is not None else session.record.state
    code = ending.code if ending is not None else session.record.code
    if state == "cancelled":
        return Code.SESSION_CANCELLED
    if state == "failed" and code is not None:
        return code
    return Code.ALREADY_FINISHED


async def _discard(route: Route, move: Move) -> None:
    if failpoints.broken(failpoints.KEPT_IMPORT):
        return  # for the leak drill, which must be seen to fail
    try:
        await route.target.request(Discard(move.id), Done, route.timers.rpc_s)
    except SwapdError as error:
        log.info("discard not acknowledged", extra={"move": move.id, "code": error.code})


def _leave_for_salvage(route: Route, move: Move, code: str) -> bool:
    """Whether the session, rebuilt at the target, can use what has been copied there (B24).

    Only where it was the source that failed the move: what the target was asked before it has answered, so
    it reads nothing from the lease any more. A source that came back as another process knows no session.
    """
    session = move.session
    copied = move.phase in (Phase.PRECOPYING, Phase.FROZEN) and move.frontier > 0
    lost = code in (Code.SOURCE_LOST, Code.SESSION_UNKNOWN) and not route.source.is_owner(move.source)
    wanted = session.record.allow_replay_fallback and not route.parks
    if not (copied and lost and wanted):
        return False
    session.salvage = Salvage(move.id, move.target, move.frontier)
    return True


def _code(route: Route, why: SwapdError | Code | str) -> str:
    if isinstance(why, WorkerLost):
        return Code.SOURCE_LOST if why.worker == route.source.name else Code.TARGET_LOST
    return why.code if isinstance(why, SwapdError) else str(why)
