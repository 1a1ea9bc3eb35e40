"""One session in memory: its durable transcript, what is on the way to the store, and its readers.

A token passes three marks, each a length: `received` (came from the owner and went to the store),
`durable` (the store has it: accepted), and a reader's cursor. Readers never see past `durable` (H18).
Text and events are pure functions of the transcript, so they are the same bytes after a restart (H21).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import trio

from swapd.api import Event
from swapd.messages.from_worker import TokenRun
from swapd.sessions.record import SessionRecord, Terminal
from swapd.sessions.salvage import Salvage
from swapd.sessions.text import TextStream
from swapd.store.ledger import Append
from swapd.views import SessionState, SessionView

_encode = msgspec.json.Encoder().encode


class LiveSession:
    """State of one session on the Trio thread; only `SessionTable` changes it."""

    def __init__(self, record: SessionRecord, text: TextStream, tokens: Sequence[int], now: float) -> None:
        self.record = record
        self.durable = 0
        self.received: list[int] = []
        self.ending: Terminal | None = None
        self.readers = 0
        self.unread_since: float | None = now
        self.move: str | None = None
        self.recovering = False
        self.waits_to_replay = False
        """Parked, its KV lost, and rebuilt as soon as a worker has room: nobody needs to decide about it."""
        self.salvage: Salvage | None = None
        """What a move left at its target when its source was lost; whoever takes it out answers for it."""
        self.rebuilding: int | None = None
        """The epoch of a replay that has not given its first token: what it cost is not known yet."""
        self.rebuilt_positions: int | None = 0
        """Positions below N - 1 that its last replay computed (H209); None: not known yet."""
        self.begun_anew = False
        """Whether its owner began it from its prompt, after another one had it: no token was shown twice."""
        self.taking = True
        """Off while the owner changes: what the old one still sends could not become durable."""
        self._text = text
        self._created = _encode(
            {"id": record.id, "prompt_tokens": len(record.prompt), "max_new_tokens": record.max_new_tokens}
        )
        self._tokens: list[bytes] = []
        self._terminal: bytes | None = None
        self._changed = trio.lowlevel.ParkingLot()
        for token in tokens:
            self._push(token)
        self.durable = len(self.received)
        if self.ended:
            self._close_text()

    # Reading ---------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def ended(self) -> bool:
        """Whether the end is durable."""
        return self.record.terminal

    @property
    def over(self) -> bool:
        """Whether the end is durable or on its way to the store."""
        return self.ending is not None or self.ended

    @property
    def cursor(self) -> int:
        """The id of the last durable event: tokens count from 1, the terminal event comes after them."""
        return self.durable + (1 if self.ended else 0)

    @property
    def tokens(self) -> int:
        """How many there are of it in memory, the prompt's included."""
        return len(self.record.prompt) + len(self.received)

    @property
    def state(self) -> SessionState:
        """The stored state, or what is being done to the session right now."""
        if self.ended:
            return self.record.state
        if self.recovering:
            return "recovering"
        if self.record.state == "parked":
            return "parked"  # also while it is on its way back: until that is durable, it can stay (B3)
        if self.move is not None:
            return "migrating"
        return "running" if self.durable else self.record.state

    @property
    def producing(self) -> bool:
        """Whether its owner may decode: a reader is there, or the session asked to go on alone (H32)."""
        return self.readers > 0 or self.record.on_disconnect == "continue"

    def outputs(self) -> list[int]:
        """Accepted tokens."""
        return self.received[: self.durable]

    def events(self, after: int, limit: int) -> list[Event]:
        """At most `limit` durable events strictly after a cursor; -1 begins with `created` (H20, H21)."""
        batch: list[Event] = []
        if after < 0:
            batch.append(Event(0, "created", self._created))
        first = max(after, 0) + 1
        last = min(self.durable, first + limit - 1 - len(batch))
        batch.extend(Event(at, "token", self._tokens[at - 1]) for at in range(first, last + 1))
        if self.ended and last == self.durable and after <= self.durable and len(batch) < limit:
            state = self.record.state
            assert state in ("completed", "failed", "cancelled")
            assert self._terminal is not None
            batch.append(Event(self.durable + 1, state, self._terminal))
        return batch

    async def wait_changed(self) -> None:
        """Park until something durable changed. Check before parking: nothing is awaited in between."""
        await self._changed.park()

    def wake(self) -> None:
        """Tell all readers to look again, once a commit."""
        self._changed.unpark_all()

    def view(self) -> SessionView:
        """What its client sees."""
        record = self.record
        return SessionView(
            id=record.id,
            state=self.state,
            model=record.model,
            cursor=self.cursor,
            prompt_tokens=len(record.prompt),
            accepted=self.durable,
            max_new_tokens=record.max_new_tokens,
            worker=record.owner.worker if record.owner is not None and record.state != "parked" else None,
            epoch=record.epoch,
            created_at=record.created_at,
            finished_at=record.finished_at,
            finish_reason=record.finish_reason,
            code=record.code,
            without_kv=self.waits_to_replay and not self.over,
        )

    # Taking tokens ---------------------------------------------------------------------------

    def rebuild(self, epoch: int) -> None:
        """Its replay begins under this epoch, if there is anything to repeat."""
        self.rebuilding = epoch if self.durable else None
        self.rebuilt_positions = None if self.durable else 0

    def rebuilt(self, run: TokenRun) -> bool:
        """Enter what the replay cost. False: this run does not say, or it was said already."""
        if run.recomputed is None or self.rebuilding != run.epoch:
            return False
        self.priced(run.recomputed)
        return True

    def priced(self, positions: int) -> None:
        """It is known what its replay cost; no run will say it again."""
        self.rebuilding = None
        self.rebuilt_positions = positions

    def take(self, run: TokenRun, now: Callable[[], float]) -> Append | None:
        """Take a run from the owner; what is new of it goes to the store. None: nothing new.

        A stop string ends the session with the token that completes it; tokens after it are dropped and
        the end is one transaction with the tokens (H17).
        """
        skip = len(self.received) + 1 - run.first_pos
        if self.over or not self.taking or skip < 0:
            return None
        first_pos = len(self.received) + 1
        ids: list[int] = []
        stopped = False
        for token in run.ids[skip:]:
            ids.append(token)
            if self._push(token):
                stopped = True
                break
        terminal: Terminal | None = None
        if stopped:
            terminal = Terminal("completed", "stop", None, now())
        elif run.finish == "engine_failed":
            terminal = Terminal("failed", None, "engine_failed", now())
        elif run.finish is not None and len(run.ids) >= skip:
            reason = "stop" if run.finish == "stop_token" else run.finish
            terminal = Terminal("completed", reason, None, now())
        if not ids and terminal is None:
            return None
        self.ending = terminal
        owner = self.record.owner
        assert owner is not None
        return Append(self.id, owner, self.record.epoch, first_pos, tuple(ids), terminal)

    def accept(self, durable: int, terminal: Terminal | None) -> None:
        """The store has the tokens up to `durable`, and the end if there is one."""
        self.durable = max(self.durable, durable)
        if terminal is not None:
            self.close(terminal)
        self.wake()

    def close(self, terminal: Terminal) -> None:
        """Enter the durable end."""
        del self.received[self.durable :]
        self.record = msgspec.structs.replace(
            self.record,
            state=terminal.state,
            finish_reason=terminal.finish_reason,
            code=terminal.code,
            finished_at=terminal.at,
            accepted=self.durable,
        )
        self._close_text()
        self.wake()

    def _push(self, token: int) -> bool:
        step = self._text.push(token)
        self.received.append(token)
        self._tokens.append(_encode({"pos": len(self.received), "token_id": token, "text": step.text}))
        return step.stopped

    def _close_text(self) -> None:
        record = self.record
        self._terminal = _encode(
            {
                "finish_reason": record.finish_reason,
                "code": record.code,
                "accepted": self.durable,
                "text": self._text.flush(),
            }
        )
