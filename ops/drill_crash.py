#!/usr/bin/env python
"""Stop a move at every step, hurt somebody there, let go, and see that no token is lost or doubled.

A private swapd with two workers. For each cell of the matrix (step x victim) a session is read by a client
while its worker is drained; the step is held by a failpoint, the victim is killed, stopped, refused or
cancelled, and the step goes on. Then the client's tokens are compared with the uninterrupted ones, the
drain's report with what the matrix allows, and everything that could be left behind is looked for. Progress
goes to stderr; a table and one line of summary to stdout. The exit status is 0 when every cell held, 1 when
one did not, 2 when the drill could not run, 130 after Ctrl-C.
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
from ops.crashing.matrix import SAMPLE, Cell, all_cells, chosen
from ops.crashing.pace import PACES, Pace
from ops.crashing.reader import Reader
from ops.crashing.report import summary, table
from ops.crashing.stage import Stage
from ops.leaking.pace import PATIENT
from ops.soaking.clients import Plan
from ops.soaking.rounds import leaves
from swapd.failpoints import COMMIT_ORDER

TRIES: Final = 3


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
    parser.add_argument("--engine", choices=("sim", "vllm"), default="sim")
    parser.add_argument("--model", default=".", help="the checkpoint folder for vllm")
    parser.add_argument("--sample", action="store_true", help="a few cells of each kind of end")
    parser.add_argument("--tokens", type=int, help="of a session (300; 200 for vllm)")
    parser.add_argument("--step-ms", type=float, default=4.0, help="of the sim engine (4)")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts (1)")
    parser.add_argument(
        "--patient",
        action="store_true",
        help="long timers, so that a busy machine aborts no move; not for cells that stop a process",
    )
    parser.add_argument(
        "--break", dest="broken", choices=(COMMIT_ORDER,), help="break swapd on purpose: the drill must fail"
    )
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("--keep", action="store_true", help="keep the private folder with its logs")
    options = parser.parse_args(arguments)
    cells = options.cells or all_cells()
    if options.patient and any(cell.victim.endswith(("-stop", "-pause", "-late")) for cell in cells):
        parser.error("--patient needs --cells in which no process is stopped until a timer ends")
    return options


def _cells(text: str) -> list[Cell]:
    try:
        return chosen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


async def _main(options: argparse.Namespace) -> int:
    cells = options.cells or (list(SAMPLE) if options.sample else list(all_cells()))
    cells = [cell._replace(after=options.after) for cell in cells]
    if options.list:
        print("\n".join(f"{cell.name}: {' or '.join(cell.allowed)}" for cell in cells))
        return 0
    began = time.monotonic()
    patient = PATIENT if options.patient else None
    stage = Stage(options.engine, options.model, options.step_ms, patient)
    if options.broken:
        stage.break_order(options.broken)
    results: list[CellResult] = []
    try:
        await stage.start()
        for number, cell in enumerate(cells):
            result = await _try(stage, cell, options, options.seed + number)
            results.append(result)
            print(_line(result, number, len(cells)), file=sys.stderr, flush=True)
            if result.faults:
                await stage.recover()
    finally:
        if options.keep:
            print(f"kept: {stage.deployment.folder}", file=sys.stderr)
        with trio.CancelScope(shield=True):  # bounded: ask, wait, kill
            await trio.to_thread.run_sync(partial(stage.close, options.keep))
        if options.json is not None:
            options.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    print(table(results))
    print(summary(results, stage.restarts, time.monotonic() - began))
    return 1 if any(result.faults for result in results) else 0


async def _try(stage: Stage, cell: Cell, options: argparse.Namespace, seed: int) -> CellResult:
    """One cell; again, with a longer session, when this one was over before it came to the step."""
    for tries in range(1, TRIES + 1):
        plan = _plan(options, cell, seed, tries)
        reference = await _reference(stage, plan)
        trial = Trial(stage, cell, plan, reference)
        result = await trial.run()
        if trial.reached or tries == TRIES:
            return result
        await stage.recover()
    raise AssertionError("unreachable")


def _plan(options: argparse.Namespace, cell: Cell, seed: int, times: int) -> Plan:
    rng = random.Random(seed)
    sim = options.engine == "sim"
    tokens = options.tokens or (300 if sim else 200)
    if sim:
        # A source that decodes on while the target hangs must still be there when that is over, by the
        # pace of the engine, which a busy machine only slows down.
        tokens = max(tokens, int(1.5 * _hangs_s(cell, PACES["sim"]) * 1000 / options.step_ms))
    elif cell.step in "PRCF" and cell.victim in ("target-stop", "target-pause"):
        times *= 6 if cell.victim == "target-stop" else 3
    return Plan(
        prompt=tuple(rng.randint(1, 1000) for _ in range(rng.choice([15, 16, 17, 90]) if sim else 90)),
        max_new_tokens=tokens * times,
        temperature=rng.choice([0.0, 0.8]) if sim else 0.0,
        seed=seed,
        allow_replay_fallback=cell.replay,
        on_disconnect="pause",
        begin_after_s=0.0,
        cancel_at=None,
        restless=0.0,
    )


def _hangs_s(cell: Cell, pace: Pace) -> float:
    """For how long a session may have to go on by itself, until the cell has seen what it waits for."""
    hangs = {"target-stop": pace.stopped_s, "target-pause": pace.pause_s, "target-late": pace.late_s}
    return hangs.get(cell.victim, 0.0)


async def _reference(stage: Stage, plan: Plan) -> list[int]:
    """The uninterrupted tokens: computed here for sim, generated once for a real engine."""
    if stage.deployment.engine == "sim":
        return plan.reference()
    answer = await stage.view("POST", "/v1/sessions", plan.body())
    reader = Reader(stage.deployment.client, str(answer["id"]))
    with trio.fail_after(120):
        await reader.run()
    return reader.tokens


def _line(result: CellResult, number: int, of: int) -> str:
    moves = " ".join(f"{outcome}({reason or '-'})@{phase}" for outcome, reason, phase in result.moves) or "-"
    told = f"{result.outcome}({result.reason or '-'})"
    text = f"{number + 1}/{of} {result.name}: {result.class_} {result.took_s:.1f} s | {moves} | drain: {told}"
    return text + "".join(f"\n    {kind}: {what[:1500]}" for kind, what in result.faults)


if __name__ == "__main__":
    sys.exit(main())
