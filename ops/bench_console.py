#!/usr/bin/env python
"""Measure the console: how soon a page is painted, what it weighs, and what open consoles cost the service.

A private service with two sim workers on two lent devices, sessions running. First a browser opens each page
again and again; then `--consoles` streams stay open, in turns with none. Progress goes to stderr, tables to
stdout, one line of verdict last. The exit status is 0 when every claim holds, 1 when one does not, 2 when the
bench could not run, 130 after Ctrl-C, 143 when it was terminated. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

# A script's own folder is on the path, the project's is not.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import trio

from ops.console_bench.paint import Paint, paints
from ops.ending import run_command
from ops.judging import Claim, NotRun, add_options, conclude, run_bench, stopwatch, write_report
from tests.e2e.deployment import TOKEN, Deployment

PAGES: Final = ("/", "/devices/core0", "/sessions", "/drains", "/away", "/settings", "/diagnostics")
WATCHED: Final = ("/live/overview", "/live/device/core0", "/live/sessions", "/live/drains")
PAINT_MS: Final = 200.0
PAGE_BYTES: Final = 150_000
CORE_SHARE: Final = 0.05
START_S: Final = 180.0
SESSIONS: Final = 8
TOKENS: Final = 3_500
VERSION: Final = 1
CORES: Final = sorted(os.sched_getaffinity(0))
TICKS: Final = os.sysconf("SC_CLK_TCK")

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

[owner.gpu_pressure]
mode = "fixed"
threshold_pct = 100.0
sustain_s = 600.0
poll_ms = 1000

[sim]
step_ms = 100.0
blocks = 8192
"""


class Cost(NamedTuple):
    """Share of one core that the service used in one arm's turns: `streams` open of `address`."""

    address: str
    streams: int
    shares: tuple[float, ...]
    messages: int


def main(arguments: Sequence[str] | None = None) -> int:
    return run_bench("bench_console", partial(_main, _options(arguments)))


def _main(options: argparse.Namespace) -> int:
    painted, costs = trio.run(partial(_bench, options))
    judged = claims(painted, costs, timing=not options.no_timing_claims)
    report = {
        "version": VERSION,
        "options": {"times": options.times, "consoles": options.consoles, "seconds": options.seconds},
        "pages": [paint._asdict() for paint in painted],
        "costs": [cost._asdict() for cost in costs],
    }
    write_report(options.json, report, judged)
    return conclude(_table(painted, costs), judged)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=20, help="how often each page is opened (20)")
    parser.add_argument("--consoles", type=int, default=50, help="streams open at once (50)")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one turn (6)")
    parser.add_argument("--turns", type=int, default=3, help="turns of each arm (3)")
    parser.add_argument("--pages", nargs="+", default=PAGES, help="which pages to open (all)")
    parser.add_argument("--watched", nargs="+", default=WATCHED, help="which streams to keep open (all)")
    add_options(parser)
    return parser.parse_args(arguments)


def claims(painted: Sequence[Paint], costs: Sequence[Cost], *, timing: bool) -> list[Claim]:
    """What must hold of the figures."""
    heaviest = max(painted, key=lambda paint: paint.bytes)
    judged = [
        Claim(
            f"every page weighs under {PAGE_BYTES // 1000} KB",
            heaviest.bytes < PAGE_BYTES,
            f"{heaviest.bytes / 1000:.0f} KB at most ({heaviest.page})",
        )
    ]
    if timing:
        slowest = max(painted, key=lambda paint: statistics.median(paint.paint_ms))
        median = statistics.median(slowest.paint_ms)
        judged.append(
            Claim(
                f"first paint under {PAINT_MS:.0f} ms, median of {len(slowest.paint_ms)}",
                median < PAINT_MS,
                f"{median:.0f} ms at most ({slowest.page})",
            )
        )
        idle = statistics.median(costs[0].shares)
        dearest = max(costs[1:], key=lambda cost: statistics.median(cost.shares))
        share = statistics.median(dearest.shares) - idle
        judged.append(
            Claim(
                f"{dearest.streams} open consoles cost under {CORE_SHARE:.0%} of a core",
                share < CORE_SHARE,
                f"{share:.1%} at most ({dearest.address}), beside {idle:.1%} without",
            )
        )
    return judged


