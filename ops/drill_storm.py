#!/usr/bin/env python
"""Throw clients out while workers are drained to and fro, and see that each ends with the full sequence.

A private swapd with two sim workers and many sessions, each read by some clients. Clients leave at random
moments, before any event has come too, and all at once in a gust during each drain; they come back by
`Last-Event-ID`, by `?after=`, by both, or over a WebSocket. What each received is compared, event by event
with the others' and token by token with an engine that nobody moved. Same seed: same sessions, clients and
gusts, at other instants. Progress goes to stderr; a table and one line of summary to stdout. The exit status
is 0 when every claim holds, 1 when one does not, 2 when the drill could not run, 130 after Ctrl-C,
143 when it was terminated.
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

from ops.ending import run_command
from ops.judging import verdicts
from ops.restarting.findings import Findings
from ops.soaking.rounds import leaves
from ops.storming.storm import Storm, judge
from tests.e2e.deployment import Deployment

CONFIG: Final = """
[sim]
step_ms = {step_ms}
blocks = 8192

[timers]
heartbeat_s = 0.25
suspect_s = 30.0
dead_s = 90.0
rpc_s = 20.0
reserve_s = 20.0
freeze_s = 20.0
prepare_s = 20.0
decide_s = 40.0
"""
"""So patient that a busy machine fails no move by itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    status = 130
    try:
        status = trio.run(partial(_main, options))
    except* KeyboardInterrupt:
        pass
    except* AssertionError as group:
        print(f"drill_storm: could not run: {leaves(group)[0]}", file=sys.stderr)
        status = 2
    except* trio.TooSlowError:
        print("drill_storm: could not run: a drain did not end in time", file=sys.stderr)
        status = 2
    return status


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drains", type=int, default=20, help="how often a worker is drained (20)")
    parser.add_argument("--sessions", type=int, default=20, help="sessions at a time (20)")
    parser.add_argument("--clients", type=int, default=2, help="clients of each session (2)")
    parser.add_argument("--tokens", type=int, default=600, help="of a session, at most (600)")
    parser.add_argument("--reconnects", type=int, default=300, help="that there must be at least (300)")
    parser.add_argument("--step-ms", type=float, default=20.0, help="of the sim engine (20)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn (1)")
    parser.add_argument(
        "--cut", action="store_true", help="cancel what still runs after the last drain, in place of its end"
    )
    parser.add_argument("--json", type=Path, help="write what was found here")
    return parser.parse_args(arguments)


async def _main(options: argparse.Namespace) -> int:
    began = time.monotonic()
    deployment = Deployment("sim", extra=CONFIG.format(step_ms=options.step_ms))
    try:
        _tell("starting a service with two sim workers")
        await deployment.start()
        storm = Storm(
            deployment,
            sessions=options.sessions,
            clients=options.clients,
            tokens=options.tokens,
            seed=options.seed,
            cut=options.cut,
        )
        await storm.run(options.drains, _tell)
        found = await judge(storm, deployment, options.drains, options.reconnects)
    finally:
        with trio.CancelScope(shield=True):  # bounded: ask, wait, kill
            await trio.to_thread.run_sync(deployment.close)
    found.figures["took_s"] = time.monotonic() - began
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    print(_table(found))
    print(_summary(found, options.seed))
    return 0 if found.holds else 1


def _table(found: Findings) -> str:
    """Every figure, then every claim with its verdict."""
    lines = [f"{name:32}{value:>10.0f}" for name, value in found.figures.items()]
    return "\n".join(lines + verdicts(found.claims))


def _summary(found: Findings, seed: int) -> str:
    failed = sum(not claim.holds for claim in found.claims)
    verdict = "ok" if not failed else f"FAILED: {failed} of {len(found.claims)} claims do not hold"
    figure = found.figures
    return (
        f"drill_storm: {verdict}: seed {seed}, {figure['reconnects']:.0f} reconnects"
        f" ({figure['reconnects_during_drains']:.0f} during drains,"
        f" {figure['reconnects_before_any_event']:.0f} before any event), {figure['moves']:.0f} moves,"
        f" {figure['clients']:.0f} clients, {figure['tokens']:.0f} tokens, {figure['took_s']:.0f} s"
    )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main))
