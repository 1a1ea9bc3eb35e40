#!/usr/bin/env python
"""Measure the pause of a move, as a client sees it, between two real vLLM workers on this machine's CPU.

Progress goes to stderr, the table to stdout, one line of verdict last. The exit status is 0 when every claim
holds, 1 when one does not, 2 when the bench could not run, 130 after Ctrl-C, 143 when it was
terminated. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

# A script's own folder is on the path, the project's is not.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import trio

from ops.ending import SAID_BY_SIGNAL, run_command
from ops.handoff_bench.control import ControlResult, control_round, run_controls
from ops.handoff_bench.deployment import Deployment, Size, open_deployment, private_folder
from ops.handoff_bench.figures import cell_json
from ops.handoff_bench.plan import Break, CellPlan, plan_cell
from ops.handoff_bench.report import encode, host_facts, plot, table
from ops.handoff_bench.rounds import Round, RoundResult
from ops.handoff_bench.verdict import broken_claims, claims
from ops.judging import Claim, add_options, conclude, stopwatch
from swapd.errors import SwapdError
from swapd.models.smollm2 import ensure_checkpoint
from swapd.sessions.tokenizer import load_tokenizer

NAMESPACE: Final = "bench"
BLOCK_TOKENS: Final = 32
"""swapd's block on a CPU."""
QUICK_CONTEXTS: Final = (512,)
QUICK_SESSIONS: Final = (1, 2)
QUICK_REPEAT: Final = 4
BROKEN_REPEAT: Final = 2
VERSION: Final = 1

Json = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    try:
        return trio.run(partial(_main, options))
    except SwapdError as error:
        print(f"bench_handoff: {error.code}: {error}", file=sys.stderr)
        return 2


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contexts", type=_numbers, help="prompt lengths in tokens (512,2048,4096)")
    parser.add_argument("--sessions", type=_numbers, help="how many sessions move at once (1,4)")
    parser.add_argument("--repeat", type=int, help="moves a cell (20)")
    parser.add_argument("--plot", type=Path, help="draw it here; by default beside the report")
    parser.add_argument(
        "--break",
        dest="damage",
        choices=[each for each in get_args(Break) if each],
        default="",
        help="damage what is copied, with checksums off: the outputs must differ",
    )
    parser.add_argument("--quick", action="store_true", help="a few moves at 512 tokens, for tests")
    add_options(parser)
    parser.add_argument("--model", type=Path, help="a checkpoint folder (SmolLM2-135M-Instruct)")
    parser.add_argument("--seed", type=int, default=1, help="of prompts and sampling")
    parser.add_argument("--keep", action="store_true", help="keep the private folder with its logs")
    options = parser.parse_args(arguments)
    quick = options.quick or options.damage
    options.contexts = options.contexts or (QUICK_CONTEXTS if quick else (512, 2048, 4096))
    options.sessions = options.sessions or (
        QUICK_SESSIONS if options.quick else (1,) if options.damage else (1, 4)
    )
    options.repeat = options.repeat or (
        BROKEN_REPEAT if options.damage else QUICK_REPEAT if options.quick else 20
    )
    if options.plot is None and options.json is not None:
        options.plot = options.json.with_suffix(".png")
    return options


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(each) for each in text.split(","))
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError("numbers from 1 up, with commas")
    return numbers


async def _main(options: argparse.Namespace) -> int:
    """Run, unless a signal says otherwise; what was started has ended either way."""
    status = 2
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal status
                async for number in signals:
                    status = SAID_BY_SIGNAL + number
                    nursery.cancel_scope.cancel()
                    return

            nursery.start_soon(watch)
            try:
                status = await _bench(options)
            except SwapdError as error:
                print(f"bench_handoff: {error.code}: {error}", file=sys.stderr)
                status = 2
            nursery.cancel_scope.cancel()
    return status


async def _bench(options: argparse.Namespace) -> int:
    report = stopwatch()
    model = options.model or ensure_checkpoint(report=report)
    encode_text = load_tokenizer(model).encode
    cells = [
        plan_cell(
            context, sessions, options.repeat, options.seed, BLOCK_TOKENS, encode_text, bool(options.damage)
        )
        for context in options.contexts
        for sessions in options.sessions
    ]
    with private_folder(options.keep) as folder:
        if options.keep:
            report(f"everything is in {folder}")
        bench = _Bench(folder, model, cells, options.damage, report)
        figures = await bench.run()
        judged = (
            broken_claims(figures)
            if options.damage
            else claims(figures, bench.block_bytes, timing=not options.no_timing_claims)
        )
    return _tell(options, figures, judged, bench.seconds)


