"""Whose copy goes first when not all can go at once, and who travels together (B13). Pure.

A drain has a deadline, so the shortest remaining copy goes first: at any moment as many as possible are away.
Whoever has waited for `STARVED_S` goes before everybody, the longest waiting first; and while one of those
finds no room, nobody behind it is let past, so that what others give back collects until it is enough. So a
session waits for at most that long, for what is under way then, and for those that have waited longer.

Sessions of a wave stop together, when the last of them has been copied. So a wave has copies of similar
length: a short session is not kept from leaving by a long one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

STARVED_S: Final = 10.0
LONGER_TIMES: Final = 2
LONGER_TOKENS: Final = 1024
"""A copy that is longer by both, than the shortest of a wave, goes with another wave."""


class Turn(NamedTuple):
    """A session that could leave: what is left to copy, and for how long it has waited for room already."""

    session: str
    copy_tokens: int
    waited_s: float = 0.0

    @property
    def starved(self) -> bool:
        return self.waited_s >= STARVED_S


def in_turn(turns: Iterable[Turn]) -> list[Turn]:
    """In the order in which they may borrow."""
    return sorted(turns, key=_rank)


def convoys(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Who travels together, of those that leave now for one place; the shortest copies first."""
    found: list[list[Turn]] = []
    for turn in sorted(turns, key=lambda each: (each.copy_tokens, each.session)):
        if found and not _much_longer(turn.copy_tokens, found[-1][0].copy_tokens):
            found[-1].append(turn)
        else:
            found.append([turn])
    return found


def _rank(turn: Turn) -> tuple[bool, float, int, str]:
    waited = -turn.waited_s if turn.starved else 0.0
    return not turn.starved, waited, turn.copy_tokens, turn.session


def _much_longer(tokens: int, shortest: int) -> bool:
    return tokens > LONGER_TIMES * shortest and tokens - shortest > LONGER_TOKENS