def _table(painted: Sequence[Paint], costs: Sequence[Cost]) -> str:
    lines = ["page               first paint ms       weight", "                   median   most        KB"]
    lines += [
        f"{paint.page:<18} {statistics.median(paint.paint_ms):>6.0f} {max(paint.paint_ms):>6.0f}"
        f"    {paint.bytes / 1000:>6.0f}"
        for paint in painted
    ]
    lines += ["", "open consoles                of a core    messages"]
    for cost in costs:
        what = f"{cost.streams} x {cost.address}" if cost.streams else "none"
        lines.append(f"{what:<26}  {statistics.median(cost.shares):>9.1%}  {cost.messages:>9}")
    return "\n".join(lines)


async def _bench(options: argparse.Namespace) -> tuple[list[Paint], list[Cost]]:
    say = stopwatch()
    extra = CONFIG % (CORES[0], CORES[-1])
    if len(CORES) < 2:
        raise NotRun("one core cannot be lent twice")
    deployment = Deployment("sim", extra=extra, lent={"a": "core0", "b": "core1"})
    try:
        say("a service with two sim workers on two lent devices")
        await deployment.start(ready_s=START_S)
        for number in range(SESSIONS):
            await deployment.create([number + 1, 2, 3], TOKENS, on_disconnect="continue")
        say(f"{SESSIONS} sessions run")
        opening = partial(paints, deployment.client.base_url, TOKEN, options.pages, options.times, say)
        painted = await trio.to_thread.run_sync(opening, abandon_on_cancel=True)
        costs = await _costs(deployment, options, say)
        await deployment.cancel_left()
    finally:
        await trio.to_thread.run_sync(deployment.close)
    return painted, costs


async def _costs(deployment: Deployment, options: argparse.Namespace, say: Any) -> list[Cost]:
    """The arms in turns: no console, then each page's."""
    arms = ("", *options.watched)
    shares: dict[str, list[float]] = {arm: [] for arm in arms}
    messages = dict.fromkeys(arms, 0)
    for turn in range(options.turns):
        for arm in arms:
            share, count = await _turn(deployment, arm, options.consoles if arm else 0, options.seconds)
            shares[arm].append(share)
            messages[arm] += count
        say(f"turn {turn + 1} of {options.turns}")
    return [Cost(arm, options.consoles if arm else 0, tuple(shares[arm]), messages[arm]) for arm in arms]


async def _turn(deployment: Deployment, address: str, streams: int, seconds: float) -> tuple[float, int]:
    """Share of a core over `seconds` with all streams at work, and the messages that came then."""
    assert deployment.process is not None
    port = urlsplit(deployment.client.base_url).port
    assert port is not None
    counts = [0] * streams
    async with trio.open_nursery() as nursery:
        for number in range(streams):
            await nursery.start(partial(_watch, port, address, counts, number))
        before, at = _cpu_s(deployment.process.pid), time.monotonic()
        await trio.sleep(seconds)
        share = (_cpu_s(deployment.process.pid) - before) / (time.monotonic() - at)
        nursery.cancel_scope.cancel()
    return share, sum(counts)


async def _watch(
    port: int, address: str, counts: list[int], number: int, *, task_status: trio.TaskStatus[None]
) -> None:
    """One console's stream; counts what comes after its first message."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(
            f"GET {address} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        begun = False
        while data := await stream.receive_some(1 << 16):
            if not begun and b"data: " in data:
                begun = True
                task_status.started()
            elif begun:
                counts[number] += data.count(b"\n\n")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    sys.exit(run_command(main))
