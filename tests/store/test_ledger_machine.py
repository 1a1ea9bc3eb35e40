"""Any history of appends, moves, stale owners and ends against a model (H16, H19, H69)."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from swapd.messages.generation import Owner
from swapd.sessions.record import Terminal
from swapd.store.ledger import MoveCommit, append_tokens, assign_owner, commit_move, load_tokens
from swapd.store.moves import finish_move, plan_move
from swapd.store.schema import migrate
from swapd.store.sessions import finish_session, insert_session, load_session
from tests.store.records import append, move, record

OWNERS = (Owner("gpu0", "a"), Owner("gpu1", "b"), Owner("gpu0", "c"))
owners = st.sampled_from(OWNERS)
offsets = st.integers(-3, 2)
tokens = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@dataclass
class Model:
    """What a session must be, kept in the plainest way."""

    tokens: list[int] = field(default_factory=list)
    owner: Owner | None = None
    epoch: int = 0
    end: Terminal | None = None


class Ledger(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        migrate(self.db)
        insert_session(self.db, record("s"))
        self.model = Model()
        self.owners_by_epoch: dict[int, Owner] = {}
        self.moves: dict[str, tuple[MoveCommit, str]] = {}
        self.planned: str | None = None

    def teardown(self) -> None:
        self.db.close()

    def own(self, owner: Owner) -> None:
        self.model.owner, self.model.epoch = owner, self.model.epoch + 1
        assert self.model.epoch not in self.owners_by_epoch
        self.owners_by_epoch[self.model.epoch] = owner

    @rule(owner=owners, epoch=offsets, offset=offsets, ids=tokens, end=st.booleans(), honest=st.booleans())
    def append(
        self, owner: Owner, epoch: int, offset: int, ids: tuple[int, ...], end: bool, honest: bool
    ) -> None:
        model = self.model
        if honest and model.owner is not None:
            owner, epoch = model.owner, 0
        first = len(model.tokens) + 1 + offset
        if honest and offset < 0 < first:
            # A repeat of what is there already, as after a re-attach.
            ids = tuple(model.tokens[first - 1 :]) + ids
        terminal = Terminal("completed", "eos", None, 5.0) if end else None
        got = append_tokens(
            self.db, append("s", first, ids, owner=owner, epoch=model.epoch + epoch, terminal=terminal)
        )
        if model.end is not None:
            expected = "terminal"
        elif owner != model.owner or epoch != 0:
            expected = "stale"
        else:
            whole = [*model.tokens[: max(0, first - 1)], *ids]
            shared = min(len(whole), len(model.tokens))
            fits = 1 <= first <= len(model.tokens) + 1 and whole[:shared] == model.tokens[:shared]
            if not fits or (end and len(whole) < len(model.tokens)):
                expected = "gap"
            else:
                expected = "accepted"
                if len(whole) > len(model.tokens):
                    model.tokens = whole
                model.end = terminal
        assert got.status == expected
        assert got.accepted == len(model.tokens)

    @rule(owner=owners, epoch=st.integers(-1, 1))
    def assign(self, owner: Owner, epoch: int) -> None:
        got = assign_owner(self.db, "s", self.model.epoch + epoch, owner)
        if self.model.end is None and epoch == 0:
            self.own(owner)
            assert got == self.model.epoch
        else:
            assert got is None

    @rule(goes_to=owners)
    def plan(self, goes_to: Owner) -> None:
        model = self.model
        if self.planned is None and model.owner is not None:
            move_id = f"m{len(self.moves)}"
            plan_move(self.db, move(move_id, "s", model.epoch, source=model.owner, target=goes_to))
            commit = MoveCommit(move_id, "s", model.owner, model.epoch, len(model.tokens), goes_to, 6.0)
            self.moves[move_id], self.planned = (commit, "planned"), move_id

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Any move ever planned may say commit, at any time and again."""
        if not self.moves:
            return
        move_id = data.draw(st.sampled_from(sorted(self.moves)))
        commit, state = self.moves[move_id]
        model = self.model
        got = commit_move(self.db, commit)
        if state == "committed":
            assert got == "committed"
        elif model.end is not None:
            assert got == "finished"
        elif state == "aborted" or (model.owner, model.epoch) != (commit.source, commit.epoch):
            assert got == "stale"
        elif commit.position != len(model.tokens):
            assert got == "position"
        else:
            assert got == "committed"
            self.own(commit.target)
            self.moves[move_id], self.planned = (commit, "committed"), None

    @rule(goes_to=owners, epoch=offsets, position=offsets)
    def rehome(self, goes_to: Owner, epoch: int, position: int) -> None:
        """A transfer without a plan, perhaps one that has become wrong meanwhile."""
        model = self.model
        at = model.epoch + epoch
        source = self.owners_by_epoch.get(at, OWNERS[0])
        back = MoveCommit("back", "s", source, at, len(model.tokens) + position, goes_to, 6.0)
        got = commit_move(self.db, back)
        if model.end is not None:
            assert got == "finished"
        elif epoch == -1 and goes_to == model.owner:
            assert got == "committed"
        elif epoch != 0 or model.owner is None:
            assert got == "stale"
        elif position != 0:
            assert got == "position"
        else:
            assert got == "committed"
            self.own(goes_to)

    @rule()
    def abort(self) -> None:
        if self.planned is not None:
            assert finish_move(self.db, self.planned, "aborted_source_resumed", "timeout", None, 7.0)
            assert not finish_move(self.db, self.planned, "failed", None, None, 8.0)
            self.moves[self.planned] = (self.moves[self.planned][0], "aborted")
            self.planned = None

    @rule()
    def cancel(self) -> None:
        # Rarely, so that histories are long.
        if len(self.model.tokens) >= 6:
            end = Terminal("cancelled", None, "session_cancelled", 9.0)
            self.model.end = self.model.end or end
            finish_session(self.db, "s", end)

    @invariant()
    def the_store_is_the_model(self) -> None:
        model = self.model
        stored = load_session(self.db, "s")
        assert stored is not None
        assert load_tokens(self.db, "s") == model.tokens
        assert (stored.owner, stored.epoch, stored.accepted) == (model.owner, model.epoch, len(model.tokens))
        end = model.end
        assert stored.terminal == (end is not None)
        if end is not None:
            assert (stored.state, stored.finish_reason, stored.code) == (
                end.state,
                end.finish_reason,
                end.code,
            )
        positions = [row[0] for row in self.db.execute("SELECT pos FROM tokens ORDER BY pos")]
        assert positions == list(range(1, len(model.tokens) + 1))


TestAnyHistory = Ledger.TestCase
TestAnyHistory.__doc__ = "H19: positions are contiguous and unique, epochs rise, one owner each, one end."
TestAnyHistory.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
