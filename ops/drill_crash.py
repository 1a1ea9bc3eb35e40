#!/usr/bin/env python
"""Stop a move at every step, hurt somebody there, let go, and see that no token is lost or doubled.

A private swapd with two workers. For each cell of the matrix (step x victim) a session is read by a client
while its worker is drained; the step is held by a failpoint, the victim is killed, stopped, refused or
cancelled, and the step goes on. Then the client's tokens are compared with the uninterrupted ones, the
drain's report with what the matrix allows, and everything that could be left behind is looked for. Progress
goes to stderr; a table and one line of summary to stdout. The exit status is 0 when every cell held, 1 when
one did not, 2 when the drill could not run, 130 after Ctrl-C, 143 when it was terminated.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

# A script's own folder is on the path, the project's is not.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
import trio

from ops.crashing.cells import CellResult, Trial
from ops.crashing.matrix import MATRIX, SAMPLE, STEPS, Cell, all_cells, chosen
from ops.crashing.options import add_options, model_of
from ops.crashing.pace import PACES, Kind, Pace
from ops.crashing.reader import Reader
from ops.crashing.report import summary, table
from ops.crashing.stage import Stage
from ops.ending import run_command
from ops.soaking.clients import Plan
from ops.soaking.rounds import leaves
from swapd.failpoints import COMMIT_ORDER

TRIES: Final = 4
"""Each with a session twice as long as the last."""
KINDS_IN_ORDER: Final[tuple[Kind, ...]] = ("patient", "hurried", "grace", "owner")
OWNERS_TOKENS: Final = 1200
"""A session that is still there when its owner has been seen, and it can be moved on."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    status = 130
    try:
        status = trio.run(partial(_main, options))
    except* KeyboardInterrupt:
        pass
    except* AssertionError as group:
        print(f"drill_crash: could not run: {leaves(group)[0]}", file=sys.stderr)
        status = 2
    return status


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=_cells, help="some only: STEP:VICTIM[:no-replay],... (all)")
    parser.add_argument("--list", action="store_true", help="print the cells and do nothing")
    parser.add_argument("--after", action="store_true", help="hold where a step has been done, not before it")
    parser.add_argument("--sample", action="store_true", help="a few cells of each kind of end")
    parser.add_argument("--tokens", type=int, help="of a session (300; 200 for vllm)")
    parser.add_argument(
        "--break", dest="broken", choices=(COMMIT_ORDER,), help="break swapd on purpose: the drill must fail"
    )
    add_options(parser, "all results")
    return parser.parse_args(arguments)


def _cells(text: str) -> list[Cell]:
    try:
        return chosen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


async def _main(options: argparse.Namespace) -> int:
    cells = options.cells or (list(SAMPLE) if options.sample else list(all_cells(after=options.after)))
    if options.after and (options.cells or options.sample):
        cells = [after for cell in cells if (after := cell._replace(after=True)).exists]
    if options.list:
        print("\n".join(f"{cell.name}: {' or '.join(cell.allowed)}" for cell in cells))
        return 0
    model = model_of(options)
    began = time.monotonic()
    results: list[CellResult] = []
    restarts = 0
    stage: Stage | None = None
    try:
        # Together those of one pace, each as long as the others of its victim take.
        for cell in sorted(cells, key=lambda cell: KINDS_IN_ORDER.index(cell.kind)):
            pace = PACES[options.engine, cell.kind]
            if stage is None or not await stage.keep_pace(pace):
                if stage is not None:
                    restarts += stage.restarts
                    await _close(stage, options)
                stage = Stage(options.engine, model, options.step_ms, pace)
                if options.broken:
                    stage.break_order(options.broken)
                await stage.start()
            result = await _try(stage, cell, options, options.seed + cells.index(cell))
            results.append(result)
            print(_line(result, len(results), len(cells)), file=sys.stderr, flush=True)
            if result.faults:
                await stage.recover()
    finally:
        if stage is not None:
            restarts += stage.restarts
            await _close(stage, options)
        if options.json is not None:
            options.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    print(table(results))
    print(summary(results, restarts, time.monotonic() - began))
    return 1 if any(result.faults for result in results) else 0


