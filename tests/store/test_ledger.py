"""Who may append what (H16, H19, H40, H69)."""

from __future__ import annotations

import sqlite3

import pytest

from swapd.messages.generation import Owner
from swapd.sessions.record import Terminal
from swapd.store.ledger import Appended, MoveCommit, append_tokens, assign_owner, commit_move, load_tokens
from swapd.store.moves import finish_move, load_move, plan_move
from swapd.store.sessions import finish_session, insert_session, load_session
from tests.store.records import ALICE, BOB, DONE, append, move, record, running


def commit(position: int, *, move_id: str = "m", session: str = "s", epoch: int = 1) -> MoveCommit:
    return MoveCommit(move_id, session, ALICE, epoch, position, BOB, at=30.0)


def test_tokens_of_the_owner_are_accepted_in_order(db: sqlite3.Connection) -> None:
    """H19"""
    running("s")(db)
    assert append_tokens(db, append("s", 1, (5, 6))) == Appended("accepted", 2)
    assert append_tokens(db, append("s", 3, (7,))) == Appended("accepted", 3)
    assert load_tokens(db, "s") == [5, 6, 7]
    assert load_tokens(db, "s", after=1, limit=1) == [6]
    stored = load_session(db, "s")
    assert stored is not None
    assert stored.accepted == 3


@pytest.mark.parametrize(
    ("owner", "epoch"),
    [(BOB, 1), (Owner("gpu0", "incarnation-x"), 1), (ALICE, 0), (ALICE, 2)],
    ids=["another worker", "an old incarnation", "an old epoch", "an epoch to come"],
)
def test_tokens_of_anyone_else_are_stale(db: sqlite3.Connection, owner: Owner, epoch: int) -> None:
    """H19, H40"""
    running("s", 2)(db)
    assert append_tokens(db, append("s", 3, (9,), owner=owner, epoch=epoch)) == Appended("stale", 2)
    assert load_tokens(db, "s") == [1001, 1002]


def test_a_session_without_an_owner_takes_no_tokens(db: sqlite3.Connection) -> None:
    insert_session(db, record("s"))
    assert append_tokens(db, append("s", 1, (9,), epoch=0)).status == "stale"


@pytest.mark.parametrize("first_pos", [-1, 0, 4, 100])
def test_a_position_that_leaves_a_gap_is_refused(db: sqlite3.Connection, first_pos: int) -> None:
    """H19"""
    running("s", 2)(db)
    assert append_tokens(db, append("s", first_pos, (9,))) == Appended("gap", 2)


def test_tokens_sent_again_are_accepted_once(db: sqlite3.Connection) -> None:
    """H19: a worker repeats what was not acknowledged before the link broke."""
    running("s", 3)(db)
    assert append_tokens(db, append("s", 2, (1002, 1003))) == Appended("accepted", 3)
    assert append_tokens(db, append("s", 2, (1002, 1003, 1004))) == Appended("accepted", 4)
    assert load_tokens(db, "s") == [1001, 1002, 1003, 1004]


def test_tokens_that_differ_from_what_was_accepted_are_refused_whole(db: sqlite3.Connection) -> None:
    """H19"""
    running("s", 3)(db)
    assert append_tokens(db, append("s", 2, (1002, 6, 1004))) == Appended("gap", 3)
    assert load_tokens(db, "s") == [1001, 1002, 1003]


def test_the_end_comes_with_the_last_tokens_in_one_step(db: sqlite3.Connection) -> None:
    """H16"""
    running("s", 1)(db)
    assert append_tokens(db, append("s", 2, (8,), terminal=DONE)) == Appended("accepted", 2)
    stored = load_session(db, "s")
    assert stored is not None
    assert (stored.state, stored.finish_reason, stored.finished_at) == ("completed", "eos", 50.0)
    assert stored.accepted == 2


def test_an_end_without_tokens_counts_at_the_last_position(db: sqlite3.Connection) -> None:
    running("s", 2)(db)
    assert append_tokens(db, append("s", 3, (), terminal=DONE)) == Appended("accepted", 2)


def test_an_end_before_the_last_accepted_token_is_refused(db: sqlite3.Connection) -> None:
    running("s", 3)(db)
    assert append_tokens(db, append("s", 2, (1002,), terminal=DONE)) == Appended("gap", 3)


def test_a_finished_session_absorbs(db: sqlite3.Connection) -> None:
    """H3, H16"""
    running("s", 1)(db)
    append_tokens(db, append("s", 2, (8,), terminal=DONE))
    other_end = Terminal("failed", None, "engine_failed", 60.0)
    assert append_tokens(db, append("s", 3, (9,), terminal=other_end)) == Appended("terminal", 2)
    assert assign_owner(db, "s", 1, BOB) is None
    assert finish_session(db, "s", other_end) == load_session(db, "s")
    stored = load_session(db, "s")
    assert stored is not None
    assert (stored.state, stored.epoch, stored.owner) == ("completed", 1, ALICE)


def test_an_append_to_a_session_that_is_not_there_is_unknown(db: sqlite3.Connection) -> None:
    assert append_tokens(db, append("nobody", 1, (1,))) == Appended("unknown", 0)


