"""The control runs, seen from the bench: what they are to repeat, and the processes that do it.

One engine a process and core; rounds are dealt out so that the processes end at about the same time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio

from ops.handoff_bench.deployment import Card, log_tail, start_child, stop_child, wait_child
from ops.handoff_bench.measure import merge
from ops.handoff_bench.rounds import RoundResult
from swapd.config import ModelConfig
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import StepRecord
from swapd.messages.generation import GenerationSpec
from swapd.sessions.record import namespace_salt

PROGRESS: Final = "control of "
"""How lines begin that a control run writes for people."""
PROGRESS_EVERY_S: Final = 15.0
PREFILL_WORTH: Final = 0.2
"""What a position of a prompt takes, beside a decoded token."""


class ControlRound(msgspec.Struct, frozen=True):
    """What to repeat: sessions, how many tokens of each are wanted, and the batch of each step."""

    name: str
    specs: tuple[GenerationSpec, ...]
    cuts: dict[str, int]
    steps: tuple[tuple[tuple[str, int], ...], ...]

    @property
    def positions(self) -> int:
        return sum(count for batch in self.steps for _, count in batch)


class ControlJob(msgspec.Struct, frozen=True):
    model: ModelConfig
    cores: tuple[int, ...]
    rounds: tuple[ControlRound, ...]


class ControlResult(msgspec.Struct, frozen=True):
    """`void` says why the control proves nothing; `disordered` steps had their rows in another order."""

    name: str
    outputs: dict[str, list[int]]
    void: str | None
    steps: int
    disordered: int


def control_round(
    name: str, result: RoundResult, logs: Mapping[str, Sequence[StepRecord]], namespace: str, clock_s: float
) -> ControlRound:
    """What the control of a round has to repeat; `clock_s` is trio's clock minus the monotonic one."""
    sessions = [stream.session for stream in result.streams]
    steps = merge(logs, sessions, result.during.ended_s - clock_s)
    specs = tuple(
        GenerationSpec(
            session=stream.session,
            prompt=stream.plan.prompt,
            sampling=stream.plan.sampling,
            max_new_tokens=result.plan.budget,
            salt=namespace_salt(namespace),
        )
        for stream in result.streams
    )
    return ControlRound(name, specs, result.cuts, tuple(each.step.batch for each in steps))


def deal(rounds: Sequence[ControlRound], hands: int) -> list[list[ControlRound]]:
    """Deal rounds to so many processes, the longest first, each to the one that has least."""
    dealt: list[tuple[float, list[ControlRound]]] = [(0.0, []) for _ in range(hands)]
    for each in sorted(rounds, key=_worth, reverse=True):
        index = min(range(hands), key=lambda hand: dealt[hand][0])
        worth, hand = dealt[index]
        dealt[index] = (worth + _worth(each), [*hand, each])
    return [hand for _, hand in dealt if hand]


def _worth(each: ControlRound) -> float:
    prompts = sum(len(spec.prompt) for spec in each.specs)
    return PREFILL_WORTH * prompts + sum(each.cuts.values()) / max(len(each.specs), 1)


async def _follow(log: Path, report: Callable[[str], None]) -> None:
    """Report the progress that a control run writes to its log, now and then."""
    while True:
        await trio.sleep(PROGRESS_EVERY_S)
        lines = (await trio.Path(log).read_text(errors="replace")).splitlines()
        told = [line for line in lines if line.startswith(PROGRESS)]
        if told:
            report(told[-1])


async def run_controls(
    folder: Path,
    model: ModelConfig,
    rounds: Sequence[ControlRound],
    report: Callable[[str], None],
    card: Card | None = None,
) -> dict[str, ControlResult]:
    """Repeat all rounds without a move; returns results by name. Raises `engine_failed`.

    Cancelled or failed: the processes have ended when this returns.
    """
    cores = sorted(os.sched_getaffinity(0))
    # One card has its memory for one engine at a time.
    hands = deal(rounds, 1 if card else min(len(cores), 2))
    report(f"control run: the same steps on {len(hands)} engines of their own, nothing moves")
    children = []
    try:
        for index, hand in enumerate(hands):
            paths = folder / f"control{index}.job.json", folder / f"control{index}.result.json"
            job = ControlJob(model, () if card else (cores[index],), tuple(hand))
            paths[0].write_bytes(msgspec.json.encode(job))
            command = [sys.executable, "-m", "ops.handoff_bench.repeat", *map(str, paths)]
            log, environment = folder / f"control{index}.log", card.environment if card else {}
            children.append((start_child(command, log, environment), index, paths[1]))
        results: dict[str, ControlResult] = {}
        for process, index, path in children:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_follow, folder / f"control{index}.log", report)
                await wait_child(process)
                nursery.cancel_scope.cancel()
            if process.returncode:
                raise SwapdError(
                    Code.ENGINE_FAILED, f"a control run: {log_tail(folder / f'control{index}.log')}"
                )
            for result in msgspec.json.decode(path.read_bytes(), type=list[ControlResult]):
                results[result.name] = result
        return results
    finally:
        for process, _, _ in children:
            stop_child(process)
