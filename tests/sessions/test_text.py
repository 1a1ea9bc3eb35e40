"""Text from tokens: stop strings hidden, nothing lost (H17, H30)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.sessions.text import TextStream


class Pieces:
    """A decoder whose token i reads as the i-th piece."""

    def __init__(self, pieces: Sequence[str], tail: str = "") -> None:
        self.pieces = pieces
        self.tail = tail

    def push(self, token_id: int) -> str:
        return self.pieces[token_id]

    def flush(self) -> str:
        return self.tail


def read(pieces: Sequence[str], stops: Sequence[str], tail: str = "") -> tuple[str, bool]:
    """All that a reader sees, and whether a stop string ended it."""
    stream = TextStream(Pieces(pieces, tail), stops)
    shown = ""
    for token in range(len(pieces)):
        step = stream.push(token)
        shown += step.text
        assert not any(stop in shown for stop in stops)
        if step.stopped:
            assert stream.flush() == ""
            return shown, True
    return shown + stream.flush(), False


def truncated(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The reference: read character by character up to the first stop that is complete."""
    for end in range(1, len(text) + 1):
        ends = [stop for stop in stops if text[:end].endswith(stop)]
        if ends:
            return text[: end - max(map(len, ends))], True
    return text, False


# Few letters, so that stops and beginnings of stops happen all the time.
letters = st.text(alphabet="ab\u00e9\U0001f600", max_size=6)
some_stops = st.lists(st.text(alphabet="ab\u00e9", min_size=1, max_size=5), max_size=4)


@given(st.lists(letters, max_size=20), some_stops, letters)
def test_a_reader_sees_the_text_up_to_the_first_stop(pieces: list[str], stops: list[str], tail: str) -> None:
    """H30, H17"""
    shown, stopped = read(pieces, stops, tail)
    if stopped:
        assert (shown, True) == truncated("".join(pieces), stops)
    else:
        assert shown == truncated("".join(pieces) + tail, stops)[0]


@given(st.lists(letters, max_size=20), some_stops)
def test_where_the_text_ends_does_not_depend_on_how_it_was_cut_into_tokens(
    pieces: list[str], stops: list[str]
) -> None:
    """H30: also when a move or a restart lies between two tokens, as no state but the transcript counts."""
    assert read(pieces, stops) == read(list("".join(pieces)), stops)


@given(st.lists(letters, max_size=12), some_stops)
def test_pushing_a_transcript_again_gives_the_same_pieces(pieces: list[str], stops: list[str]) -> None:
    """H30"""
    once, again = TextStream(Pieces(pieces), stops), TextStream(Pieces(pieces), stops)
    assert [once.push(i) for i in range(len(pieces))] == [again.push(i) for i in range(len(pieces))]


def test_text_that_may_become_a_stop_is_held_until_it_does_not() -> None:
    stream = TextStream(Pieces(["one EN", "D", "L", "ESS"]), ["ENDING"])
    assert [stream.push(i).text for i in range(4)] == ["one ", "", "ENDL", "ESS"]


def test_a_stop_over_two_tokens_is_never_seen() -> None:
    stream = TextStream(Pieces(["well, the E", "ND of it", "more"]), ["END"])
    assert stream.push(0) == ("well, the ", False)
    assert stream.push(1) == ("", True)
    assert stream.push(2) == ("", True)
    assert stream.flush() == ""


def test_held_text_comes_out_at_the_end() -> None:
    stream = TextStream(Pieces(["the E"]), ["END"])
    assert stream.push(0).text == "the "
    assert stream.flush() == "E"
    assert stream.flush() == ""


def test_of_stops_that_are_complete_together_the_longest_is_hidden() -> None:
    assert read(["x", "abc"], ["c", "abc"]) == ("x", True)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        TextStream(Pieces([]), ["x", ""])
