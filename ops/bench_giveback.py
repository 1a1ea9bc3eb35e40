#!/usr/bin/env python
"""Measure how soon an owner has a device back: taken back now, and by the owner's own load on its core.

A private service with two sim workers on two lent cores; sessions run on one of them. Progress goes to
stderr, the table to stdout, one line of verdict last. The exit status is 0 when every claim holds, 1 when one
does not, 2 when the bench could not run, 130 after Ctrl-C, 143 when it was terminated.
See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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

THRESHOLD_PCT: Final = 60.0
SUSTAIN_S: Final = 2.0
POLL_S: Final = 0.25
CLOSED_MS: Final = 100.0
OWN_S: Final = 1.0
WAIT_S: Final = 180.0
TOKENS: Final = 4000
SAMPLES_LATE_S: Final = 15.0
"""Readings are written to the store every ten seconds."""
VERSION: Final = 1
CORES: Final = sorted(os.sched_getaffinity(0))
LENT: Final = {"a": "core0", "b": "core1"}
Json = dict[str, Any]

CONFIG: Final = """
[[devices]]
name = "core0"
kind = "cpu"
cores = [%d]

[[devices]]
name = "core1"
kind = "cpu"
cores = [%d]

[owner]
consent = true
presence = "headless"
gamemode = false
resume_after_s = 0.5

[owner.gpu_pressure]
mode = "fixed"
threshold_pct = %g
sustain_s = %g
release_s = 1.0
poll_ms = %d

[sim]
step_ms = 5.0
"""


class Figure(NamedTuple):
    """One give-back. `own_s` is what neither the owner's settings nor the drain explain."""

    how: str
    sessions: int
    moved: int
    closed_ms: float
    answer_ms: float | None
    drain_s: float
    total_s: float
    own_s: float


def main(arguments: Sequence[str] | None = None) -> int:
    return run_bench("bench_giveback", partial(_main, _options(arguments)))


def _main(options: argparse.Namespace) -> int:
    if len(CORES) < 2:
        raise NotRun("one core cannot be lent twice")
    figures = trio.run(partial(_bench, options))
    judged = claims(figures, timing=not options.no_timing_claims)
    report = {
        "version": VERSION,
        "options": {"rounds": options.rounds, "sessions": options.sessions},
        "figures": [figure._asdict() for figure in figures],
    }
    write_report(options.json, report, judged)
    return conclude(_table(figures), judged)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="give-backs of each kind (5)")
    parser.add_argument("--sessions", type=int, default=8, help="sessions on the device (8)")
    parser.add_argument("--no-load", action="store_true", help="only take-backs: the cores are busy anyway")
    add_options(parser)
    return parser.parse_args(arguments)


def claims(figures: Sequence[Figure], *, timing: bool) -> list[Claim]:
    """What must hold of the figures."""
    moved = [f"{figure.moved} of {figure.sessions}" for figure in figures]
    judged = [
        Claim(
            "every session left by a native move",
            all(figure.moved == figure.sessions for figure in figures),
            ", ".join(moved),
        )
    ]
    if timing:
        taken = [figure for figure in figures if figure.how == "take back now"]
        closed = max(figure.closed_ms for figure in taken)
        judged.append(
            Claim(
                f"take back now: admission closed within {CLOSED_MS:.0f} ms",
                closed <= CLOSED_MS,
                f"{closed:.1f} ms at most",
            )
        )
        own = max(figure.own_s for figure in figures)
        judged.append(
            Claim(
                f"the service's own part is under {OWN_S:g} s",
                own < OWN_S,
                f"{own:.2f} s at most",
            )
        )
    return judged


def _table(figures: Sequence[Figure]) -> str:
    lines = [
        "                 sessions   closed ms   drain s   total s   own s",
        "                            median / most",
    ]
    for how in dict.fromkeys(figure.how for figure in figures):
        ours = [figure for figure in figures if figure.how == how]
        cells = [
            median_and_most(values, digits)
            for values, digits in (
                ([f.closed_ms for f in ours], 1),
                ([f.drain_s for f in ours], 2),
                ([f.total_s for f in ours], 2),
                ([f.own_s for f in ours], 2),
            )
        ]
        lines.append(f"{how:<16} {ours[0].sessions:>8}   " + "   ".join(cells))
    return "\n".join(lines)


async def _bench(options: argparse.Namespace) -> list[Figure]:
    say = stopwatch()
    # Without loads of ours those of others must not count as the owner's.
    line = (100.0, 3600.0) if options.no_load else (THRESHOLD_PCT, SUSTAIN_S)
    config = CONFIG % (CORES[0], CORES[-1], *line, POLL_S * 1000)
    deployment = Deployment("sim", extra=config, lent=LENT)
    figures: list[Figure] = []
    try:
        say("starting the service and two sim workers")
        await deployment.start(ready_s=WAIT_S)
        for number in range(options.rounds):
            say(f"take back now: round {number + 1} of {options.rounds}")
            figures.append(await _round(deployment, options.sessions, load=False))
        for number in range(0 if options.no_load else options.rounds):
            say(f"load on the core: round {number + 1} of {options.rounds}")
            figures.append(await _round(deployment, options.sessions, load=True))
    finally:
        await trio.to_thread.run_sync(deployment.close)
    return figures


