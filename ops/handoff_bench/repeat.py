"""The control: one engine in one process that repeats the recorded steps, and nothing ever moves.

`python -m ops.handoff_bench.repeat JOB RESULT` is the child of `control`. A step of the control has exactly
the sessions and the chunk sizes of the recorded one; sessions that had no part in it are held meanwhile.
Batch composition and the order of its rows move logits, with or without a move: where the control cannot
repeat them it says so, and the run that it was for counts as not identical.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ops.handoff_bench.control import PROGRESS, PROGRESS_EVERY_S, ControlJob, ControlResult, ControlRound
from swapd.engines.vllm import open_engine
from swapd.messages.generation import GenerationSpec, Sampling

if TYPE_CHECKING:
    from swapd.engines.vllm.adapter import VllmEngine

FILLER: Final = "filler"
"""A generation of our own: a step with only it empties the batch's rows, so that they can be filled anew."""
FILLER_PROMPT: Final = (101, 202, 303, 404)
FILLER_STEPS: Final = 64
"""It begins anew when they are used up; any model length has room for it."""


class Control:
    """Repeats rounds on one engine."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self._filled = 0
        self._told_s = time.monotonic()

    def repeat(self, wanted: ControlRound) -> ControlResult:
        """Repeat a round from empty to empty."""
        run = _Run(self._engine, wanted)
        try:
            for done, batch in enumerate(wanted.steps):
                if run.complete:
                    break
                run.step(batch)
                if run.void is not None:
                    break
                self._tell(wanted.name, done, len(wanted.steps))
        finally:
            run.clear()
        if run.void is None and not run.complete:
            run.void = "the recorded steps end before the tokens that clients saw"
        return ControlResult(wanted.name, run.outputs, run.void, run.steps, run.disordered)

    def _tell(self, name: str, done: int, of: int) -> None:
        if time.monotonic() - self._told_s > PROGRESS_EVERY_S:
            self._told_s = time.monotonic()
            sys.stderr.write(f"{PROGRESS}{name}: step {done} of {of}\n")
            sys.stderr.flush()


class _Run:
    """One round in the engine. Keys are session ids."""

    def __init__(self, engine: VllmEngine, wanted: ControlRound) -> None:
        self._engine = engine
        self._wanted = wanted
        self._specs = {spec.session: spec for spec in wanted.specs}
        self._here: set[str] = set()
        self._rows: list[str] = []
        self.outputs: dict[str, list[int]] = {name: [] for name in self._specs}
        self.void: str | None = None
        self.steps = 0
        self.disordered = 0

    @property
    def complete(self) -> bool:
        return all(len(self.outputs[name]) >= cut for name, cut in self._wanted.cuts.items())

    def step(self, batch: Sequence[tuple[str, int]]) -> None:
        """Repeat one step; `void` is set when it came out otherwise."""
        engine, names = self._engine, [name for name, _ in batch]
        if not self._rows_will_be(names):
            self._empty_rows()
        for name in self._here - {FILLER}:
            engine.hold(name)
        for name in self._admission_order(batch):
            if name in self._here:
                engine.unhold(name)
            else:
                engine.start(name, self._specs[name], ())
                self._here.add(name)
        engine.limit_step(sum(count for _, count in batch))
        result = engine.step()
        self.steps += 1
        self._rows = [name for name, _ in result.batch]
        if sorted(result.batch) != sorted(batch):
            self.void = f"step {self.steps} could not be repeated"
            return
        self.disordered += list(result.batch) != list(batch)
        for token in result.tokens:
            self.outputs[token.key].append(token.token_id)
            if token.finish is not None:
                self._here.discard(token.key)

    def clear(self) -> None:
        self._engine.limit_step(None)
        for name in (*self._specs, FILLER):
            self._engine.remove(name)

    def _admission_order(self, batch: Sequence[tuple[str, int]]) -> Iterator[str]:
        """Decoding sessions, then prompts that end in this step, then the one that is cut by the limit."""
        engine = self._engine

        def missing(name: str, count: int) -> int:
            computed = engine.computed(name) if name in self._here else 0
            return max(len(self._specs[name].prompt) - computed - count, 0)

        decoding = [n for n, _ in batch if n in self._here and engine.decoding(n)]
        rest = [(missing(n, count), index, n) for index, (n, count) in enumerate(batch) if n not in decoding]
        yield from decoding
        yield from (name for _, _, name in sorted(rest))

    def _rows_will_be(self, names: list[str]) -> bool:
        """Whether vLLM's rows come out in this order: who stays keeps its row, who comes goes behind."""
        stay = [name for name in self._rows if name in names]
        if len(stay) < len(self._rows):
            # Rows close up in an order of vLLM's own.
            return len(names) == 1 or not stay
        return names[: len(stay)] == stay

    def _empty_rows(self) -> None:
        engine = self._engine
        for name in self._here - {FILLER}:
            engine.hold(name)
        if FILLER not in self._here:
            greedy = Sampling(temperature=0.0, ignore_eos=True)
            engine.start(FILLER, GenerationSpec(FILLER, FILLER_PROMPT, greedy, FILLER_STEPS), ())
            self._here.add(FILLER)
        else:
            engine.unhold(FILLER)
        engine.limit_step(None)
        result = engine.step()
        if any(token.finish is not None for token in result.tokens):
            self._here.discard(FILLER)
        else:
            engine.hold(FILLER)
        self._rows = []


def main() -> int:
    """Run a job file and write the results beside it."""
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ControlJob)
    engine = open_engine(job.model, cores=job.cores)
    control = Control(engine)
    try:
        results = [control.repeat(each) for each in job.rounds]
    finally:
        engine.close()
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
