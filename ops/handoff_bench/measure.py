"""From times and steps to figures. Pure: seconds in, milliseconds and ratios out.

A move's pause is what the client saw: the largest gap between two tokens of one session, from the request to
a few tokens after the move's end. A token interval is the median gap of the same session while nothing moved.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from swapd.messages.from_worker import StepRecord

TOKENS_AFTER: Final = 3
"""Gaps after a move's end that still belong to it."""
LOOP_TOKENS: Final = 8
"""A run of so many tokens that came before counts as repeated."""


class Window(NamedTuple):
    """When a move was asked for and when it was over, on the clock of the token times."""

    began_s: float
    ended_s: float


class Gap(NamedTuple):
    """A gap between two tokens of a session; `tokens` came before it."""

    seconds: float
    tokens: int


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least so many percent do not exceed (nearest rank)."""
    if not values:
        return math.nan
    return sorted(values)[max(math.ceil(percent / 100 * len(values)), 1) - 1]


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


def window_gaps(times: Sequence[float], window: Window, after: int = TOKENS_AFTER) -> range:
    """Indices i of the gaps (i, i + 1) that belong to a move."""
    first = next((i for i in range(len(times) - 1) if times[i + 1] >= window.began_s), len(times) - 1)
    last = next((i for i in range(first, len(times) - 1) if times[i] > window.ended_s), len(times) - 1)
    return range(first, min(last + after, len(times) - 1))


def pause(times: Sequence[float], window: Window) -> Gap:
    """The largest gap around a move."""
    return max(
        (Gap(times[i + 1] - times[i], i + 1) for i in window_gaps(times, window)), default=Gap(math.nan, 0)
    )


def token_interval_s(times: Sequence[float], moves: Iterable[Window], during: Window) -> float:
    """The median gap within `during`, outside of all moves."""
    moving = {i for window in moves for i in window_gaps(times, window)}
    gaps = [
        after - before
        for i, (before, after) in enumerate(pairwise(times))
        if i not in moving and before >= during.began_s and after <= during.ended_s
    ]
    return median(gaps)


def step_increase(steps: Sequence[StepRecord], copies: Sequence[Window], during: Window) -> list[float]:
    """How much longer each decode step took while its worker's blocks were copied out, as a share.

    Compared with the median of steps of as many sessions in the same time; empty where there are none.
    """
    decode = [
        step
        for step in steps
        if step.batch
        and all(count == 1 for _, count in step.batch)
        and during.began_s <= step.at_s <= during.ended_s
    ]
    apart: dict[int, list[float]] = {}
    beside: list[StepRecord] = []
    for step in decode:
        if any(step.at_s < copy.ended_s and step.at_s + step.took_s > copy.began_s for copy in copies):
            beside.append(step)
        else:
            apart.setdefault(len(step.batch), []).append(step.took_s)
    usual = {size: median(times) for size, times in apart.items()}
    return [step.took_s / usual[len(step.batch)] - 1 for step in beside if usual.get(len(step.batch))]


class WorkerStep(NamedTuple):
    """One recorded step and the worker that ran it."""

    worker: str
    step: StepRecord


def merge(
    logs: Mapping[str, Sequence[StepRecord]], sessions: Iterable[str], until_s: float
) -> list[WorkerStep]:
    """All steps of these sessions that began before `until_s`, in the order in which they began.

    A session never steps on two workers at once: a move freezes it here before it is prepared there.
    """
    wanted = set(sessions)
    steps = []
    for worker, log in logs.items():
        for step in log:
            batch = tuple(entry for entry in step.batch if entry[0] in wanted)
            if batch and step.at_s < until_s:
                steps.append(WorkerStep(worker, StepRecord(step.at_s, step.took_s, batch)))
    return sorted(steps, key=lambda each: each.step.at_s)


def first_difference(ours: Sequence[int], control: Sequence[int]) -> int | None:
    """The index of the first token that differs or is missing; None when `control` begins with `ours`."""
    for index, token in enumerate(ours):
        if index >= len(control) or control[index] != token:
            return index
    return None


def loop_share(ids: Sequence[int]) -> float:
    """The share of tokens that end a run of `LOOP_TOKENS` seen before: near 1 for output that loops."""
    seen: set[tuple[int, ...]] = set()
    repeated = total = 0
    for end in range(LOOP_TOKENS, len(ids) + 1):
        run = tuple(ids[end - LOOP_TOKENS : end])
        total += 1
        repeated += run in seen
        seen.add(run)
    return repeated / total if total else 0.0