async def _round(deployment: Deployment, sessions: int, *, load: bool) -> Figure:
    """Bring sessions to core 0, have it given back, and see when it was free."""
    call = deployment.call
    await _until(deployment, "core1", lambda view: view["state"] == "lent")
    await call("POST", "/v1/devices/core1/take-back", {})
    await _until(deployment, "core1", lambda view: view["state"] == "free")
    await _until(deployment, "core0", lambda view: view["state"] == "lent")
    names = [await deployment.create([number + 1, 2, 3], TOKENS) for number in range(sessions)]
    async with trio.open_nursery() as nursery:
        await nursery.start(_read, deployment, names)
        await call("DELETE", "/v1/devices/core1/take-back")
        await _until(deployment, "core1", lambda view: view["state"] == "lent")
        before = (await call("GET", "/v1/devices/core0"))["last_give_back"]
        asked = time.monotonic()
        answer_ms: float | None = None

        def done(view: Json) -> bool:
            return view["state"] == "free" and view["last_give_back"] != before

        if load:
            with _load_on(CORES[0]):
                view = await _until(deployment, "core0", done)
        else:
            await call("POST", "/v1/devices/core0/take-back", {})
            answer_ms = (time.monotonic() - asked) * 1000
            view = await _until(deployment, "core0", done)
        figure = await _figure(deployment, view["last_give_back"], sessions, answer_ms)
        if not load:
            await call("DELETE", "/v1/devices/core0/take-back")
        for name in names:
            await call("DELETE", f"/v1/sessions/{name}")
        nursery.cancel_scope.cancel()
    await _until(deployment, "core0", lambda view: view["state"] == "lent")
    return figure


async def _read(deployment: Deployment, names: Sequence[str], *, task_status: trio.TaskStatus[None]) -> None:
    """Read them all; started once each has given tokens."""
    async with reading(deployment, *names) as readings:
        for one in readings:
            await one.wait_tokens(2, WAIT_S)
        task_status.started()
        await trio.sleep_forever()


async def _figure(deployment: Deployment, back: Json, sessions: int, answer_ms: float | None) -> Figure:
    drains = [await deployment.call("GET", f"/v1/drains/{drain}") for drain in back["drains"]]
    drain_s = max(drain["finished_at"] for drain in drains) - min(drain["created_at"] for drain in drains)
    moved = sum(s["outcome"] == "completed_native" for drain in drains for s in drain["sessions"])
    total_s, expected_s = back["free_in_s"], drain_s
    if answer_ms is None:
        total_s += back["began_at"] - await _first_over(deployment, back["began_at"])
        expected_s += SUSTAIN_S + POLL_S
    return Figure(
        "take back now" if answer_ms is not None else "load on the core",
        sessions,
        moved,
        back["closed_in_ms"],
        answer_ms,
        drain_s,
        total_s,
        max(total_s - expected_s, 0.0),
    )


async def _first_over(deployment: Deployment, engaged_at: float) -> float:
    """When the first of the readings over the threshold was taken that led to the give-back."""
    with trio.move_on_after(SAMPLES_LATE_S):
        while True:
            path = f"/v1/devices/core0/samples?since={engaged_at - 60}"
            samples = (await deployment.call("GET", path))["samples"]
            if any(sample["engaged"] for sample in samples if sample["at"] >= engaged_at - 0.5):
                break
            await trio.sleep(0.5)
    over = [s for s in samples if s["reading_pct"] is not None and s["at"] <= engaged_at + 0.5]
    first = engaged_at
    for sample in reversed(over):
        if sample["reading_pct"] < THRESHOLD_PCT:
            break
        first = sample["at"]
    return min(float(first), engaged_at)


async def _until(deployment: Deployment, device: str, holds: Callable[[Json], bool]) -> Json:
    view: Json = {}
    with trio.move_on_after(WAIT_S):
        while True:
            view = await deployment.call("GET", f"/v1/devices/{device}")
            if holds(view):
                return view
            await trio.sleep(0.02)
    views = (await deployment.call("GET", "/v1/devices"))["devices"]
    told = "; ".join(f"{each['name']} is {each['state']}: {each['sentence']}" for each in views)
    raise NotRun(f"waited {WAIT_S:.0f} s for {device}; is the machine busy with other things? {told}")


@contextmanager
def _load_on(core: int) -> Iterator[None]:
    """Somebody's own work, pinned to one core."""
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(run_command(main))
