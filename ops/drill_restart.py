#!/usr/bin/env python
"""Kill the coordinator under running sessions, stop a worker and continue it, and see that nobody notices.

A private service with two sim workers. Part 1: SIGKILL of the coordinator and a new start; every session goes
on and the service is ready soon after it has found its workers. Part 2: a worker is stopped, its sessions get
a new owner, and it is continued: what it says late is fenced. Part 3: a worker is stopped until it counts as
dead. What each client received is compared token by token with an engine that nobody moved.

Progress goes to stderr, the table to stdout, one line of summary last. The exit status is 0 when every claim
holds, 1 when one does not, 2 when the drill could not run, 130 after Ctrl-C, 143 when it was terminated.
"""

from __future__ import annotations

import argparse
import sys
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
from ops.restarting.restart import kill_and_restart
from ops.restarting.silence import stop_until_dead, stop_until_moved
from ops.soaking.rounds import leaves
from tests.e2e.deployment import Deployment

PARTS: Final = ("restart", "late", "silent")
CONFIG: Final = """
[sim]
step_ms = {step_ms}
blocks = {blocks}

[timers]
dead_s = {dead_s}
"""
DEAD_S: Final = 10.0
BLOCKS: Final = 16384
"""One worker has room for all sessions, whatever they ask for."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    found: list[Findings] = []
    status = 130
    try:
        trio.run(partial(_main, options, found))
        status = 0 if all(part.holds for part in found) else 1
    except* KeyboardInterrupt:
        pass
    except* AssertionError as group:
        print(f"drill_restart: could not run: {leaves(group)[0]}", file=sys.stderr)
        status = 2
    except* trio.TooSlowError:
        print("drill_restart: could not run: the service did not come to rest in time", file=sys.stderr)
        status = 2
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    print(table(found))
    failed = sum(not claim.holds for part in found for claim in part.claims)
    claims = sum(len(part.claims) for part in found)
    if status == 0:
        print(f"drill_restart: ok: all {claims} claims hold")
    else:
        print(f"drill_restart: FAILED: {failed} of {claims} claims do not hold, {len(found)} parts ran")
    return status


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    parser.add_argument("--sessions", type=int, default=50, help="sessions at the coordinator's end (50)")
    parser.add_argument("--tokens", type=int, default=400, help="tokens of each of those (400)")
    parser.add_argument("--stopped-sessions", type=int, default=8, help="sessions around a stop (8)")
    parser.add_argument("--stop-s", type=float, default=60.0, help="how long a worker is stopped (60)")
    parser.add_argument("--step-ms", type=float, default=20.0, help="of the sim engine (20)")
    parser.add_argument("--max-ready-s", type=float, default=5.0, help="from found workers to ready (5)")
    parser.add_argument("--max-decided-s", type=float, default=15.0, help="from a stop to decisions (15)")
    parser.add_argument("--json", type=Path, help="write all findings here")
    return parser.parse_args(arguments)


async def _main(options: argparse.Namespace, found: list[Findings]) -> None:
    for part in options.part or PARTS:
        # A stopped worker must live through its stop in one part and not in the other.
        dead_s = options.stop_s + 60.0 if part == "late" else min(DEAD_S, options.stop_s)
        deployment = Deployment(
            "sim", extra=CONFIG.format(step_ms=options.step_ms, blocks=BLOCKS, dead_s=dead_s)
        )
        try:
            _tell(f"starting a service for part {part}")
            await deployment.start()
            found.append(await _run(part, deployment, options))
        finally:
            with trio.CancelScope(shield=True):  # bounded: ask, wait, kill
                await trio.to_thread.run_sync(deployment.close)


async def _run(part: str, deployment: Deployment, options: argparse.Namespace) -> Findings:
    stop = {"sessions": options.stopped_sessions, "stop_s": options.stop_s, "tell": _tell}
    if part == "restart":
        findings = await kill_and_restart(
            deployment, sessions=options.sessions, tokens=options.tokens, tell=_tell
        )
        took, most = findings.figures["found_to_ready_s"], options.max_ready_s
        findings.claim(f"ready within {most:g} s of the workers' re-attach", took <= most, f"{took:.3f} s")
    elif part == "late":
        findings = await stop_until_moved(deployment, **stop)
    else:
        findings = await stop_until_dead(deployment, **stop)
        took, most = findings.figures["decided_after_s"], options.max_decided_s
        findings.claim(f"decided within {most:g} s of the stop", took <= most, f"{took:.1f} s")
    return findings


def table(found: Sequence[Findings]) -> str:
    """Every claim with its verdict, and the figures of each part."""
    lines = []
    for part in found:
        lines.append(part.part)
        lines += [f"  {line}" for line in verdicts(part.claims)]
        figures = ", ".join(
            f"{name} {value:.3f}".rstrip("0").rstrip(".") for name, value in part.figures.items()
        )
        lines.append(f"  {figures}")
    return "\n".join(lines)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main))