async def _close(stage: Stage, options: argparse.Namespace) -> None:
    if options.keep:
        print(f"kept: {stage.deployment.folder}", file=sys.stderr)
    with trio.CancelScope(shield=True):  # bounded: ask, wait, kill
        await trio.to_thread.run_sync(partial(stage.close, options.keep))


async def _try(stage: Stage, cell: Cell, options: argparse.Namespace, seed: int) -> CellResult:
    """One cell; again, with a longer session, when this one was over before it came to the step."""
    for tries in range(1, TRIES + 1):
        plan = _plan(options, cell, seed, 2 ** (tries - 1))
        reference = await _reference(stage, plan)
        trial = Trial(stage, cell, plan, reference)
        result = await trial.run()
        if trial.reached or tries == TRIES:
            return result
        await stage.recover()
    raise AssertionError("unreachable")


def _plan(options: argparse.Namespace, cell: Cell, seed: int, times: int) -> Plan:
    sim = options.engine == "sim"
    # A real engine's cells share a prompt, so that what it says uninterrupted is generated once for all.
    rng = random.Random(seed if sim else options.seed)
    tokens = options.tokens or (300 if sim else 200)
    if cell.victim == "owner":
        tokens = max(tokens, OWNERS_TOKENS)
    if sim:
        # A source that decodes on while the target hangs must still be there when that is over, by the
        # pace of the engine, which a busy machine only slows down.
        tokens = max(tokens, int(1.5 * _hangs_s(cell, PACES["sim", cell.kind]) * 1000 / options.step_ms))
    elif cell.step in "PRCF" and cell.victim in ("target-stop", "target-pause"):
        times *= 6 if cell.victim == "target-stop" else 3
    # Greedy and seeded in turn, in every row and every column.
    seeded = (list(STEPS).index(cell.step) + list(MATRIX).index(cell.victim)) % 2
    return Plan(
        prompt=tuple(rng.randint(1, 1000) for _ in range(rng.choice([15, 16, 17, 90]) if sim else 90)),
        max_new_tokens=tokens * times,
        temperature=0.8 if sim and seeded else 0.0,
        seed=seed,
        allow_replay_fallback=cell.replay,
        on_disconnect="cancel" if cell.victim == "client-lost" else "pause",
        begin_after_s=0.0,
        cancel_at=None,
        restless=0.0,
    )


def _hangs_s(cell: Cell, pace: Pace) -> float:
    """For how long a session decodes while its target hangs, until its move is given up."""
    if cell.victim == "target-pause":
        return pace.pause_s
    if cell.victim != "target-stop" or cell.step not in "PRCF":
        return 0.0
    # At F, too: a source that is not ready decodes on, and copies again.
    copies = cell.step in "CF" or (cell.step == "R" and cell.after)
    return pace.stopped_s if copies else pace.timers["reserve_s"] + 1.0


async def _reference(stage: Stage, plan: Plan) -> list[int]:
    """The uninterrupted tokens: computed here for sim, generated once for a real engine."""
    if stage.deployment.engine == "sim":
        return plan.reference()
    key = (plan.prompt, plan.max_new_tokens)
    if key not in _GENERATED:
        answer = await stage.view("POST", "/v1/sessions", plan.body())
        reader = Reader(stage.deployment.client, str(answer["id"]))
        with trio.fail_after(stage.pace.cell_s):
            await reader.run()
        _GENERATED[key] = reader.tokens
    return _GENERATED[key]


_GENERATED: Final[dict[tuple[tuple[int, ...], int], list[int]]] = {}


def _line(result: CellResult, number: int, of: int) -> str:
    moves = " ".join(f"{outcome}({reason or '-'})@{phase}" for outcome, reason, phase in result.moves) or "-"
    told = f"{result.outcome}({result.reason or '-'})"
    text = f"{number}/{of} {result.name}: {result.class_} {result.took_s:.1f} s | {moves} | drain: {told}"
    return text + "".join(f"\n    {kind}: {what[:1500]}" for kind, what in result.faults)


if __name__ == "__main__":
    sys.exit(run_command(main))