def test_after_the_commit_of_a_move_only_the_target_may_append(db: sqlite3.Connection) -> None:
    """H69: there is no way back; the old epoch is refused by the store."""
    running("s", 4)(db)
    plan_move(db, move("m", "s"))
    assert commit_move(db, commit(4)) == "committed"
    assert append_tokens(db, append("s", 5, (9,))) == Appended("stale", 4)
    assert append_tokens(db, append("s", 5, (9,), owner=ALICE, epoch=2)).status == "stale"
    assert append_tokens(db, append("s", 5, (9,), owner=BOB, epoch=1)).status == "stale"
    assert append_tokens(db, append("s", 5, (9,), owner=BOB, epoch=2)) == Appended("accepted", 5)


def test_a_commit_marks_its_move_in_the_same_transaction(db: sqlite3.Connection) -> None:
    """H66"""
    running("s", 4)(db)
    plan_move(db, move("m", "s"))
    commit_move(db, commit(4))
    committed = load_move(db, "m")
    assert committed is not None
    assert (committed.state, committed.phase, committed.finished_at) == ("committed", "committed", None)


def test_a_commit_said_twice_moves_once(db: sqlite3.Connection) -> None:
    running("s", 4)(db)
    plan_move(db, move("m", "s"))
    assert commit_move(db, commit(4)) == "committed"
    assert append_tokens(db, append("s", 5, (9,), owner=BOB, epoch=2)).status == "accepted"
    assert commit_move(db, commit(4)) == "committed"
    stored = load_session(db, "s")
    assert stored is not None
    assert (stored.owner, stored.epoch) == (BOB, 2)
    finish_move(db, "m", "completed_native", None, None, 40.0)
    assert commit_move(db, commit(4)) == "committed"


def test_a_commit_at_another_position_than_the_accepted_one_is_refused(db: sqlite3.Connection) -> None:
    running("s", 4)(db)
    plan_move(db, move("m", "s"))
    assert commit_move(db, commit(3)) == "position"
    assert commit_move(db, commit(5)) == "position"
    stored = load_session(db, "s")
    assert stored is not None
    assert (stored.owner, stored.epoch) == (ALICE, 1)


def test_a_cancel_before_the_commit_wins_over_it(db: sqlite3.Connection) -> None:
    """H3: one order of the store decides."""
    running("s", 4)(db)
    plan_move(db, move("m", "s"))
    finish_session(db, "s", Terminal("cancelled", None, "session_cancelled", 25.0))
    assert commit_move(db, commit(4)) == "finished"


def test_a_move_that_was_aborted_cannot_commit_later(db: sqlite3.Connection) -> None:
    """H67"""
    running("s", 4)(db)
    plan_move(db, move("m", "s"))
    finish_move(db, "m", "aborted_source_resumed", "step_timeout", None, 25.0)
    assert commit_move(db, commit(4)) == "stale"


@pytest.mark.parametrize("what", ["another epoch", "another session", "owner replaced"])
def test_a_commit_that_is_not_the_planned_one_is_stale(db: sqlite3.Connection, what: str) -> None:
    running("s", 4)(db)
    running("t", 4)(db)
    plan_move(db, move("m", "s"))
    if what == "owner replaced":
        assert assign_owner(db, "s", 1, BOB) == 2
    asked = commit(
        4, epoch=2 if what == "another epoch" else 1, session="t" if what == "another session" else "s"
    )
    assert commit_move(db, asked) == "stale"
    planned = load_move(db, "m")
    assert planned is not None
    assert planned.state == "planned"


def test_a_re_home_is_a_new_transfer_back_that_needs_no_plan(db: sqlite3.Connection) -> None:
    """B22: the source takes over again under a newer epoch, unless the target has shown a token."""
    running("s", 4)(db)
    plan_move(db, move("m", "s"))
    assert commit_move(db, commit(4)) == "committed"
    back = MoveCommit("m.back", "s", BOB, 2, 4, ALICE, 35.0)
    assert commit_move(db, back) == "committed"
    assert commit_move(db, back) == "committed"
    assert append_tokens(db, append("s", 5, (9,), owner=BOB, epoch=2)).status == "stale"
    assert append_tokens(db, append("s", 5, (9,), owner=ALICE, epoch=3)) == Appended("accepted", 5)


def test_a_re_home_after_the_first_token_of_the_target_is_refused(db: sqlite3.Connection) -> None:
    """B22"""
    running("s", 4)(db)
    plan_move(db, move("m", "s"))
    assert commit_move(db, commit(4)) == "committed"
    assert append_tokens(db, append("s", 5, (9,), owner=BOB, epoch=2)).status == "accepted"
    assert commit_move(db, MoveCommit("m.back", "s", BOB, 2, 4, ALICE, 35.0)) == "position"


def test_a_new_owner_gets_a_new_epoch_only_from_the_epoch_it_saw(db: sqlite3.Connection) -> None:
    """H19"""
    running("s", 2)(db)
    assert assign_owner(db, "s", 0, BOB) is None
    assert assign_owner(db, "s", 1, BOB) == 2
    assert assign_owner(db, "s", 1, ALICE) is None
    assert assign_owner(db, "nobody", 0, ALICE) is None
    assert append_tokens(db, append("s", 3, (9,), owner=BOB, epoch=2)).status == "accepted"
