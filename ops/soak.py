#!/usr/bin/env python
"""Run a private swapd with two sim workers for a while, and harm it all the time.

Many sessions, clients that come and go, drains back and forth, cancelled half-way, workers and the
coordinator killed and stopped at random moments. After each round everything must be as if nothing had
happened: streams whole and equal to the reference, one end each, nothing held anywhere. A round is given by
its seed. Progress goes to stderr, one line of summary last to stdout. The exit status is 0 when everything
held, 1 when something did not, 2 when the soak could not run, 130 after Ctrl-C, 143 when it was terminated.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

# A script's own folder is on the path, the project's is not.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
import trio

from ops.ending import run_command
from ops.soaking.rounds import RoundResult, leaves, run_round
from tests.e2e.deployment import Deployment

CONFIG: Final = """
[sim]
step_ms = {step_ms}

[limits]
disconnect_grace_s = 3.0

[timers]
heartbeat_s = 0.25
suspect_s = 1.0
dead_s = 4.0
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    status = 130
    try:
        status = trio.run(partial(_main, options))
    except* KeyboardInterrupt:
        pass
    except* AssertionError as group:
        print(f"soak: could not run: {leaves(group)[0]}", file=sys.stderr)
        status = 2
    return status


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="of the first round; the next ones count up (random)")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long to begin new rounds (2)")
    parser.add_argument("--sessions", type=int, default=10, help="sessions a round (10)")
    parser.add_argument("--chaos-s", type=float, default=6.0, help="seconds of harm a round (6)")
    parser.add_argument("--step-ms", type=float, default=2.0, help="of the sim engine (2)")
    parser.add_argument("--json", type=Path, help="write all rounds here")
    parser.add_argument("--keep", action="store_true", help="keep the private folder with its logs")
    parser.add_argument("--stop-at-first", action="store_true", help="end with the first round that failed")
    return parser.parse_args(arguments)


async def _main(options: argparse.Namespace) -> int:
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 20)
    deployment = Deployment("sim", extra=CONFIG.format(step_ms=options.step_ms))
    # Sessions live through a stop of the coordinator.
    text = deployment.config.read_text()
    deployment.config.write_text(text.replace('stop_workers = "always"', 'stop_workers = "idle"'))
    results: list[RoundResult] = []
    try:
        await deployment.start()
        until = time.monotonic() + options.minutes * 60
        while not results or time.monotonic() < until:
            begun = time.monotonic()
            result = await run_round(
                deployment, seed + len(results), sessions=options.sessions, chaos_s=options.chaos_s
            )
            results.append(result)
            print(_line(result, time.monotonic() - begun), file=sys.stderr, flush=True)
            if result.faults and options.stop_at_first:
                break
    finally:
        if options.keep:
            print(f"kept: {deployment.folder}", file=sys.stderr)
        with trio.CancelScope(shield=True):  # bounded: ask, wait, kill
            await trio.to_thread.run_sync(partial(deployment.close, keep=options.keep))
        if options.json is not None:
            options.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    moves = sum((Counter(result.moves) for result in results), Counter())["completed_native"]
    bad = [result.seed for result in results if result.faults]
    print(
        f"soak: {'ok' if not bad else 'FAILED'}: {len(results)} rounds from seed {seed},"
        f" {sum(r.sessions for r in results)} sessions, {sum(r.tokens for r in results)} tokens,"
        f" {moves} moves" + (f"; failed seeds: {bad}" if bad else "")
    )
    return 1 if bad else 0


def _line(result: RoundResult, took_s: float) -> str:
    parts = [f"round {result.seed}: {took_s:.0f} s"]
    parts += [
        " ".join(f"{name}={count}" for name, count in sorted(counts.items())) or "-"
        for counts in (result.endings, result.acts, result.moves)
    ]
    parts.append("ok" if not result.faults else "FAILED")
    return " | ".join(parts) + "".join(f"\n    {fault[:1500]}" for fault in result.faults)


if __name__ == "__main__":
    sys.exit(run_command(main))
