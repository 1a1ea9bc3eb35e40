"""All sessions in memory, and the one way for tokens to get from a worker to a reader.

    worker → link → `take_tokens` → store (FIFO) → `accepted` → readers woken, credit to the worker

Nothing here waits: appends are posted to the store and answered in order. The table is also where a
session's ends meet: by its engine, a stop string, its client, or the service (H3, H16).
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec
import trio

from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Tokens
from swapd.messages.generation import PARK, GenerationSpec, Owner
from swapd.messages.to_worker import Cancel, Grant, ToWorker
from swapd.migration.ledger import CapacityLedger
from swapd.sessions.live import LiveSession
from swapd.sessions.record import SessionRecord, Terminal
from swapd.sessions.text import TextStream
from swapd.sessions.tokenizer import Tokenizer
from swapd.store.ledger import Append, Appended, append_tokens, load_tokens
from swapd.store.sessions import finish_session, load_session
from swapd.store.writer import Store

log = logging.getLogger("swapd.sessions")

FencedBy = Literal["owner", "gap", "store"]
"""Why tokens were not taken: not from the owner under its epoch, not the next ones, refused by the store."""

ENDED_KEPT: Final = 256
"""Ended sessions kept in memory for late readers; older ones are read from the store again."""
ENDED_TOKENS_KEPT: Final = 16_384
"""Of all of those together, at some 170 bytes each; the last one to end is kept whatever its length."""


class OwnerLink(Protocol):
    """What the table needs of a worker's link."""

    @property
    def name(self) -> str: ...
    @property
    def owner(self) -> Owner | None: ...
    def is_owner(self, owner: Owner | None) -> bool: ...
    def credit(self, session: str) -> None: ...
    def tell(self, body: ToWorker) -> None: ...


class ParkOwner(OwnerLink, Protocol):
    """The owner of parked sessions. What it held in memory alone is gone after a restart."""

    def holds(self, session: str) -> bool: ...


