"""The worker's book: which sessions and reservations it holds, and what each command does to them.

Pure. It owns no thread and no engine; `EngineLoop` calls it between two steps and carries out what
`settle` returns. Rules:

- a session is known by (session, epoch), a reservation by its move too; a command that names another epoch
  never touches it (H104), and what is gone already is answered as if it had just gone;
- the ledger: budgets of all sessions and reservations, frozen ones included, never exceed the usable blocks,
  and their number never exceeds the engine's (so that no engine has to preempt);
- tokens leave only where `Session.may_emit` says so, and are kept until a grant covers them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from swapd.engines.base import Arrival, StepToken
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import EngineInfo, InventoryItem, TokenRun
from swapd.messages.generation import GenerationSpec
from swapd.messages.to_worker import Grant
from swapd.worker.session import Session

ENDED_KEPT: Final = 4096
"""Sessions that ended here lately: a repeated Start must not begin again, a late Freeze hears `finished`."""


class Settlement(NamedTuple):
    """What the engine has to be told before its next step, in this order."""

    enter: tuple[Session, ...]
    arrive: tuple[Arrival, ...]
    hold: tuple[str, ...]
    unhold: tuple[str, ...]


class Book:
    """All sessions of one worker. Not thread-safe: the engine thread's own."""

    def __init__(self, info: EngineInfo) -> None:
        self._info = info
        self._sessions: dict[tuple[str, int], Session] = {}
        self._keys: dict[str, Session] = {}
        self._moves: dict[str, Session] = {}
        self._ended: OrderedDict[tuple[str, int], bool] = OrderedDict()
        self._spent: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._removed: list[str] = []
        self.fenced = 0

    # looking up

    def find(self, session: str, epoch: int) -> Session | None:
        """The session under exactly this epoch; another epoch here counts as fenced (H104)."""
        found = self._sessions.get((session, epoch))
        if found is None and self.newest_epoch(session) is not None:
            self.fenced += 1
        return found

    def peek(self, session: str, epoch: int) -> Session | None:
        """As `find`, but nobody is fenced by it."""
        return self._sessions.get((session, epoch))

    def require(self, session: str, epoch: int) -> Session:
        """As `find`. Raises `epoch_stale`, `already_finished` or `session_unknown`."""
        found = self.find(session, epoch)
        if found is not None:
            return found
        newest = self.newest_epoch(session)
        if newest is not None and newest > epoch:
            raise SwapdError(Code.EPOCH_STALE, f"epoch {newest} is here")
        if self._ended.get((session, epoch)):
            raise SwapdError(Code.ALREADY_FINISHED)
        raise SwapdError(Code.SESSION_UNKNOWN)

    def by_key(self, key: str) -> Session | None:
        return self._keys.get(key)

    def by_move(self, move: str) -> Session | None:
        return self._moves.get(move)

    def newest_epoch(self, session: str) -> int | None:
        epochs = [epoch for name, epoch in self._sessions if name == session]
        return max(epochs, default=None)

    def ended(self, session: str, epoch: int) -> bool | None:
        """Whether a session that is gone had finished by itself; None if it never was here."""
        return self._ended.get((session, epoch))

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)

    # the ledger

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._info.block_tokens)

    def charged_blocks(self) -> int:
        return sum(self.blocks_for(s.spec.budget) for s in self if s.finish is None)

    def check_integrity(self) -> None:
        """Raise AssertionError when the ledger or an index is wrong."""
        assert self.charged_blocks() <= self._info.usable_blocks
        assert set(map(id, self._keys.values())) == set(map(id, self._sessions.values()))
        for session in self:
            assert session.position - session.accepted == len(session.tokens)
        assert all(self._sessions[s.spec.session, s.epoch] is s for s in self._moves.values())

    def _charge(self, spec: GenerationSpec, full: Code) -> None:
        if not spec.prompt:
            raise SwapdError(Code.PROMPT_EMPTY)
        self._check_tokens(spec.prompt)
        if spec.max_new_tokens < 1 or spec.budget > self._info.max_model_len:
            raise SwapdError(Code.BUDGET_EXCEEDED, f"{spec.budget} of {self._info.max_model_len} tokens")
        running = sum(1 for s in self if s.finish is None)
        need = self.blocks_for(spec.budget)
        free = self._info.usable_blocks - self.charged_blocks()
        if running >= self._info.max_num_seqs:
            raise SwapdError(full, f"{running} of {self._info.max_num_seqs} sessions")
        if need > free:
            raise SwapdError(full, f"{need} blocks wanted, {free} free")

    def _check_tokens(self, ids: Iterable[int]) -> None:
        if not all(0 <= one < self._info.vocab_size for one in ids):
            raise SwapdError(Code.INVALID_REQUEST, "a token id is outside of the vocabulary")

    def check_outputs(self, spec: GenerationSpec, outputs: tuple[int, ...]) -> None:
        """Raise for tokens that a session of this kind cannot be rebuilt from."""
        self._check_tokens(outputs)
        if len(outputs) >= spec.max_new_tokens:
            raise SwapdError(Code.BUDGET_EXCEEDED, f"{len(outputs)} of {spec.max_new_tokens} tokens exist")

    # commands

    def start(self, spec: GenerationSpec, epoch: int, limit: int, outputs: tuple[int, ...]) -> None:
        """Take a session in; one that is or was here already is left alone."""
        name = (spec.session, epoch)
        if name in self._sessions or name in self._ended:
            return
        newest = self.newest_epoch(spec.session)
        if newest is not None and newest > epoch:
            self.fenced += 1
            raise SwapdError(Code.EPOCH_STALE, f"epoch {newest} is here")
        self._charge(spec, Code.CAPACITY)
        self.check_outputs(spec, outputs)
        count = len(outputs)
        self._add(Session(spec, epoch, _key(spec, epoch), "running", limit, count, count, outputs))

    def take_up(self, session: Session, outputs: tuple[int, ...], limit: int, kept: int) -> None:
        """Let a reservation whose first `kept` positions are filled be rebuilt from there (B24)."""
        if session.move is not None:
            self._moves.pop(session.move, None)
            session.move = None
        session.stage = "running"
        session.outputs = outputs
        session.position = session.accepted = len(outputs)
        session.limit = limit
        session.kept = kept

    def reserve(self, move: str, spec: GenerationSpec, epoch: int) -> tuple[Session, bool]:
        """Book a reservation; False beside it when it was there already. Raises `target_full`."""
        known = self._moves.get(move)
        if known is not None:
            if (known.spec.session, known.epoch) != (spec.session, epoch):
                raise SwapdError(Code.MANIFEST_MISMATCH, "the move is another session's")
            return known, False
        if (spec.session, epoch) in self._sessions:
            raise SwapdError(Code.TARGET_FULL, "another move of this session is still here")
        newest = self.newest_epoch(spec.session)
        if newest is not None and newest > epoch:
            self.fenced += 1
            raise SwapdError(Code.EPOCH_STALE, f"epoch {newest} is here")
        self._charge(spec, Code.TARGET_FULL)
        session = Session(spec, epoch, _key(spec, epoch), "reserved", 0, 0, 0, place="reserved", move=move)
        self._add(session)
        return session, True

    def grant(self, grant: Grant) -> TokenRun | None:
        """Take a credit. What it says is the latest; to a new coordinator the tokens go out again."""
        session = self.find(grant.session, grant.epoch)
        if session is None:
            return None
        session.limit = grant.limit
        session.accept(grant.accepted)
        run = session.run_after(session.accepted) if session.muted else None
        session.muted = False
        self._settle_finished(session)
        return run if session.may_emit else None

    def resend(self, session: str, epoch: int, accepted: int, limit: int) -> TokenRun | None:
        """Send again what comes after `accepted`. Raises `cursor_ahead` where tokens are gone or not yet."""
        found = self.require(session, epoch)
        if found.stage not in ("reserved", "prepared") and not found.accepted <= accepted <= found.position:
            raise SwapdError(
                Code.CURSOR_AHEAD, f"{accepted} asked, {found.accepted} to {found.position} here"
            )
        found.limit = limit
        found.accept(accepted)
        found.muted = False
        run = found.run_after(accepted)
        self._settle_finished(found)
        return run if found.may_emit else None

    def prepare(self, move: str, outputs: tuple[int, ...], limit: int) -> None:
        """Let a filled reservation step with its tokens held back. Repeats are no-ops."""
        session = self._moves.get(move)
        if session is None:
            raise SwapdError(Code.LEASE_EXPIRED)
        if session.stage != "reserved":
            return
        if not 0 < len(outputs) < session.spec.max_new_tokens:
            raise SwapdError(Code.MANIFEST_MISMATCH, "nothing is left to generate")
        self._check_tokens(outputs)
        session.stage = "prepared"
        session.outputs = outputs
        session.position = session.accepted = len(outputs)
        session.limit = limit

    def activate(self, session: str, epoch: int) -> tuple[bool, TokenRun | None]:
        """Let the held tokens out. False: not held here; a repeat lets nothing out twice."""
        found = self.find(session, epoch)
        if found is None:
            return (session, epoch) in self._ended, None
        if found.stage == "reserved":
            return False, None
        if found.stage != "prepared" and not found.muted:
            return True, None
        if found.stage == "prepared":
            found.stage = "finished" if found.finish else "running"
        found.muted = False
        if found.move is not None:
            self._moves.pop(found.move, None)
            found.move = None
        return True, found.run_after(found.accepted)

    def freeze(self, session: Session, move: str) -> None:
        session.stage = "frozen"
        session.move = move

    def resume(self, session: str, epoch: int, new_epoch: int | None) -> None:
        """Let a frozen session go on, under `new_epoch` if given (B22). Repeats are no-ops."""
        if new_epoch is not None and new_epoch != epoch:
            if (session, new_epoch) in self._sessions:
                return
            if new_epoch < epoch:
                raise SwapdError(Code.EPOCH_STALE, f"{new_epoch} is before {epoch}")
        found = self.require(session, epoch)
        if found.stage in ("reserved", "prepared"):
            raise SwapdError(Code.NOT_ELIGIBLE, "nothing here was frozen")
        if found.stage == "frozen":
            found.stage = "running"
            found.move = None
        if new_epoch is not None and new_epoch != epoch:
            del self._sessions[session, epoch]
            self._note_ended((session, epoch), finished=False)
            found.epoch = new_epoch
            self._sessions[session, new_epoch] = found

    def forget(self, session: Session) -> None:
        """Drop a session; the engine hears of its key by `take_removed`, before anything enters."""
        name = (session.spec.session, session.epoch)
        del self._sessions[name]
        del self._keys[session.key]
        if session.move is not None:
            self._moves.pop(session.move, None)
        self._removed.append(session.key)
        # An import that was thrown away never ran under its epoch: a replay may begin under the same one.
        if session.stage not in ("reserved", "prepared"):
            self._note_ended(name, finished=session.finish is not None)

    def note_spent(self, session: str, epoch: int, recomputed: int) -> None:
        """Keep what a replay cost that is dropped before its first token: whoever asks again is told so."""
        if recomputed:
            self._spent[session, epoch] = recomputed
        while len(self._spent) > ENDED_KEPT:
            self._spent.popitem(last=False)

    def spent(self, session: str, epoch: int) -> int:
        """Positions computed again for a session that was dropped before its first token; else 0."""
        return self._spent.get((session, epoch), 0)

    # steps

    def take_removed(self) -> tuple[str, ...]:
        """Engine keys of sessions that were dropped since the last call."""
        removed, self._removed = tuple(self._removed), []
        return removed

    def settle(self) -> Settlement:
        """Decide what the engine must be told, and take it as told."""
        enter: list[Session] = []
        arrive: list[Arrival] = []
        hold: list[str] = []
        unhold: list[str] = []
        for session in self:
            wants = session.wants_steps
            if session.place == "stepping" and not wants:
                hold.append(session.key)
                session.place = "held"
            elif session.place == "held" and wants:
                unhold.append(session.key)
                session.place = "stepping"
            elif session.place == "outside" and wants:
                enter.append(session)
                session.place = "prefill"
            elif session.place == "reserved" and wants:
                arrive.append(Arrival(session.key, session.outputs, session.kept))
                session.place = "stepping" if session.kept is None else "prefill"
        return Settlement(tuple(enter), tuple(arrive), tuple(hold), tuple(unhold))

    def take(
        self, tokens: Sequence[StepToken], rebuilt: Sequence[tuple[str, int]] = ()
    ) -> tuple[TokenRun, ...]:
        """Enter a step's tokens; returns what may leave now, one run a session."""
        for key, recomputed in rebuilt:
            if key in self._keys:
                self._keys[key].recomputed = recomputed
        first: dict[str, int] = {}
        for token in tokens:
            session = self._keys.get(token.key)
            if session is None:
                continue
            first.setdefault(token.key, session.position)
            session.append(token.token_id, token.finish)
        runs = (
            self._keys[key].run_after(before) for key, before in first.items() if self._keys[key].may_emit
        )
        return tuple(run for run in runs if run is not None)

    def fail(self, session: Session) -> TokenRun | None:
        """End a session that the engine would not take."""
        session.end("engine_failed")
        return session.run_after(session.position) if session.may_emit else None

    def mute(self) -> None:
        """A new coordinator took over: send nothing until it has said what it has."""
        for session in self:
            session.muted = True

    # reports

    def inventory(self) -> tuple[InventoryItem, ...]:
        return tuple(session.item() for session in self)

    def phases(self) -> Counter[str]:
        return Counter(session.phase for session in self)

    def unaccepted(self) -> int:
        return sum(len(session.tokens) for session in self)

    def names(self, batch: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
        """A step's batch by session, for the recorded schedule."""
        return tuple((self._keys[key].spec.session, n) for key, n in batch if key in self._keys)

    def _add(self, session: Session) -> None:
        self._sessions[session.spec.session, session.epoch] = session
        self._keys[session.key] = session
        if session.move is not None:
            self._moves[session.move] = session

    def _settle_finished(self, session: Session) -> None:
        if session.stage == "finished" and session.accepted == session.position:
            self.forget(session)

    def _note_ended(self, name: tuple[str, int], *, finished: bool) -> None:
        self._ended[name] = finished
        while len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)


def _key(spec: GenerationSpec, epoch: int) -> str:
    return f"{spec.session}.{epoch}"
