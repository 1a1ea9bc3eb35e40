"""What the bench will do: cells, their rounds, and what these need of the workers. Pure.

A cell is a context and a number of sessions that move together. A round is one group of such sessions, from
its prompts to its end; a cell of one session has two, the first greedy, the second sampling.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from ops.handoff_bench.prompts import prompt
from swapd.messages.generation import Sampling

Break = Literal["", "flip", "swap", "stale"]

WARM_TOKENS: Final = 8
"""Tokens that every session must have shown before the first move."""
QUIET_TOKENS: Final = 8
"""Tokens between the end of a move and the next one."""
AWAY_TOKENS: Final = 64
"""Tokens generated away from a target before a replay there: what its prefix cache lacks."""
BREAK_PROMPTS: Final = 10
GREEDY: Final = Sampling(temperature=0.0, ignore_eos=True)
STEADY: Final = Sampling(temperature=0.0, repetition_penalty=1.15, ignore_eos=True)
"""Greedy too, but without the loops that hide damage."""
SAMPLED: Final = Sampling(temperature=0.8, ignore_eos=True)
TOKENS_A_MOVE: Final = 72
"""Budget of a move: the copy, the quiet, and up to a block of waiting for a position."""
SLOWEST_CHUNK_TOKENS: Final = 48
"""Prefill of a step beside decoding sessions, at least: they decode once for each such chunk."""


class SessionPlan(msgspec.Struct, frozen=True):
    """A session to be created."""

    prompt: tuple[int, ...]
    sampling: Sampling


class RoundPlan(msgspec.Struct, frozen=True):
    """Sessions that move together `moves` times; `positions` are the block positions to begin moves at."""

    sessions: tuple[SessionPlan, ...]
    moves: int
    positions: tuple[int, ...]
    budget: int
    replays: bool


class CellPlan(msgspec.Struct, frozen=True):
    context: int
    sessions: int
    rounds: tuple[RoundPlan, ...]

    @property
    def tokens(self) -> int:
        """Prompt and budget of the largest session."""
        return max(self.context + each.budget for each in self.rounds)


def positions(moves: int, block_tokens: int, first: int = 0) -> tuple[int, ...]:
    """Spread `moves` evenly over a block's positions, in order; `first` shifts them."""
    return tuple((first + index * block_tokens // moves) % block_tokens for index in range(moves))


def budget(context: int, sessions: int, moves: int) -> int:
    """Tokens to ask for, so that no session ends before its round does."""
    # While another session's prompt is computed (at first, in a replay), those that decode go on.
    beside_prefill = 2 * sessions * -(-context // SLOWEST_CHUNK_TOKENS)
    return WARM_TOKENS + moves * TOKENS_A_MOVE + 4 * AWAY_TOKENS + beside_prefill


def plan_cell(
    context: int,
    sessions: int,
    repeat: int,
    seed: int,
    block_tokens: int,
    encode: Callable[[str], Sequence[int]],
    broken: bool,
) -> CellPlan:
    """Plan one cell of `repeat` moves; with `broken`, `repeat` moves of each of ten prompts or more."""
    count = -(-BREAK_PROMPTS // sessions) if broken else (2 if sessions == 1 else 1)
    rounds = []
    for number in range(count):
        # An odd move goes to the first round.
        moves = repeat if broken else (repeat + count - 1 - number) // count
        spread = repeat if not broken else moves
        every = positions(max(spread, 1), block_tokens)
        rounds.append(
            RoundPlan(
                sessions=tuple(
                    _session(context, (seed, context, sessions, number, index), encode, broken)
                    for index in range(sessions)
                ),
                moves=moves,
                positions=every if broken else every[number::count],
                budget=budget(context, sessions, moves),
                replays=not broken,
            )
        )
    return CellPlan(context, sessions, tuple(rounds))


def _session(
    context: int,
    name: tuple[int, int, int, int, int],
    encode: Callable[[str], Sequence[int]],
    broken: bool,
) -> SessionPlan:
    number, index = name[-2:]
    mixed = random.Random("/".join(map(str, name))).getrandbits(31)
    modes = (STEADY, SAMPLED) if broken else (STEADY, SAMPLED, GREEDY, SAMPLED)
    sampling = msgspec.structs.replace(modes[(number + index) % len(modes)], seed=mixed)
    return SessionPlan(prompt(mixed, context, encode), sampling)
