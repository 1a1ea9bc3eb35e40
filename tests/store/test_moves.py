"""The rows of moves (H66, H67, H76)."""

from __future__ import annotations

import sqlite3

import pytest

from swapd.store.ledger import MoveCommit, commit_move
from swapd.store.moves import finish_move, load_move, note_phase, open_moves, plan_move
from swapd.views import SessionOutcome
from tests.store.records import ALICE, BOB, move, running

STATS = SessionOutcome("s", "completed_native", None, "finished", target="gpu1", frozen_ms=12.5, rounds=2)


def test_the_durable_steps_of_a_move_are_planned_committed_finished(db: sqlite3.Connection) -> None:
    """H66"""
    running("s", 2)(db)
    planned = move("m", "s", drain="d")
    plan_move(db, planned)
    assert load_move(db, "m") == planned
    note_phase(db, "m", "frozen")
    assert [(m.phase, m.state) for m in open_moves(db)] == [("frozen", "planned")]
    assert commit_move(db, MoveCommit("m", "s", ALICE, 1, 2, BOB, 30.0)) == "committed"
    assert [(m.phase, m.state) for m in open_moves(db)] == [("committed", "committed")]
    note_phase(db, "m", "activated")
    assert finish_move(db, "m", "completed_native", None, STATS, 40.0)
    assert open_moves(db) == []
    finished = load_move(db, "m")
    assert finished is not None
    assert (finished.state, finished.phase, finished.outcome) == ("finished", "activated", "completed_native")
    assert (finished.stats, finished.finished_at, finished.drain) == (STATS, 40.0, "d")


def test_a_move_has_one_outcome(db: sqlite3.Connection) -> None:
    """H67: a repeated abort changes nothing."""
    plan_move(db, move("m", "s"))
    assert finish_move(db, "m", "aborted_source_resumed", "step_timeout", None, 40.0)
    assert not finish_move(db, "m", "failed", "source_lost", None, 50.0)
    note_phase(db, "m", "prepared")
    plan_move(db, move("m", "s"))
    finished = load_move(db, "m")
    assert finished is not None
    assert (finished.outcome, finished.reason, finished.phase) == (
        "aborted_source_resumed",
        "step_timeout",
        "planned",
    )


def test_a_session_has_one_planned_move_at_a_time(db: sqlite3.Connection) -> None:
    """H76"""
    plan_move(db, move("m1", "s"))
    with pytest.raises(sqlite3.IntegrityError):
        plan_move(db, move("m2", "s"))
    finish_move(db, "m1", "cancelled", "drain_cancelled", None, 40.0)
    plan_move(db, move("m2", "s"))
    assert [m.id for m in open_moves(db)] == ["m2"]
    assert load_move(db, "nobody") is None
