"""Bytes of an event stream become events, however they are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.sse import SseEvent, SseParser

STREAM = (
    b": open\n\n"
    b"id: 0\nevent: created\ndata: {}\n\n"
    b":\n\n"
    b'id: 1\nevent: token\ndata: {"pos": 1, "text": "\xc3\xa9"}\n\n'
    b"id: 7\n\n"
    b"data: a\ndata: b\n\n"
    b"event: completed\r\nid: 8\r\ndata:x\r\n\r\n"
)
EVENTS = [
    SseEvent(0, "created", "{}", 0.0),
    SseEvent(1, "token", '{"pos": 1, "text": "é"}', 0.0),
    SseEvent(7, "message", "a\nb", 0.0),
    SseEvent(8, "completed", "x", 0.0),
]


def test_a_stream_is_read_as_its_events() -> None:
    parser = SseParser()
    assert parser.feed(STREAM, 0.0) == EVENTS
    assert parser.cursor == 8


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_where_the_bytes_are_cut_changes_nothing(cuts: list[int]) -> None:
    parser = SseParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    events = [event for at, end in itertools.pairwise(edges) for event in parser.feed(STREAM[at:end], 0.0)]
    assert events == EVENTS


def test_an_event_carries_the_time_of_its_last_byte() -> None:
    parser = SseParser(4)
    assert parser.feed(b"data: x\n", 1.0) == []
    assert parser.feed(b"\n", 2.0) == [SseEvent(4, "message", "x", 2.0)]


def test_an_id_that_is_no_cursor_is_ignored() -> None:
    assert SseParser(3).feed("id: ³\nid: -1\ndata: x\n\n".encode(), 0.0)[0].id == 3


def test_a_line_without_end_is_refused() -> None:
    parser = SseParser()
    with pytest.raises(ValueError, match="over"):
        parser.feed(b"x" * ((4 << 20) + 1), 0.0)


def test_data_that_is_no_json_object_is_empty() -> None:
    assert SseEvent(1, "token", "[1]", 0.0).json() == {}
    assert SseEvent(1, "token", "{", 0.0).json() == {}
    assert SseEvent(1, "token", '{"pos": 1}', 0.0).json() == {"pos": 1}
