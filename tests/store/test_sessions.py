"""The rows of sessions (H2, H3, H15, H16, H176)."""

from __future__ import annotations

import sqlite3
from typing import get_args

import pytest

from swapd.errors import Code, SwapdError
from swapd.sessions.lifecycle import is_terminal
from swapd.sessions.record import Terminal
from swapd.store.ledger import load_tokens
from swapd.store.sessions import (
    delete_expired,
    finish_session,
    insert_session,
    load_session,
    nonterminal_sessions,
    set_state,
)
from swapd.views import SessionState
from tests.store.records import ALICE, DONE, record, running

RETENTION_S = 3600.0


def test_a_session_is_read_as_it_was_written(db: sqlite3.Connection) -> None:
    fresh = record("fresh")
    owned = record("owned", owner=ALICE, epoch=3, accepted=2, state="parked", allow_replay_fallback=True)
    ended = record("ended", state="failed", finished_at=9.5, code="engine_failed")
    for each in (fresh, owned, ended):
        insert_session(db, each)
    assert [load_session(db, name) for name in ("fresh", "owned", "ended")] == [fresh, owned, ended]
    assert nonterminal_sessions(db) == [fresh, owned]
    assert load_session(db, "nobody") is None


def test_an_id_is_used_once(db: sqlite3.Connection) -> None:
    insert_session(db, record("a"))
    with pytest.raises(sqlite3.IntegrityError):
        insert_session(db, record("a"))


@pytest.mark.parametrize("state", get_args(SessionState))
def test_the_table_takes_every_state_of_the_interface(db: sqlite3.Connection, state: SessionState) -> None:
    """H2"""
    finished_at = 1.0 if is_terminal(state) else None
    insert_session(db, record("a", state=state, finished_at=finished_at))
    with pytest.raises(sqlite3.IntegrityError):
        db.execute("UPDATE sessions SET state = 'paused'")


def test_a_session_ends_once(db: sqlite3.Connection) -> None:
    """H3, H16: the second end gets the body of the first."""
    running("a", 2)(db)
    first = finish_session(db, "a", Terminal("cancelled", None, "session_cancelled", 20.0))
    second = finish_session(db, "a", Terminal("failed", None, "engine_failed", 30.0))
    assert (first.state, first.code, first.finished_at, first.accepted) == (
        "cancelled",
        "session_cancelled",
        20.0,
        2,
    )
    assert second == first
    assert not set_state(db, "a", "running")
    assert load_session(db, "a") == first


def test_the_end_of_a_session_that_is_not_there_is_refused(db: sqlite3.Connection) -> None:
    with pytest.raises(SwapdError) as refusal:
        finish_session(db, "nobody", DONE)
    assert refusal.value.code == Code.SESSION_UNKNOWN


def test_a_state_is_noted_but_never_an_end_without_its_reason(db: sqlite3.Connection) -> None:
    running("a")(db)
    assert set_state(db, "a", "migrating")
    stored = load_session(db, "a")
    assert stored is not None
    assert stored.state == "migrating"
    with pytest.raises(ValueError, match="finish_session"):
        set_state(db, "a", "completed")


def test_a_finished_session_is_kept_for_the_retention_and_not_longer(db: sqlite3.Connection) -> None:
    """H15, H176: at 3599 s all of it can be read, at 3600 s nothing is left of it."""
    running("old", 3)(db)
    running("alive", 3)(db)
    finish_session(db, "old", Terminal("completed", "eos", None, 1000.0))
    assert delete_expired(db, before=1000.0 + 3599 - RETENTION_S, limit=10) == 0
    assert load_tokens(db, "old") == [1001, 1002, 1003]
    assert delete_expired(db, before=1000.0 + 3600 - RETENTION_S, limit=10) == 1
    assert load_session(db, "old") is None
    assert db.execute("SELECT count(*) FROM tokens").fetchone() == (3,)
    assert load_tokens(db, "alive") == [1001, 1002, 1003]


def test_retention_removes_a_bounded_number_at_a_time_the_oldest_first(db: sqlite3.Connection) -> None:
    for n in range(5):
        running(f"s{n}", 1)(db)
        finish_session(db, f"s{n}", Terminal("completed", "eos", None, 100.0 - n))
    assert delete_expired(db, before=1000.0, limit=2) == 2
    assert [load_session(db, f"s{n}") is None for n in range(5)] == [False, False, False, True, True]
