#!/usr/bin/env python
"""Measure how long many sessions take to leave a worker together, beside what one of them takes alone.

A private service with two sim workers for each arm, a ceiling of moves at once. In a round each arm moves one
session alone, a few times, and then all of them in one drain; arms take turns within a round. Progress goes
to stderr, the table to stdout, one line of verdict last. The exit status is 0 when the claims hold, 1 when
one does not, 2 when the bench could not run, 130 after Ctrl-C, 143 when it was
terminated. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

# A script's own folder is on the path, the project's is not.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import trio

from ops.ending import run_command
from ops.judging import (
    Claim,
    NotRun,
    add_options,
    conclude,
    median_and_most,
    run_bench,
    stopwatch,
    write_report,
)
from tests.e2e.deployment import Deployment, reading

DEFAULT: Final = "default"
"""The arm that is judged: as the service is without a setting."""
OVER_SINGLE: Final = 1.5
SINGLES: Final = 3
WAIT_S: Final = 180.0
BUDGET: Final = 4000
TOKENS_FIRST: Final = 8
MIB: Final = 1 << 20
BLOCK_TOKENS: Final = 16
BLOCK_BYTES: Final = 64 << 10
VERSION: Final = 1

Json = dict[str, Any]

CONFIG: Final = f"""
[sim]
step_ms = 5.0
blocks = 3072
block_tokens = {BLOCK_TOKENS}
block_bytes = {BLOCK_BYTES}
max_model_len = 8192
max_num_seqs = 64
"""


class Drain(NamedTuple):
    """One drain: from its begin to its end, and the copies of it."""

    sessions: int
    moved: int
    wall_s: float
    copied_bytes: int
    copy_s: float
    """From the begin of the first copy to the end of the last one."""
    longest_pause_ms: float


class Figure(NamedTuple):
    """One round of one arm."""

    arm: str
    alone: tuple[Drain, ...]
    together: Drain

    @property
    def alone_s(self) -> float:
        """The slowest of the moves alone."""
        return max(each.wall_s for each in self.alone)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_bench("bench_drain", partial(_main, _options(arguments)))


def _main(options: argparse.Namespace) -> int:
    figures = trio.run(partial(_bench, options))
    judged = claims(figures, timing=not options.no_timing_claims)
    report = {
        "version": VERSION,
        "options": {
            "rounds": options.rounds,
            "sessions": options.sessions,
            "prompt": options.prompt,
            "arms": _arms(options),
        },
        "bytes_per_s": bandwidth(figures),
        "figures": [_figure_json(figure) for figure in figures],
    }
    write_report(options.json, report, judged)
    return conclude(table(figures), judged)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="drains of each arm (5)")
    parser.add_argument("--sessions", type=int, default=8, help="sessions that leave together (8)")
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of each prompt (1000)")
    parser.add_argument(
        "--at-once", type=_numbers, default=(), help="more arms: ceilings of moves at once, such as 1,4"
    )
    add_options(parser)
    return parser.parse_args(arguments)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


def _arms(options: argparse.Namespace) -> dict[str, str]:
    """Each arm and its lines of configuration."""
    return {DEFAULT: ""} | {
        f"{number} at once": f"max_concurrent_migrations = {number}" for number in options.at_once
    }


# Judging ----------------------------------------------------------------------------------------------


def bandwidth(figures: Sequence[Figure]) -> float:
    """Bytes a second: the fastest copy of a move alone, of any arm."""
    return max(each.copied_bytes / max(each.copy_s, 1e-6) for figure in figures for each in figure.alone)


def bound_s(figure: Figure, bytes_per_s: float) -> float:
    """What a drain may take (B13): one and a half times the slowest single move, and the bytes."""
    return OVER_SINGLE * figure.alone_s + figure.together.copied_bytes / bytes_per_s


def claims(figures: Sequence[Figure], *, timing: bool) -> list[Claim]:
    """What must hold of the arm without a setting."""
    ours = [figure for figure in figures if figure.arm == DEFAULT]
    drains = [drain for figure in ours for drain in (*figure.alone, figure.together)]
    judged = [
        Claim(
            "every session left by a native move",
            all(drain.moved == drain.sessions for drain in drains),
            f"{sum(drain.moved for drain in drains)} of {sum(drain.sessions for drain in drains)}",
        )
    ]
    if timing:
        bytes_per_s = bandwidth(figures)
        ratios = [figure.together.wall_s / bound_s(figure, bytes_per_s) for figure in ours]
        median = statistics.median(ratios)
        judged.append(
            Claim(
                f"a drain takes at most {OVER_SINGLE:g} x its slowest single move + bytes/bandwidth",
                median <= 1.0,
                f"{median:.2f} of that, median of {len(ratios)} rounds ({max(ratios):.2f} at most)",
            )
        )
    return judged


def table(figures: Sequence[Figure]) -> str:
    """A line for each arm."""
    bytes_per_s = bandwidth(figures)
    lines = [
        f"{bytes_per_s / MIB:.0f} MiB/s in the fastest copy of a move alone",
        "arm            sessions     MiB   alone ms   drain ms    of bound   pause ms",
        "                                    median / most of the rounds",
    ]
    for arm in dict.fromkeys(figure.arm for figure in figures):
        ours = [figure for figure in figures if figure.arm == arm]
        cells = [
            median_and_most(values, digits)
            for values, digits in (
                ([1000 * figure.alone_s for figure in ours], 0),
                ([1000 * figure.together.wall_s for figure in ours], 0),
                ([figure.together.wall_s / bound_s(figure, bytes_per_s) for figure in ours], 2),
                ([figure.together.longest_pause_ms for figure in ours], 0),
            )
        ]
        copied = statistics.median(figure.together.copied_bytes for figure in ours) / MIB
        lines.append(f"{arm:<14} {ours[0].together.sessions:>8}  {copied:6.1f}   " + "   ".join(cells))
    return "\n".join(lines)


def _figure_json(figure: Figure) -> Json:
    return {
        "arm": figure.arm,
        "alone": [drain._asdict() for drain in figure.alone],
        "together": figure.together._asdict(),
    }


# Measuring --------------------------------------------------------------------------------------------


async def _bench(options: argparse.Namespace) -> list[Figure]:
    say = stopwatch()
    figures: list[Figure] = []
    async with AsyncExitStack() as stack:
        arms = {}
        for arm, top in _arms(options).items():
            say(f"starting the service of the arm {arm}")
            arms[arm] = await stack.enter_async_context(_deployed(top))
        for number in range(options.rounds):
            # Each arm is first in its turn, so that none has the quieter half of every round.
            names = [*arms][number % len(arms) :] + [*arms][: number % len(arms)]
            for arm in names:
                figure = await _round(arms[arm], arm, options)
                figures.append(figure)
                say(
                    f"round {number + 1} of {options.rounds}, {arm}: alone {1000 * figure.alone_s:.0f} ms, "
                    f"{options.sessions} together {1000 * figure.together.wall_s:.0f} ms"
                )
    return figures


@asynccontextmanager
async def _deployed(top: str) -> AsyncIterator[Deployment]:
    deployment = Deployment("sim", extra=CONFIG, top=f"{top}\n")
    try:
        # The default of a test's deployment is smaller; all sessions of a round must fit at once.
        text = deployment.config.read_text().replace(
            f"arena_bytes = {64 * MIB}", f"arena_bytes = {512 * MIB}"
        )
        deployment.config.write_text(text)
        await deployment.start(ready_s=WAIT_S)
        yield deployment
    finally:
        await trio.to_thread.run_sync(deployment.close)


async def _round(deployment: Deployment, arm: str, options: argparse.Namespace) -> Figure:
    """One session alone, there and back again; then it and all others together."""
    names = [await _create(deployment, 0, options.prompt)]
    try:
        async with _read(deployment, names):
            where = await deployment.where(names[0]) or ""
            alone = []
            for _ in range(SINGLES):
                alone.append(await _drain(deployment, where))
                where = _other(where)
        names += [await _create(deployment, number, options.prompt) for number in range(1, options.sessions)]
        async with _read(deployment, names):
            # Whoever is on the other worker comes here first.
            await _drain(deployment, _other(where))
            together = await _drain(deployment, where)
    finally:
        for name in names:
            await deployment.call("DELETE", f"/v1/sessions/{name}")
    await _until(lambda: _empty(deployment), "the workers to be empty")
    if together.sessions != options.sessions:
        raise NotRun(f"{together.sessions} of {options.sessions} sessions were there to be moved")
    return Figure(arm, tuple(alone), together)


async def _create(deployment: Deployment, number: int, prompt: int) -> str:
    ids = [(number * 31 + at) % 1000 + 1 for at in range(prompt)]
    return await deployment.create(ids, BUDGET)


@asynccontextmanager
async def _read(deployment: Deployment, names: Sequence[str]) -> AsyncIterator[None]:
    """Read them all; entered once each has given tokens, left with the sessions unended."""

    async def read(*, task_status: trio.TaskStatus[None]) -> None:
        async with reading(deployment, *names) as readings:
            for one in readings:
                await one.wait_tokens(TOKENS_FIRST, WAIT_S)
            task_status.started()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await nursery.start(read)
        yield
        nursery.cancel_scope.cancel()


async def _drain(deployment: Deployment, worker: str) -> Drain:
    body = {"deadline_s": WAIT_S}
    view = await deployment.call("POST", f"/v1/workers/{worker}/drains", body, expect=202)
    drain = view["id"]

    async def over() -> bool:
        nonlocal view
        view = await deployment.call("GET", f"/v1/drains/{drain}")
        return bool(view["finished_at"] is not None)

    await _until(over, f"the drain of {worker}")
    moves = [each for each in view["sessions"] if each["outcome"] == "completed_native"]
    began = [each["copy_started_at"] for each in moves]
    ended = [each["copy_ended_at"] for each in moves]
    return Drain(
        sessions=len(view["sessions"]),
        moved=len(moves),
        wall_s=view["finished_at"] - view["created_at"],
        copied_bytes=sum(each["precopied_bytes"] + each["frozen_bytes"] for each in moves),
        copy_s=max(ended, default=0.0) - min(began, default=0.0),
        longest_pause_ms=max((each["frozen_ms"] or 0.0 for each in moves), default=0.0),
    )


async def _empty(deployment: Deployment) -> bool:
    workers = await deployment.workers()
    return all(view["sessions"] == 0 and view["admitting"] for view in workers.values())


async def _until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    # A look costs the service some of the core that it shares with a worker.
    with trio.move_on_after(WAIT_S):
        while True:
            if await holds():
                return
            await trio.sleep(0.1)
    raise NotRun(f"waited {WAIT_S:.0f} s for {what}")


def _other(worker: str) -> str:
    return "b" if worker == "a" else "a"


if __name__ == "__main__":
    if len(os.sched_getaffinity(0)) < 2:
        print("bench_drain: one core has no room for two workers and a service", file=sys.stderr)
    with suppress(BrokenPipeError):
        sys.exit(run_command(main))
