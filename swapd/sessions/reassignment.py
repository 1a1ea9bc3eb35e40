"""A session goes to another owner without its KV: begun anew from its prompt, or rebuilt from its transcript.

Owner first, then start: from the moment that the store has the new owner, only that one's tokens can be
accepted (H19). So there are never two, whoever dies in between; the next start finds the owner without the
session and decides again.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from swapd.config import Config
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Started
from swapd.messages.generation import Owner
from swapd.messages.to_worker import Cancel, Start
from swapd.migration.ledger import CapacityLedger
from swapd.sessions.admission import Admission
from swapd.sessions.live import LiveSession
from swapd.sessions.table import SessionTable
from swapd.store.ledger import assign_owner
from swapd.worker.link import WorkerLink

log = logging.getLogger("swapd.sessions.recovery")

Note = Callable[[sqlite3.Connection, Owner], None]
"""Writes what is to be known of a change of owner, in the same transaction; it is told the new one."""


class KeptRoom(NamedTuple):
    """Room on a worker that new sessions leave to one that waits for it."""

    worker: str
    tokens: int


class Reassignment:
    """Finds room for sessions on other workers, and starts them there."""

    def __init__(
        self,
        config: Config,
        table: SessionTable,
        ledger: CapacityLedger,
        admission: Admission,
        links: Mapping[str, WorkerLink],
    ) -> None:
        self.salvaged_tokens = 0
        self._config = config
        self._table = table
        self._store = table.store
        self._ledger = ledger
        self._admission = admission
        self._links = links

    # Room ------------------------------------------------------------------------------------

    def place(self, session: LiveSession, ledger: CapacityLedger) -> WorkerLink:
        """Charge a replay to the worker that it goes to; `ledger` may be a copy, to try that out.

        Raises `replay_not_permitted`, `not_eligible`, `no_target`, `target_full`.
        """
        if not session.record.allow_replay_fallback:
            raise SwapdError(Code.REPLAY_NOT_PERMITTED)
        if session.durable == 0 or session.over:
            raise SwapdError(Code.NOT_ELIGIBLE)
        return self._elsewhere(session, ledger)

    def place_anew(self, session: LiveSession, ledger: CapacityLedger) -> WorkerLink:
        """Charge a session of which nothing has come to the worker that is to begin it, as `place` does.

        That repeats nothing, so it needs no permission. Raises `not_eligible`, `no_target`, `target_full`.
        """
        if session.received or session.over:
            raise SwapdError(Code.NOT_ELIGIBLE)
        return self._elsewhere(session, ledger)

    def has_room(self, session: LiveSession) -> bool:
        """Whether another worker that admits could take it now."""
        owner, tokens = session.record.owner, session.record.spec().budget
        return any(
            self._admission.admitting(name) and capacity.room_for(tokens)
            for name in self._links
            if (owner is None or name != owner.worker) and (capacity := self._ledger.worker(name)) is not None
        )

    def precedence(self, waiting: Iterable[LiveSession]) -> KeptRoom | None:
        """Whose room is kept, and where: that of the first which some open worker could hold (B3).

        Only one worker is held to it, the one that is nearest to having the room.
        """
        for session in waiting:
            owner, tokens = session.record.owner, session.record.spec().budget
            able = [
                (capacity.usable_blocks - capacity.committed, name)
                for name in self._links
                if (owner is None or name != owner.worker) and self._admission.admitting(name)
                if (capacity := self._ledger.worker(name)) is not None and capacity.could_hold(tokens)
            ]
            if able:
                return KeptRoom(max(able)[1], tokens)
        return None

    def choose(
        self, session: LiveSession, links: Iterable[WorkerLink], ledger: CapacityLedger
    ) -> WorkerLink | None:
        """Charge a session to the first of these workers that admits and has room."""
        tokens = session.record.spec().budget
        for link in links:
            if self._admission.admitting(link.name) and ledger.charge(link.name, session.id, tokens):
                return link
        return None

    def _elsewhere(self, session: LiveSession, ledger: CapacityLedger) -> WorkerLink:
        owner = session.record.owner
        links = [link for name, link in self._links.items() if owner is None or name != owner.worker]
        if not any(self._admission.admitting(link.name) for link in links):
            raise SwapdError(Code.NO_TARGET)
        link = self.choose(session, links, ledger)
        if link is None:
            raise SwapdError(Code.TARGET_FULL)
        return link

    # Start -----------------------------------------------------------------------------------

    async def start(
        self,
        session: LiveSession,
        link: WorkerLink,
        *,
        cold: bool = False,
        leaving: tuple[Owner | None, int] = (None, 0),
        unbegun: Note | None = None,
        salvage: str = "",
    ) -> None:
        """Make `link` the owner, durably, and have it start from the transcript. Its room is charged already.

        `leaving`: the owner that drops it then, and its epoch. `cold` keeps the target from using what its
        prefix cache has. `unbegun`: only if nothing is accepted, which the store decides; it is written
        beside the new owner. `salvage`: the move whose copied blocks the target has (B24).

        Raises `target_lost`, `epoch_stale`, and with `unbegun` `not_eligible`, before anything has changed;
        and whatever the worker refuses with, under a new epoch.
        """
        owner, expected = link.owner, session.record.epoch
        if owner is None:
            raise SwapdError(Code.TARGET_LOST)

        def assign(db: sqlite3.Connection) -> int | None:
            epoch = assign_owner(db, session.id, expected, owner, unbegun=unbegun is not None)
            if epoch is not None and unbegun is not None:
                unbegun(db, owner)
            return epoch

        # The append of every earlier token was posted before this, so it is answered by now.
        session.taking = False
        try:
            epoch = await self._store.commit(assign)
            if epoch is None:
                raise SwapdError(Code.EPOCH_STALE if unbegun is None else Code.NOT_ELIGIBLE)
            self._table.change(session, owner=owner, epoch=epoch)
        finally:
            session.taking = True
        old, old_epoch = leaving
        if old is not None:
            self._ledger.free(old.worker, session.id)
            self._links[old.worker].tell(Cancel(session.id, old_epoch))
        outputs = tuple(session.outputs())
        spec = session.record.spec()
        if cold:
            spec = msgspec.structs.replace(spec, salt=f"{spec.salt}.{epoch}")
        if session.over:
            # Its end may have been told to the owner before this one.
            raise SwapdError(Code.ALREADY_FINISHED)
        session.rebuild(epoch)
        start = Start(spec, epoch, self._table.limit(session), outputs, salvage)
        try:
            started = await link.request(start, Started, self._config.timers.decide_s)
        except BaseException:
            link.tell(Cancel(session.id, epoch))  # whether it started is unknown
            raise
        session.begun_anew = not outputs
        self.salvaged_tokens += started.kept
        if started.kept:
            log.info("copied blocks taken up", extra={"session": session.id, "positions": started.kept})
        self._table.regrant(session)
