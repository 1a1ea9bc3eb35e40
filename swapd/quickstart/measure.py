"""What a reader saw of a move, from the times of its token events. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

import msgspec


class SeenToken(msgspec.Struct, frozen=True):
    """One token event: its position, the event's id, and when it was read (seconds)."""

    pos: int
    id: int
    at_s: float


class Reading(msgspec.Struct, frozen=True):
    """`pause_ms` is the largest gap around the move, `token_ms_median` the median gap elsewhere."""

    tokens_lost: int
    tokens_duplicated: int
    out_of_order: int
    pause_ms: float
    token_ms_median: float


def judge(tokens: Sequence[SeenToken], accepted: int, move_began_s: float, move_ended_s: float) -> Reading:
    """Compare what was read with what the service holds durable, and find the pause.

    A token is lost when its position never came, duplicated when it came again. The move lies between the
    two times; a gap belongs to it when it overlaps them.
    """
    positions = {token.pos for token in tokens}
    gaps = [(before.at_s, after.at_s) for before, after in pairwise(tokens)]
    around = [end - start for start, end in gaps if end >= move_began_s and start <= move_ended_s]
    elsewhere = [end - start for start, end in gaps if end < move_began_s or start > move_ended_s]
    median = statistics.median(elsewhere or [end - start for start, end in gaps] or [0.0])
    return Reading(
        tokens_lost=len(set(range(1, accepted + 1)) - positions),
        tokens_duplicated=len(tokens) - len(positions),
        out_of_order=sum(
            after.pos != before.pos + 1 or after.id <= before.id for before, after in pairwise(tokens)
        ),
        pause_ms=round(1000 * max(around, default=0.0), 3),
        token_ms_median=round(1000 * median, 3),
    )
