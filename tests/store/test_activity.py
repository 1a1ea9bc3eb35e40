"""What was served is counted from the sessions' own rows: nothing is lost, and nothing counted twice."""

from __future__ import annotations

import sqlite3

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from swapd.device_views import DeviceEvent, GiveBackView
from swapd.messages.generation import PARK, Owner
from swapd.sessions.record import Terminal
from swapd.store.activity import BUCKET_S, add_activity, bucket_of, count_tokens, prune_activity, recorded
from swapd.store.devices import EVENTS_KEPT, add_device_event, device_events, save_give_back
from swapd.store.ledger import append_tokens
from swapd.store.meta import load_visits, save_visits
from swapd.store.moves import finish_move, plan_move
from swapd.store.schema import MIGRATIONS, migrate
from swapd.store.sessions import delete_expired
from swapd.views import SessionOutcome
from tests.store.records import append, move, running

T0 = 1_700_000_100.0
B0 = bucket_of(T0)


def tokens_of(db: sqlite3.Connection, since: float = 0.0) -> int:
    return recorded(db, since, (), 300.0).tokens


def test_tokens_of_running_and_ended_sessions_are_counted_once(db: sqlite3.Connection) -> None:
    running("a", tokens=5)(db)
    running("b", tokens=3)(db)
    append_tokens(db, append("b", 4, (9,), terminal=Terminal("completed", "length", None, T0)))
    assert count_tokens(db, T0, 0.0, 100) == 2
    assert tokens_of(db) == 9
    assert count_tokens(db, T0, 0.0, 100) == 0
    append_tokens(db, append("a", 6, (7, 8)))
    count_tokens(db, T0 + BUCKET_S, 0.0, 100)
    assert tokens_of(db) == 11
    assert tokens_of(db, B0 + BUCKET_S) == 2


def test_tokens_of_an_ended_session_belong_to_the_time_of_its_end(db: sqlite3.Connection) -> None:
    """A start after hours of standstill counts what the last run served to the last run."""
    running("a", tokens=2)(db)
    append_tokens(db, append("a", 3, (9,), terminal=Terminal("completed", "length", None, T0)))
    count_tokens(db, T0 + 10_000, 0.0, 100)
    assert tokens_of(db, B0 + BUCKET_S) == 0
    assert tokens_of(db, B0) == 3


def test_sessions_that_ended_long_ago_are_not_looked_at_again(db: sqlite3.Connection) -> None:
    running("a")(db)
    append_tokens(db, append("a", 1, (9,), terminal=Terminal("completed", "length", None, T0)))
    assert count_tokens(db, T0, T0 + 1, 100) == 0


def test_counting_is_done_in_pieces(db: sqlite3.Connection) -> None:
    for name in "abcde":
        running(name, tokens=1)(db)
    assert [count_tokens(db, T0, 0.0, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert tokens_of(db) == 5


def test_a_session_that_is_deleted_uncounted_is_counted_then(db: sqlite3.Connection) -> None:
    running("a", tokens=4)(db)
    count_tokens(db, T0, 0.0, 100)
    append_tokens(db, append("a", 5, (9,), terminal=Terminal("completed", "length", None, T0)))
    assert delete_expired(db, T0, 10) == 1
    assert tokens_of(db) == 5


def test_what_was_served_before_there_was_a_record_is_not_invented() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    try:
        from sqlite_utils import Database

        MIGRATIONS.apply(Database(db, execute_plugins=False), stop_before="0004_activity")
        running("a", tokens=4)(db)
        migrate(db)
        count_tokens(db, T0, 0.0, 100)
        assert tokens_of(db) == 0
        append_tokens(db, append("a", 5, (9,)))
        count_tokens(db, T0, 0.0, 100)
        assert tokens_of(db) == 1
    finally:
        db.close()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("tcedr")), max_size=40))