class _Bench:
    """The measured part, then the control runs, then the figures."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        cells: Sequence[CellPlan],
        damage: Break,
        report: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._model = model
        self._cells = cells
        self._damage = damage
        self._report = report
        self.block_bytes = 0
        self.seconds: dict[str, float] = {}

    async def run(self) -> list[Json]:
        began_s = trio.current_time()
        async with open_deployment(
            self._folder, self._model, _size(self._cells), self._damage, self._report
        ) as deployment:
            self._spent("start", began_s)
            self.block_bytes = deployment.info.block_bytes
            results = [await self._measure(cell, deployment) for cell in self._cells]
            await deployment.collect()
            steps, config = deployment.steps, deployment.config.models[0]
        began_s = trio.current_time()
        # Both clocks count from somewhere, at one pace.
        clock_s = trio.current_time() - time.monotonic()
        wanted = [
            control_round(_name(cell, number), result, steps, NAMESPACE, clock_s)
            for cell, rounds in zip(self._cells, results, strict=True)
            for number, result in enumerate(rounds)
        ]
        controls = await run_controls(self._folder, config, wanted, self._report)
        self._spent("control", began_s)
        return [
            cell_json(cell, self._with_control(cell, rounds, controls), steps, clock_s, BLOCK_TOKENS)
            for cell, rounds in zip(self._cells, results, strict=True)
        ]

    async def _measure(self, cell: CellPlan, deployment: Deployment) -> list[RoundResult]:
        began_s = trio.current_time()
        results = []
        for number, each in enumerate(cell.rounds):
            name = _name(cell, number)
            load = os.getloadavg()[0]
            self._report(f"{name}: round {number + 1} of {len(cell.rounds)} (load average {load:.1f})")
            results.append(await Round(deployment, each, partial(self._say, name)).run())
        self._spent(f"{cell.context} x {cell.sessions}", began_s)
        return results

    def _with_control(
        self, cell: CellPlan, rounds: Sequence[RoundResult], controls: dict[str, ControlResult]
    ) -> list[tuple[RoundResult, ControlResult]]:
        return [(result, controls[_name(cell, number)]) for number, result in enumerate(rounds)]

    def _say(self, name: str, line: str) -> None:
        self._report(f"{name}: {line}")

    def _spent(self, what: str, began_s: float) -> None:
        self.seconds[what] = round(trio.current_time() - began_s, 1)
        self._report(f"{what}: {self.seconds[what]:.0f} s")


def _name(cell: CellPlan, number: int) -> str:
    return f"{cell.context} tokens, {cell.sessions} at once, {number}"


def _size(cells: Sequence[CellPlan]) -> Size:
    def blocks(tokens: int) -> int:
        return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS

    return Size(
        session_tokens=blocks(max(cell.tokens for cell in cells)),
        tokens=max(cell.sessions * blocks(cell.tokens) for cell in cells),
        sessions=max(cell.sessions for cell in cells),
    )


def _tell(
    options: argparse.Namespace, figures: list[Json], judged: list[Claim], seconds: dict[str, float]
) -> int:
    host = host_facts()
    if options.json is not None:
        options.json.write_text(
            encode(
                {
                    "version": VERSION,
                    "host": host,
                    "options": {
                        "contexts": list(options.contexts),
                        "sessions": list(options.sessions),
                        "repeat": options.repeat,
                        "seed": options.seed,
                        "break": options.damage or None,
                    },
                    "seconds": seconds,
                    "cells": figures,
                    "claims": [
                        {"claim": claim.name, "holds": claim.holds, "detail": claim.detail}
                        for claim in judged
                    ],
                    "holds": all(claim.holds for claim in judged),
                }
            )
        )
    if options.plot is not None and not options.damage:
        try:
            plot(figures, options.plot, host)
        except ImportError:
            print("bench_handoff: no plot: matplotlib is not installed", file=sys.stderr)
    return conclude(table(figures), judged)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(run_command(main))
