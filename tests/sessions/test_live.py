"""One session in memory: what is taken, what is shown, and in which order (H17-H27, H36)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.api import Event
from swapd.messages.from_worker import Finish, TokenRun
from swapd.messages.generation import Owner, Sampling
from swapd.sessions.live import LiveSession
from swapd.sessions.record import SessionRecord, Terminal
from swapd.sessions.text import TextStream
from swapd.sessions.tokenizer import SimTokenizer

OWNER = Owner("a", "a.1")


def live(tokens: list[int] | None = None, **changes: Any) -> LiveSession:
    fields: dict[str, Any] = {
        "namespace": "tenant",
        "model": "sim",
        "state": "created",
        "prompt": (11, 12, 13),
        "sampling": Sampling(seed=1),
        "max_new_tokens": 100,
        "stop": (),
        "allow_replay_fallback": False,
        "on_disconnect": "pause",
        "max_lifetime_s": 600.0,
        "owner": OWNER,
        "epoch": 1,
        "accepted": 0,
        "created_at": 1000.0,
    }
    record = SessionRecord(id="s", **(fields | changes))
    return LiveSession(record, TextStream(SimTokenizer(1024).decoder(), record.stop), tokens or [], 5.0)


def run(first_pos: int, *ids: int, finish: Finish | None = None) -> TokenRun:
    return TokenRun("s", 1, first_pos, ids, finish)


def wall() -> float:
    return 50.0


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events]


def test_tokens_are_shown_only_once_they_are_durable() -> None:
    """H18"""
    session = live()
    append = session.take(run(1, 5, 6), wall)
    assert append is not None
    assert (append.first_pos, append.ids, append.epoch, append.owner) == (1, (5, 6), 1, OWNER)
    assert names(session.events(-1, 10)) == ["created"]
    assert (session.cursor, session.outputs()) == (0, [])
    session.accept(1, None)
    assert names(session.events(-1, 10)) == ["created", "token"]
    session.accept(2, None)
    assert [e.id for e in session.events(-1, 10)] == [0, 1, 2]
    assert session.outputs() == [5, 6]


@pytest.mark.parametrize(
    ("first_pos", "ids", "expected"),
    [
        (3, (7,), (3, (7,))),  # the next
        (1, (5, 6, 7), (3, (7,))),  # sent again, with one new
        (2, (6,), None),  # sent again
        (1, (), None),
        (4, (8,), None),  # a gap
    ],
)
def test_only_the_next_positions_go_to_the_store(
    first_pos: int, ids: tuple[int, ...], expected: tuple[int, tuple[int, ...]] | None
) -> None:
    """H19: contiguous, each once."""
    session = live([5, 6])
    append = session.take(run(first_pos, *ids), wall)
    assert (None if append is None else (append.first_pos, append.ids)) == expected


@pytest.mark.parametrize(
    ("finish", "state", "reason", "code"),
    [
        ("eos", "completed", "eos", None),
        ("length", "completed", "length", None),
        ("stop_token", "completed", "stop", None),
        ("engine_failed", "failed", None, "engine_failed"),
    ],
)
def test_the_end_goes_to_the_store_with_its_last_tokens(
    finish: Finish, state: str, reason: str | None, code: str | None
) -> None:
    """H16, H17: one transaction; until it is durable nobody sees an end."""
    session = live()
    append = session.take(run(1, 5, finish=finish), wall)
    assert append is not None
    assert append.terminal == Terminal(state, reason, code, 50.0)  # type: ignore[arg-type]  # parametrised
    assert session.over
    assert not session.ended
    assert session.take(run(2, 9), wall) is None
    session.accept(1, append.terminal)
    assert session.ended
    assert names(session.events(-1, 10)) == ["created", "token", state]
    assert session.cursor == 2


def test_an_end_that_was_not_acknowledged_comes_again_without_tokens() -> None:
    """H144: after a re-attach, the worker repeats what was not accepted."""
    session = live([5, 6])
    append = session.take(run(2, 6, finish="length"), wall)
    assert append is not None
    assert (append.first_pos, append.ids) == (3, ())
    assert append.terminal is not None


def test_a_stop_string_ends_the_session_and_drops_what_came_after_it() -> None:
    """H17, H36, decision 5: found before the commit, also over two tokens."""
    session = live(stop=("6 7",))
    append = session.take(run(1, 5, 6, 7, 8, finish="length"), wall)
    assert append is not None
    assert append.ids == (5, 6, 7)
    assert append.terminal == Terminal("completed", "stop", None, 50.0)
    session.accept(3, append.terminal)
    texts = [msgspec.json.decode(e.data).get("text") for e in session.events(0, 10)]
    assert "".join(texts) == "5 "


def test_nothing_is_taken_while_the_owner_changes() -> None:
    """H19: what the old owner still sends could not become durable."""
    session = live()
    session.taking = False
    assert session.take(run(1, 5), wall) is None
    assert session.received == []


def test_an_end_by_others_forgets_what_never_became_durable() -> None:
    """H3, H27: the terminal event carries the last accepted position."""
    session = live()
    session.take(run(1, 5, 6), wall)
    session.accept(1, None)
    session.close(Terminal("cancelled", None, "session_cancelled", 60.0))
    events = session.events(-1, 10)
    assert names(events) == ["created", "token", "cancelled"]
    end = msgspec.json.decode(events[-1].data)
    assert (end["accepted"], end["code"]) == (1, "session_cancelled")
    assert (session.received, session.record.accepted, session.cursor) == ([5], 1, 2)


def test_the_state_says_what_is_being_done_to_the_session() -> None:
    """H2, H10"""
    session = live()
    assert session.state == "created"
    session.take(run(1, 5), wall)
    session.accept(1, None)
    assert session.state == "running"
    session.move = "mov"
    assert session.state == "migrating"
    session.recovering = True
    assert session.state == "recovering"
    session.close(Terminal("failed", None, "recovery_unavailable", 60.0))
    assert session.view().state == "failed"
    assert session.view().code == "recovery_unavailable"


@pytest.mark.parametrize(
    ("readers", "on_disconnect", "producing"),
    [(0, "pause", False), (0, "cancel", False), (0, "continue", True), (1, "pause", True)],
)
def test_a_session_is_decoded_for_its_readers(readers: int, on_disconnect: str, producing: bool) -> None:
    """H32, decision 9"""
    session = live(on_disconnect=on_disconnect)
    session.readers = readers
    assert session.producing == producing


@given(
    tokens=st.lists(st.integers(0, 1023), max_size=20),
    ended=st.booleans(),
    after=st.integers(-1, 21),
    limit=st.integers(1, 7),
)
def test_any_cut_of_the_history_is_the_same_history(
    tokens: list[int], ended: bool, after: int, limit: int
) -> None:
    """H20, H21, H22, H26: no gap, no repeat, the same bytes, whatever the batches and wherever one begins."""
    session = live(tokens)
    if ended:
        session.close(Terminal("cancelled", None, None, 60.0))
    whole = session.events(-1, 100)
    assert [e.id for e in whole] == list(range(len(tokens) + 1 + ended))
    after = min(after, session.cursor)
    read: list[Event] = []
    cursor = after
    while batch := session.events(cursor, limit):
        assert len(batch) <= limit
        read += batch
        cursor = batch[-1].id
    assert read == [event for event in whole if event.id > after]


@given(tokens=st.lists(st.integers(0, 1023), min_size=1, max_size=20), cuts=st.data())
def test_a_restart_shows_the_same_bytes(tokens: list[int], cuts: st.DataObject) -> None:
    """H21, H23, H151: events are a function of the transcript alone."""
    session = live()
    at = 0
    while at < len(tokens):
        count = cuts.draw(st.integers(1, len(tokens) - at))
        session.take(run(at + 1, *tokens[at : at + count]), wall)
        at += count
        session.accept(at, None)
    assert session.events(-1, 100) == live(tokens).events(-1, 100)
