"""What must be so after every event, read from the store itself, not from what the coordinator says of it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

from swapd.errors import Code
from swapd.messages.generation import PARK
from swapd.migration.drains import DRAIN_TRANSITIONS
from swapd.migration.outcomes import REASONS_OF
from swapd.views import Outcome

if TYPE_CHECKING:
    from tests.migration.model.lab import Lab

OUTCOMES: Final = frozenset(get_args(Outcome))


class Row(NamedTuple):
    """A session as the store has it."""

    key: int
    worker: str | None
    incarnation: str | None
    epoch: int
    accepted: int
    end: tuple[str, str | None, str | None] | None


class Truth:
    """Remembers what was true, and holds it against what is."""

    def __init__(self, database: Path) -> None:
        self._path = database
        self._db: sqlite3.Connection | None = None
        self._rows: dict[str, Row] = {}
        self._tokens: dict[str, list[int]] = {}
        self._owners: dict[tuple[str, int], tuple[str | None, str | None]] = {}
        self._recovering_since: dict[str, float] = {}

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

    def owner(self, session: str) -> tuple[str | None, int] | None:
        """Incarnation and epoch that own a session now."""
        row = self._read(session)
        return None if row is None else (row.incarnation, row.epoch)

    def check(self, lab: Lab) -> None:
        """Raise AssertionError where something is as it must never be."""
        for client in lab.clients:
            session = client.session
            assert session is not None
            row = self._read(session)
            assert row is not None, "a session that its client knows of is gone"
            self._check_owner(session, row)
            self._check_transcript(session, row)
            tokens = self._tokens[session]
            assert tuple(tokens) == client.reference[: len(tokens)], "not the tokens of an undisturbed engine"
            assert client.shown == tokens[: len(client.shown)], "shown, and not durable"
            assert client.ends <= 1
            assert client.end is None or (row.end is not None and row.end[0] == client.end)
            self._check_pinned(lab, session, row)
        for worker in lab.workers.values():
            if not worker.gone.is_set():
                worker.book.check_integrity()
        if lab.site is not None:
            lab.site.leases.check_integrity()

    def _check_owner(self, session: str, row: Row) -> None:
        """One owner an epoch, epochs rise, and an end is the last thing that happens."""
        owner = (row.worker, row.incarnation)
        assert self._owners.setdefault((session, row.epoch), owner) == owner, "two owners in one epoch"
        before = self._rows.get(session)
        if before is not None:
            assert row.epoch >= before.epoch, "an epoch fell"
            if before.end is not None:
                assert row == before, "something happened after the end"
        self._rows[session] = row

    def _check_transcript(self, session: str, row: Row) -> None:
        """Accepted tokens are appended, never changed, without a gap."""
        assert self._db is not None
        rows = self._db.execute(
            "SELECT pos, token_id FROM tokens WHERE session_key = ? ORDER BY pos", (row.key,)
        ).fetchall()
        assert [pos for pos, _ in rows] == list(range(1, row.accepted + 1)), "a gap"
        tokens = [token for _, token in rows]
        before = self._tokens.get(session, [])
        assert tokens[: len(before)] == before, "accepted tokens changed"
        self._tokens[session] = tokens

    def _check_pinned(self, lab: Lab, session: str, row: Row) -> None:
        """The KV is with the owner that the store names, until another one has shown that it has it (H68)."""
        site = lab.site
        live = site.table.get(session) if site is not None else None
        if site is None or live is None or row.end is not None or live.over or not row.accepted:
            return
        worker = lab.workers.get(row.worker or "")
        if live.recovering or site.store.failed or not site.recovery.reconciled:
            return
        if row.worker == PARK or worker is None or worker.gone.is_set():
            return
        if worker.ready.incarnation != row.incarnation:
            return
        here = [one for one in worker.book if one.spec.session == session]
        assert any(
            one.epoch == row.epoch or (one.stage == "frozen" and one.epoch < row.epoch) for one in here
        ), f"its owner {row.worker} does not have {session}: {worker.book.inventory()}"

    def check_ends(self, lab: Lab) -> None:
        """At rest: how every session, move and drain ended."""
        assert self._db is not None
        for client in lab.clients:
            row = self._rows[client.session or ""]
            assert row.end is not None
            state, _, code = row.end
            assert client.end == state
            assert tuple(client.shown) == client.reference[: row.accepted]
            if state == "completed":
                assert row.accepted == client.count, "completed too early"
            elif state == "cancelled":
                assert client.cancelled
            else:
                assert (state, code) == ("failed", "recovery_unavailable")
                assert lab.losses, "a session was lost, and nobody had died"
        moves = self._db.execute("SELECT outcome, state, reason FROM moves").fetchall()
        assert all(state == "finished" and outcome in OUTCOMES for outcome, state, _ in moves), moves
        drains = self._db.execute("SELECT state, sessions FROM drains").fetchall()
        assert all(not DRAIN_TRANSITIONS[state] for state, _ in drains), drains
        told = [(each["outcome"], each["reason"]) for _, row in drains for each in json.loads(row)]
        for outcome, reason in [(move[0], move[2]) for move in moves] + told:
            # What is in no row becomes `internal` (H55); nothing here has an error of its own.
            assert reason in REASONS_OF[outcome], (outcome, reason)
            assert reason != Code.INTERNAL, (outcome, reason)
        open_sessions = self._db.execute("SELECT count(*) FROM sessions WHERE finished_at IS NULL")
        assert open_sessions.fetchone() == (0,)

    def moves(self) -> list[tuple[str, str | None]]:
        """Outcome and reason of each move, in order."""
        assert self._db is not None
        return self._db.execute("SELECT outcome, reason FROM moves ORDER BY key").fetchall()

    def _read(self, session: str) -> Row | None:
        if self._db is None:
            if not self._path.exists():
                return None
            self._db = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, check_same_thread=False)
        found = self._db.execute(
            "SELECT key, worker, incarnation, epoch, accepted, finished_at, state, finish_reason, code"
            " FROM sessions WHERE id = ?",
            (session,),
        ).fetchone()
        if found is None:
            return None
        end = None if found[5] is None else (found[6], found[7], found[8])
        return Row(found[0], found[1], found[2], found[3], found[4], end)
