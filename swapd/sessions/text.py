"""The text of a transcript: whole characters, and no stop string in sight (H17, H30). Pure.

Text is made in the coordinator from durable tokens, so no text state moves with a session: whoever pushes
the same tokens again gets the same pieces.

The first stop is the one that is complete first, read character by character; of those complete at the
same place, the longest. So where the text ends does not depend on how it was cut into tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Decoder(Protocol):
    """Turns tokens into text, one at a time, without cutting a character."""

    def push(self, token_id: int) -> str:
        """Return the text that is certain now; empty while a character is incomplete."""

    def flush(self) -> str:
        """Return what an incomplete character at the end reads as."""


class TextStep(NamedTuple):
    """Text that may be shown, and whether a stop string is complete: then nothing follows."""

    text: str
    stopped: bool


class TextStream:
    """The visible text of one session. Text that may become a stop string is held back."""

    def __init__(self, decoder: Decoder, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._decoder = decoder
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._stopped = False

    def push(self, token_id: int) -> TextStep:
        """Take the next token. After a stop, further tokens are ignored."""
        if self._stopped:
            return TextStep("", True)
        return self._take(self._decoder.push(token_id))

    def flush(self) -> str:
        """Return the text still held, at the end of the transcript."""
        if self._stopped:
            return ""
        shown = self._take(self._decoder.flush()).text
        rest, self._held = self._held, ""
        return shown + rest

    def _take(self, piece: str) -> TextStep:
        if not piece:
            return TextStep("", False)
        text = self._held + piece
        cut = _first_stop(text, self._stops)
        if cut is not None:
            self._held, self._stopped = "", True
            return TextStep(text[:cut], True)
        keep = _held_length(text, self._stops, self._longest)
        self._held = text[len(text) - keep :]
        return TextStep(text[: len(text) - keep], False)


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return where the first stop begins."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def _held_length(text: str, stops: Sequence[str], longest: int) -> int:
    """Return the length of the longest end of `text` that begins a stop."""
    for length in range(min(longest - 1, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
