"""A session that has to leave its worker, and for which the park has no room, waits without its KV (B3).

It is parked as others are, but for the KV: its stream stays open, its readers get the same notices, its
lifetime and its grace count on. Once a worker has room `Recovery` computes it again from its transcript, so
this is for those alone whose clients permit replay.
"""

from __future__ import annotations

import logging

import trio

from swapd.messages.to_worker import Cancel
from swapd.parking.link import OWNER
from swapd.sessions.live import LiveSession
from swapd.sessions.table import SessionTable
from swapd.store.ledger import assign_owner

log = logging.getLogger("swapd.parking")


async def set_down(table: SessionTable, session: LiveSession) -> None:
    """Free a session's KV and let it wait to be replayed.

    One durable write decides: before it the session is its worker's, after it whoever starts next lets it
    wait as well. Left alone is one that does not permit replay, has no token yet, or is in other hands.
    Raises `store_failed`. Cancelled: as it was, or set down.
    """
    owner, epoch = session.record.owner, session.record.epoch
    busy = session.over or session.recovering or session.move is not None
    if busy or owner is None or session.durable == 0 or not session.record.allow_replay_fallback:
        return
    session.recovering = True
    # What was sent before is on its way to the store; what the worker still sends is computed again.
    session.taking = False
    try:
        with trio.CancelScope(shield=True):  # one disk write: what is in the store must hold here, too
            new = await table.store.commit(lambda db: assign_owner(db, session.id, epoch, OWNER))
            if new is None:
                return  # it ended meanwhile
            if not session.ended:
                session.waits_to_replay = True
                table.change(session, owner=OWNER, epoch=new)
        table.ledger.free(owner.worker, session.id)
        link = table.owner_link(owner)
        if link is not None and link.is_owner(owner):
            link.tell(Cancel(session.id, epoch))
        log.info("session set down", extra={"session": session.id, "worker": owner.worker})
        table.on_event("session", session)
    finally:
        session.taking = True
        session.recovering = False
        session.wake()
        table.notify()
