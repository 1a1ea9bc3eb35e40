"""A control repeats exactly the recorded steps, or says that it could not."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ops.handoff_bench.control import ControlResult, ControlRound, deal
from ops.handoff_bench.repeat import FILLER, Control
from swapd.engines.base import StepResult, StepToken
from swapd.messages.generation import GenerationSpec, Sampling

pytestmark = pytest.mark.once


class EngineDouble:
    """Schedules as vLLM does: decoding first, then prompts in order, within the step's limit; rows stay."""

    def __init__(self) -> None:
        self.prompts: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.order: list[str] = []
        self.rows: list[str] = []
        self.limit: int | None = None
        self.log: list[list[tuple[str, int]]] = []

    def start(self, key: str, spec: GenerationSpec, outputs: tuple[int, ...]) -> None:
        assert key not in self.prompts
        self.prompts[key], self.done[key] = len(spec.prompt), 0
        self.order.append(key)

    def hold(self, key: str) -> None:
        if key in self.order:
            self.order.remove(key)

    def unhold(self, key: str) -> None:
        if key not in self.order:
            self.order.append(key)

    def remove(self, key: str) -> None:
        self.hold(key)
        self.prompts.pop(key, None)

    def computed(self, key: str) -> int:
        return self.done[key]

    def decoding(self, key: str) -> bool:
        return self.done[key] >= self.prompts[key]

    def limit_step(self, positions: int | None) -> None:
        self.limit = positions

    def step(self) -> StepResult:
        left = self.limit if self.limit is not None else 64
        scheduled: dict[str, int] = {}
        for key in sorted(self.order, key=lambda key: not self.decoding(key)):
            count = min(max(self.prompts[key] - self.done[key], 1), left)
            if count:
                scheduled[key] = count
                left -= count
        self.rows = [key for key in self.rows if key in scheduled]
        self.rows += [key for key in scheduled if key not in self.rows]
        batch = [(key, scheduled[key]) for key in self.rows]
        self.log.append(batch)
        tokens = []
        for key, count in batch:
            self.done[key] += count
            if self.decoding(key):
                tokens.append(StepToken(key, self.done[key], None))
        return StepResult(tokens, batch)


def control_of(
    steps: list[list[tuple[str, int]]], prompts: dict[str, int], cut: int = 2
) -> tuple[ControlResult, EngineDouble]:
    engine = EngineDouble()
    specs = tuple(
        GenerationSpec(name, tuple(range(length)), Sampling(), 100) for name, length in prompts.items()
    )
    wanted = ControlRound("r", specs, dict.fromkeys(prompts, cut), tuple(tuple(step) for step in steps))
    result = Control(cast(Any, engine)).repeat(wanted)
    assert not engine.prompts, "nothing stays in the engine"
    return result, engine


def test_steps_are_repeated_with_their_sessions_and_chunks() -> None:
    steps = [
        [("s", 60)],
        [("s", 40), ("t", 24)],  # one prompt ends, the next begins in the same step
        [("s", 1), ("t", 63)],
        [("t", 13)],  # the first one stands still, and loses its row
        [("t", 1), ("s", 1)],
    ]
    result, engine = control_of(steps, {"s": 100, "t": 100})
    assert (result.void, result.disordered) == (None, 0)
    assert engine.log == steps
    assert result.outputs == {"s": [100, 101, 102], "t": [100, 101]}


def test_sessions_of_two_workers_take_turns() -> None:
    steps = [[("s", 5)], [("t", 5)], [("s", 1)], [("t", 1)], [("s", 1)], [("s", 1)]]
    result, engine = control_of(steps, {"s": 5, "t": 5})
    assert result.void is None
    assert engine.log == steps[:4], "it ends when every session has the tokens that are compared"


def test_rows_in_another_order_are_filled_anew() -> None:
    """After a move the rows of the target are in the order of its arrivals."""
    steps = [[("s", 5)], [("s", 1), ("t", 5)], [("t", 1), ("s", 1)]]
    result, engine = control_of(steps, {"s": 5, "t": 5})
    assert (result.void, result.disordered) == (None, 0)
    ours = [batch for batch in engine.log if batch[0][0] != FILLER]
    assert ours == steps
    assert len(engine.log) == 4


@pytest.mark.parametrize(
    "steps", [[[("s", 5)], [("s", 3)]], [[("s", 9)], [("s", 1)]], [[("s", 5), ("s", 5)], [("s", 1)]]]
)
def test_a_step_that_cannot_be_repeated_makes_the_control_void(steps: list[list[tuple[str, int]]]) -> None:
    result, _ = control_of(steps, {"s": 5})
    assert result.void is not None
    assert "could not be repeated" in result.void


def test_too_few_steps_make_the_control_void() -> None:
    result, _ = control_of([[("s", 5)]], {"s": 5})
    assert result.void is not None
    assert "end before" in result.void


def test_rounds_are_dealt_so_that_processes_end_together() -> None:
    rounds = [
        ControlRound(str(length), (GenerationSpec("s", (1,) * length, Sampling(), 9),), {"s": 0}, ())
        for length in (100, 4000, 900, 2000, 1100)
    ]
    hands = deal(rounds, 2)
    assert sorted(each.name for hand in hands for each in hand) == ["100", "1100", "2000", "4000", "900"]
    assert [sum(len(spec.prompt) for each in hand for spec in each.specs) for hand in hands] == [4100, 4000]
    assert len(deal(rounds[:1], 2)) == 1