def test_whatever_the_order_every_accepted_token_is_counted_once(steps: list[tuple[str, str]]) -> None:
    """t: a token; c: the count; e: an end; d: deletion; r: a start anew, which looks at all sessions."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    try:
        migrate(db)
        accepted = dict.fromkeys("abc", 0)
        ended: set[str] = set()
        for name in "abc":
            running(name)(db)
        for name, step in steps:
            if step in "te" and name not in ended:
                end = Terminal("completed", "length", None, T0) if step == "e" else None
                append_tokens(db, append(name, accepted[name] + 1, (9,), terminal=end))
                accepted[name] += 1
                if end is not None:
                    ended.add(name)
            elif step == "c":
                count_tokens(db, T0, T0 - 60, 2)
            elif step == "r":
                count_tokens(db, T0, 0.0, 100)
            elif step == "d":
                delete_expired(db, T0, 1)
        while count_tokens(db, T0, 0.0, 2):
            pass
        assert tokens_of(db) == sum(accepted.values())
    finally:
        db.close()


def test_how_often_pressure_engaged_outlives_the_events(db: sqlite3.Connection) -> None:
    for number in range(EVENTS_KEPT + 5):
        add_device_event(db, DeviceEvent(T0 + number / 1000, "gpu0", "engaged"))
        add_device_event(db, DeviceEvent(T0 + number / 1000, "gpu0", "released"))
    assert len(device_events(db, "gpu0", 2 * EVENTS_KEPT)) == EVENTS_KEPT
    assert recorded(db, 0.0, ("gpu0",), 300.0).engaged == {"gpu0": EVENTS_KEPT + 5}


def test_moves_and_give_backs_are_read_from_their_own_records(db: sqlite3.Connection) -> None:
    """H180: the outcome is not counted a second time anywhere."""
    for number, (outcome, frozen_ms, at) in enumerate(
        [
            ("completed_native", 80.5, T0),
            ("completed_native", None, T0),
            ("aborted_source_resumed", 120.0, T0),
            ("completed_native", 900.0, T0 - 1000),
        ]
    ):
        plan_move(db, move(f"m{number}", f"s{number}"))
        stats = SessionOutcome(f"s{number}", "completed_native", None, "released", frozen_ms=frozen_ms)
        assert finish_move(db, f"m{number}", outcome, None, stats, at)  # type: ignore[arg-type]
    plan_move(db, move("open", "s9"))
    for device, why, at in [
        ("gpu0", "pressure", 0),
        ("gpu0", "pressure", 9),
        ("gpu0", "game", 10),
        ("gpu1", "game", 9),
    ]:
        save_give_back(db, device, GiveBackView(why, T0 + at, 1.0, ()))
    save_give_back(db, "gpu0", GiveBackView("pressure", T0 - 1000, 1.0, ()))
    found = recorded(db, T0 - 1, ("gpu0", "gpu1", "gpu2"), 300.0)
    assert (found.moves, found.returned) == ({"completed_native": 2, "aborted_source_resumed": 1}, 0)
    assert found.longest_pause_ms == 120.0
    assert found.given_back == {"gpu0": {"pressure": 2, "game": 1}, "gpu1": {"game": 1}, "gpu2": {}}


def test_ways_back_from_the_park_are_told_apart(db: sqlite3.Connection) -> None:
    """B3: only those that were completed."""
    for number, outcome in enumerate(("completed_native", "completed_native", "aborted_source_resumed")):
        back = msgspec.structs.replace(move(f"m{number}", f"s{number}"), source=Owner(PARK, "p"))
        plan_move(db, back)
        assert finish_move(db, back.id, outcome, None, None, T0)  # type: ignore[arg-type]
    found = recorded(db, T0 - 1, (), 300.0)
    assert (found.moves["completed_native"], found.returned) == (2, 2)


def test_buckets_are_forgotten_after_their_time(db: sqlite3.Connection) -> None:
    add_activity(db, T0, "lent_s", 10.0, "gpu0")
    add_activity(db, T0 + 1, "lent_s", 5.0, "gpu0")
    add_activity(db, T0 + BUCKET_S, "lent_s", 2.5, "gpu0")
    add_activity(db, T0 + 9 * BUCKET_S, "lent_s", 0.0, "gpu0")
    assert recorded(db, 0.0, (), 300.0).lent_s == {"gpu0": 17.5}
    assert recorded(db, 0.0, (), 300.0).first_at == B0
    prune_activity(db, B0 + BUCKET_S)
    assert recorded(db, 0.0, (), 300.0).lent_s == {"gpu0": 2.5}


def test_an_empty_record_says_that_there_is_none(db: sqlite3.Connection) -> None:
    found = recorded(db, T0, ("gpu0",), 300.0)
    assert (found.first_at, found.tokens, found.longest_pause_ms) == (None, 0, None)


def test_visits_are_kept(db: sqlite3.Connection) -> None:
    visits = load_visits(db)
    assert visits == (None, None)
    save_visits(db, visits.look(100.0))
    assert load_visits(db) == (100.0, None)
    save_visits(db, load_visits(db).look(5000.9))
    assert load_visits(db) == (5000.0, 100.0)


def test_the_course_is_told_in_steps_of_any_length(db: sqlite3.Connection) -> None:
    for number, (device, lent_s, tokens) in enumerate(
        [("a", 60.0, 5), ("b", 30.0, 0), ("a", 0.0, 7), ("a", 9.0, 0)]
    ):
        at = B0 + number // 2 * 4 * BUCKET_S + number % 2 * BUCKET_S
        add_activity(db, at, "lent_s", lent_s, device)
        add_activity(db, at, "tokens", tokens)
    add_activity(db, B0 + 9 * BUCKET_S, "engaged", 1, "a")
    step_s = 2 * BUCKET_S
    found = recorded(db, B0, (), step_s).course
    assert list(found) == [(B0, 90.0, 5), (B0 + 2 * step_s, 9.0, 7)]
    assert len(recorded(db, B0, (), BUCKET_S).course) == 4
