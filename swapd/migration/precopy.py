"""The way to the freeze: room at the target, then rounds of copying while both engines step (B20)."""

from __future__ import annotations

import time
from typing import Final

import trio

from swapd import failpoints
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Exported, Imported, Reserved
from swapd.messages.to_worker import Export, Import, Reserve
from swapd.migration.move import Move
from swapd.migration.route import Route
from swapd.migration.transaction import Event

MAX_ROUNDS: Final = 8
"""Rounds after which a copy that does not catch up is given up without a pause (B20, decision 16)."""
LOOK_AGAIN_S: Final = 0.25


async def reserve(route: Route, move: Move) -> None:
    """Have the target hold the session's whole budget. Raises the target's refusal, or `WorkerLost`."""
    message = Reserve(
        move.id, move.session.record.spec(), move.epoch + 1, move.lease, route.timers.import_orphan_s
    )
    await failpoints.pass_by("R.before")
    try:
        await route.ask_target([move], message, Reserved, route.timers.reserve_s, imports=False)
    except BaseException as error:
        if not isinstance(error, SwapdError) or error.code == Code.TIMEOUT:
            # Whether it reserved is unknown, so a Discard is owed.
            move.enter(Event.RESERVED)
        raise
    move.enter(Event.RESERVED)
    move.enter(Event.COPYING)
    route.ride(move)
    await failpoints.pass_by("R.after")


async def copy(route: Route, move: Move, most: int) -> None:
    """Copy what is there, then until at most `most` blocks are left, or the session is over.

    Raises `precopy_diverged` after `MAX_ROUNDS`, `step_timeout` when no block appears within `copy_s`, and
    what the workers refuse. Cancelled: what is copied stays copied.
    """
    if move.copy_started_at is None:
        move.copy_started_at = time.time()
    progress_at = trio.current_time()
    while blocks_left(route, move) > (most if move.rounds else 1) and not move.session.over:
        route.check(move)
        if move.withdrawn is not None:
            raise SwapdError(move.withdrawn)
        if move.rounds >= MAX_ROUNDS:
            raise SwapdError(Code.PRECOPY_DIVERGED, f"{move.rounds} rounds")
        export = Export(move.id, move.session.id, move.epoch, move.lease, move.frontier)
        await failpoints.pass_by("C.before")
        exported = await route.source.request(export, Exported, route.timers.copy_s)
        if not exported.manifest.blocks:
            # The tokens are here, but the engine's frontier is not published yet.
            if trio.current_time() - progress_at > route.timers.copy_s:
                raise SwapdError(Code.STEP_TIMEOUT, "the source exports nothing")
            await route.table.wait_activity(LOOK_AGAIN_S)
            continue
        move.rounds += 1
        message = Import(move.id, exported.manifest)
        await route.ask_target([move], message, Imported, route.timers.copy_s, imports=True)
        move.precopied_bytes += len(exported.manifest.blocks) * route.block_bytes
        move.frontier = exported.frontier
        progress_at = trio.current_time()
        await failpoints.pass_by("C.after")
    move.copy_ended_at = time.time()


def blocks_left(route: Route, move: Move) -> int:
    """Blocks that the freeze would have to carry, by the tokens received so far."""
    computed = len(move.session.record.prompt) + len(move.session.received) - 1
    return -(-computed // route.block_tokens) - move.frontier