class SessionTable:
    """Sessions by id. Lives on the Trio thread."""

    def __init__(
        self,
        store: Store,
        tokenizer: Tokenizer,
        ledger: CapacityLedger,
        links: Mapping[str, OwnerLink],
        *,
        window: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.ledger = ledger
        self._links = links
        self.fenced: Counter[str] = Counter()
        """By `FencedBy`."""
        self.accepted_tokens = 0
        self.on_event: Callable[[str, LiveSession], None] = lambda kind, session: None
        self.on_orphan: Callable[[LiveSession], None] = lambda session: None
        self.on_rebuilt: Callable[[LiveSession], None] = lambda session: None
        """A replay gave its first token: what it cost is known."""
        self.on_unpriced: Callable[[LiveSession], None] = lambda session: None
        """A session ended before its replay gave a token: only its owner knows what that cost."""
        self.park: ParkOwner | None = None
        """The owner of parked sessions, where the service has one (B3)."""
        self._tokenizer = tokenizer
        self._window = window
        self._wall = wall
        self._live: dict[str, LiveSession] = {}
        self._ended: OrderedDict[str, LiveSession] = OrderedDict()
        self._activity = trio.lowlevel.ParkingLot()

    # Looking up ------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[LiveSession]:
        """Sessions that have not ended; safe to change the table meanwhile."""
        return iter(list(self._live.values()))

    def get(self, session: str) -> LiveSession | None:
        """A session in memory: every one that has not ended, and some that have."""
        return self._live.get(session) or self._ended.get(session)

    def owned_by(self, worker: str) -> list[LiveSession]:
        """Sessions that have not ended and whose owner is an incarnation of that worker."""
        return [
            s for s in self._live.values() if s.record.owner is not None and s.record.owner.worker == worker
        ]

    def transcript(self, session: str) -> tuple[GenerationSpec, list[int]] | None:
        """What a session in memory was asked for, and its accepted tokens."""
        found = self.get(session)
        return None if found is None else (found.record.spec(), found.outputs())

    def owner_link(self, owner: Owner | None) -> OwnerLink | None:
        """The way to an owner, connected or not: its worker's link, or the park."""
        if owner is None:
            return None
        return self.park if owner.worker == PARK else self._links.get(owner.worker)

    def owner_is_there(self, session: LiveSession) -> bool:
        """Whether a session's owner is connected, and if that is the park, has its KV."""
        owner = session.record.owner
        link = self.owner_link(owner)
        if link is None or not link.is_owner(owner):
            return False
        return self.park is None or link is not self.park or self.park.holds(session.id)

    def unresolved(self, session: LiveSession) -> bool:
        """Whether somebody has to decide what becomes of it: its owner is gone, and it does not wait."""
        if session.ended or session.waits_to_replay or self.store.failed:
            return False
        return not self.owner_is_there(session)

    async def find(self, session: str) -> LiveSession:
        """From memory or the store. Raises `session_unknown`."""
        found = self.get(session)
        if found is not None:
            return found

        def load(db: sqlite3.Connection) -> tuple[SessionRecord, list[int]] | None:
            record = load_session(db, session)
            return None if record is None else (record, load_tokens(db, session))

        loaded = await self.store.read(load)
        if loaded is None:
            raise SwapdError(Code.SESSION_UNKNOWN)
        return self.get(session) or self.add(*loaded)

    def add(self, record: SessionRecord, tokens: Sequence[int] = ()) -> LiveSession:
        """Take a stored session into memory."""
        text = TextStream(self._tokenizer.decoder(), record.stop)
        session = LiveSession(record, text, tokens, trio.current_time())
        if session.ended:
            self._keep_ended(session)
        else:
            self._live[session.id] = session
        return session

    def forget_before(self, wall: float) -> None:
        """Drop sessions that ended before that time: their retention is over (H15)."""
        for session in list(self._ended.values()):
            if session.record.finished_at is not None and session.record.finished_at <= wall:
                del self._ended[session.id]

    # Tokens ----------------------------------------------------------------------------------

    def take_tokens(self, link: OwnerLink, message: Tokens) -> None:
        """Send a step's tokens to the store; what does not come from the owner is fenced (H19, H40)."""
        for run in message.runs:
            session = self._live.get(run.session)
            if session is None:
                continue
            if not link.is_owner(session.record.owner) or run.epoch != session.record.epoch:
                self.fenced["owner"] += 1
                continue
            if run.first_pos > len(session.received) + 1:
                self.fenced["gap"] += 1
                continue
            if session.rebuilt(run):
                self.on_rebuilt(session)
            append = session.take(run, self._wall)
            if append is not None:
                self._post(session, append, link)

    def _post(self, session: LiveSession, append: Append, link: OwnerLink) -> None:
        def done(result: Appended | BaseException) -> None:
            if isinstance(result, BaseException):
                return  # The store has failed: nothing more is acknowledged (H160).
            if result.status != "accepted":
                self.fenced["store"] += 1
                log.error(
                    "tokens refused by the store", extra={"session": session.id, "reason": result.status}
                )
                return
            self.accepted_tokens += result.accepted - session.durable
            session.accept(result.accepted, append.terminal)
            if append.terminal is not None:
                if append.terminal.finish_reason == "stop":
                    link.tell(Cancel(session.id, append.epoch))
                self._end(session)
            link.credit(session.id)
            self._activity.unpark_all()

        self.store.post(lambda db: append_tokens(db, append), done)

    def grants(self, sessions: Iterable[str]) -> list[Grant]:
        """The latest grant of each session (one credit message a worker and step)."""
        grants = []
        for name in sessions:
            session = self.get(name)
            if session is not None:
                grants.append(Grant(session.id, session.record.epoch, session.durable, self.limit(session)))
        return grants

    def limit(self, session: LiveSession) -> int:
        """Up to where its owner may compute: the window past what is durable, while it has a reader (H32).

        Nothing more is asked for while the store cannot keep it, or only in its last room (H160).
        """
        if session.over or not session.producing or self.store.failed or self.store.full:
            return session.durable
        return min(session.durable + self._window, session.record.max_new_tokens)

    def regrant(self, session: LiveSession) -> None:
        """The session's limit may have changed: tell its owner."""
        owner = session.record.owner
        link = self.owner_link(owner)
        if link is not None and link.is_owner(owner):
            link.credit(session.id)

    def regrant_all(self) -> None:
        """All limits may have changed: the store can keep tokens again."""
        for session in self:
            self.regrant(session)

    # Readers ---------------------------------------------------------------------------------

    def reader_came(self, session: LiveSession) -> None:
        """One more reader: decoding may go on."""
        session.readers += 1
        session.unread_since = None
        if session.readers == 1:
            self.regrant(session)

    def reader_left(self, session: LiveSession) -> None:
        """One reader less; without any the session pauses and its grace begins (H14, H32)."""
        session.readers -= 1
        if session.readers == 0:
            session.unread_since = trio.current_time()
            self.regrant(session)

    # Ends and changes ------------------------------------------------------------------------

    async def finish(self, session: LiveSession, state: str, code: Code | None) -> None:
        """End a session durably; one that has ended stays as it is (H3, H16)."""
        if session.ended:
            return
        assert state in ("failed", "cancelled")
        terminal = Terminal("failed" if state == "failed" else "cancelled", None, code, self._wall())
        if session.ending is None:
            session.ending = terminal
        # Shielded, one disk write long: whoever asked may go, the end that is in the store must be here, too.
        with trio.CancelScope(shield=True):
            record = await self.store.commit(lambda db: finish_session(db, session.id, terminal))
        if not session.ended:
            assert record.state in ("completed", "failed", "cancelled")
            assert record.finished_at is not None
            session.durable = max(session.durable, record.accepted)
            session.close(Terminal(record.state, record.finish_reason, record.code, record.finished_at))
            owner = session.record.owner
            link = self.owner_link(owner)
            if link is not None and link.is_owner(owner):
                link.tell(Cancel(session.id, session.record.epoch))
            self._end(session)
        self._activity.unpark_all()

    def change(self, session: LiveSession, **changes: object) -> None:
        """Take over what the store has just made durable (owner, epoch, state)."""
        was_parked, owner = session.record.state == "parked", changes.get("owner")
        if isinstance(owner, Owner) and (owner.worker == PARK) != was_parked:
            changes["state"] = "running" if was_parked else "parked"
        session.record = msgspec.structs.replace(session.record, **changes)
        session.wake()
        self._activity.unpark_all()

    def _end(self, session: LiveSession) -> None:
        self._live.pop(session.id, None)
        self._keep_ended(session)
        if session.move is None:
            owner = session.record.owner
            if owner is not None:
                self.ledger.free(owner.worker, session.id)
        self.on_event("session", session)
        if session.rebuilding is not None:
            self.on_unpriced(session)

    def _keep_ended(self, session: LiveSession) -> None:
        self._ended[session.id] = session
        self._ended.move_to_end(session.id)
        # Readers hold their own reference, so dropping one here takes nothing from them.
        tokens = sum(kept.tokens for kept in self._ended.values())
        while len(self._ended) > 1 and (len(self._ended) > ENDED_KEPT or tokens > ENDED_TOKENS_KEPT):
            tokens -= self._ended.popitem(last=False)[1].tokens

    async def wait_activity(self, at_most_s: float) -> None:
        """Return when a session made progress, ended or changed owner, or after `at_most_s`."""
        with trio.move_on_after(at_most_s):
            await self._activity.park()

    def notify(self) -> None:
        """Something that waiters of `wait_activity` look at has changed."""
        self._activity.unpark_all()
