#!/usr/bin/env python
"""Move a session to and fro, abort every other move, a thousand times, and see that nothing is left behind.

A private swapd with two workers. Even cycles drain the worker that has the session; odd ones abort the move
at one of the failpoints before the commit, each in turn and in both directions. After some cycles of warming
up, and again at the end, all comes to rest: then blocks, sessions, reservations, leases, rows, processes,
descriptors, threads, tasks and shared memory must be what they were, and memory must not have grown with the
cycles. The client's tokens are compared with the uninterrupted ones. Progress goes to stderr; a table and one
line of summary to stdout. The exit status is 0 when every claim holds, 1 when one does not, 2 when the drill
could not run, 130 after Ctrl-C, 143 when it was terminated.
"""

from __future__ import annotations

import argparse
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

from ops.crashing.options import add_options, model_of
from ops.crashing.stage import Stage
from ops.ending import run_command
from ops.leaking.cycles import Cycles
from ops.leaking.drift import drift
from ops.leaking.footprint import rss_anon_kib
from ops.leaking.pace import PATIENT
from ops.leaking.rest import QUIESCE_S, ROLES, Rest, come_to_rest
from ops.leaking.steps import ABORTS
from ops.leaking.traveller import Traveller
from ops.leaking.verdict import Seen, aborted_at, claims, summary, table
from ops.soaking.rounds import leaves
from swapd.failpoints import KEPT_IMPORT

CYCLES: Final = {"sim": 1000, "vllm": 200}
TELL_EVERY: Final = 50


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    status = 130
    try:
        status = trio.run(partial(_main, options))
    except* KeyboardInterrupt:
        pass
    except* AssertionError as group:
        print(f"drill_leak: could not run: {leaves(group)[0]}", file=sys.stderr)
        status = 2
    except* trio.TooSlowError:
        print(
            "drill_leak: could not run: the service did not do what it was asked to in time", file=sys.stderr
        )
        status = 2
    return status


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, help="measured (1000; 200 for vllm)")
    parser.add_argument("--warm", type=int, default=20, help="cycles before the baseline (20)")
    parser.add_argument(
        "--at",
        default="",
        help="abort only where the name has this, as in 'I.after' or 'target R.before cancel'",
    )
    parser.add_argument(
        "--quiesce-s", type=float, default=QUIESCE_S, help="how long coming to rest may take (10)"
    )
    parser.add_argument(
        "--break", dest="broken", choices=(KEPT_IMPORT,), help="break swapd on purpose: the drill must fail"
    )
    add_options(parser, "all that was seen")
    options = parser.parse_args(arguments)
    if not any(options.at in abort.name for abort in ABORTS):
        parser.error(f"--at: there is no such abort; they are {', '.join(abort.name for abort in ABORTS)}")
    return options


async def _main(options: argparse.Namespace) -> int:
    stage = Stage(options.engine, model_of(options), options.step_ms, PATIENT)
    if options.broken:
        stage.break_order(options.broken)
    try:
        _tell(f"starting a service with two {options.engine} workers")
        await stage.start()
        seen = await _run(stage, options)
    finally:
        if options.keep:
            print(f"kept: {stage.deployment.folder}", file=sys.stderr)
        with trio.CancelScope(shield=True):  # bounded: ask, wait, kill
            await trio.to_thread.run_sync(partial(stage.close, options.keep))
    found = claims(seen)
    if options.json is not None:
        report = {"claims": found, "seen": seen}
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    print(table(seen, found))
    print(summary(seen, found))
    return 0 if all(claim.holds for claim in found) else 1


async def _run(stage: Stage, options: argparse.Namespace) -> Seen:
    count = options.cycles if options.cycles is not None else CYCLES[options.engine]
    async with trio.open_nursery() as nursery:
        traveller = Traveller(stage, nursery, options.seed)
        await traveller.generate_references()
        aborts = tuple(abort for abort in ABORTS if options.at in abort.name)
        warm = Cycles(stage, traveller, aborts)
        for number in range(options.warm):
            if not warm.stuck:
                await warm.run(number)
        baseline = await _rest(stage, traveller, None, options.quiesce_s)
        _tell(f"{options.warm} cycles to warm up; at rest")
        began = time.monotonic()
        cycles = Cycles(stage, traveller, aborts)
        memory = {role: [kib] for role, kib in _memory(stage).items()}
        for number in range(0 if warm.stuck else count):
            await cycles.run(number)
            if cycles.stuck:
                break
            for role, kib in _memory(stage).items():
                memory[role].append(kib)
            if (number + 1) % TELL_EVERY == 0:
                faults = len(cycles.faults) + len(traveller.faults)
                _tell(f"{number + 1}/{count} cycles, {time.monotonic() - began:.0f} s, {faults} faults")
        took_s = time.monotonic() - began
        rest = await _rest(stage, traveller, baseline, options.quiesce_s)
        nursery.cancel_scope.cancel()
    return Seen(
        engine=options.engine,
        at=options.at,
        cycles=len(memory["a"]) - 1,
        migrated={f"{source} to {target}": times for (source, target), times in cycles.moved.items()},
        aborted={aborted_at(source, abort): times for (source, abort), times in cycles.aborted.items()},
        again=cycles.again,
        sessions=traveller.sessions,
        tokens=traveller.tokens,
        took_s=took_s,
        baseline=baseline,
        rest=rest,
        memory=memory,
        drifts={role: drift(series) for role, series in memory.items()},
        cycle_faults=warm.faults + cycles.faults,
        stream_faults=traveller.faults,
    )


async def _rest(stage: Stage, traveller: Traveller, baseline: Rest | None, within_s: float) -> Rest:
    await traveller.end()
    return await come_to_rest(stage, baseline, within_s)


def _memory(stage: Stage) -> dict[str, int]:
    return {role: rss_anon_kib(stage.pid(role)) for role in ROLES}


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main))
