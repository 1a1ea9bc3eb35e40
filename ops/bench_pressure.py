#!/usr/bin/env python
"""Measure what the pressure rules cost: a month of recorded readings, and one reading of a tracker.

Progress goes to stderr, the table to stdout, one line of verdict last. The exit status is 0 when every claim
holds, 1 when one does not. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import math
import platform
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

# A script's own folder is on the path, the project's is not.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from ops.ending import run_command
from ops.judging import Claim, add_options, conclude, write_report
from swapd.config import PressureConfig
from swapd.pressure.calibration import DevicePressure
from swapd.pressure.replay import parse, replay, row

DAY_S: Final = 86_400.0
MIB: Final = 1 << 20
VERSION: Final = 1
TRACKER_POLL_S: Final = 1.0


class Figures(NamedTuple):
    """What was measured. CPU seconds are those of this process, memory is what it keeps resident."""

    readings: int
    replay_cpu_s: float
    making_cpu_s: float
    memory_grown_bytes: int
    observe_us: float
    tracker_share: float


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    figures = measure(options.days, options.poll_s, options.tracker_readings, options.seed)
    judged = claims(figures, options.max_s, options.max_mib, options.max_share)
    report = {
        "version": VERSION,
        "host": {"python": platform.python_version(), "machine": platform.machine()},
        "options": {"days": options.days, "poll_s": options.poll_s, "seed": options.seed},
        "figures": figures._asdict(),
        "holds": all(claim.holds for claim in judged),
    }
    write_report(options.json, report, judged)
    return conclude(_table(options, figures), judged)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=_above_0, default=30.0, help="simulated days (30)")
    parser.add_argument("--poll-s", type=_above_0, default=5.0, help="seconds between readings (5)")
    parser.add_argument("--tracker-readings", type=int, default=20_000, help="readings of a tracker (20000)")
    parser.add_argument("--max-s", type=float, default=20.0, help="CPU seconds the replay may take (20)")
    parser.add_argument("--max-mib", type=float, default=4.0, help="MiB that memory may grow by (4)")
    parser.add_argument("--max-share", type=float, default=0.002, help="of a core for a tracker (0.002)")
    parser.add_argument("--seed", type=int, default=1, help="of the readings")
    add_options(parser, timing=False)
    return parser.parse_args(arguments)


def _above_0(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("a number above 0")
    return value


def measure(days: float, poll_s: float, tracker_readings: int, seed: int) -> Figures:
    """Replay the days, as `swapd replay-readings --json` does, then time single readings."""
    total = max(1, round(days * DAY_S / poll_s))
    lines = _Lines(total, poll_s, seed)
    config = PressureConfig(poll_ms=round(poll_s * 1000))
    began_s = time.process_time()
    written = readings = resident = 0
    for number, decision in enumerate(replay(parse(lines, "bench"), config), 1):
        written += len(msgspec.json.encode(row(decision)))
        readings += not isinstance(decision.reading, str)
        if number == -(-total // 10):
            # By then all that is ever allocated has been.
            resident = _resident_bytes()
        if number % -(-total // 10) == 0 or number == total:
            print(f"{number * 100 // total:4} %  {time.process_time() - began_s:6.1f} s", file=sys.stderr)
    spent_s = time.process_time() - began_s - lines.spent_s
    assert written > 0
    observe_s = _observe_s(tracker_readings, seed)
    return Figures(
        readings=readings,
        replay_cpu_s=spent_s,
        making_cpu_s=lines.spent_s,
        memory_grown_bytes=_resident_bytes() - resident,
        observe_us=observe_s * 1e6,
        tracker_share=observe_s / TRACKER_POLL_S,
    )


class _Lines:
    """A month of an owner's readings as CSV, made hour by hour and timed apart from what is measured."""

    HOUR: Final = 720

    def __init__(self, total: int, poll_s: float, seed: int) -> None:
        self._total = total
        self._poll_s = poll_s
        self._random = random.Random(seed)
        self.spent_s = 0.0

    def __iter__(self) -> Iterator[str]:
        yield "t_s,reading,attendance"
        for start in range(0, self._total, self.HOUR):
            began_s = time.process_time()
            part = [self._line(number) for number in range(start, min(start + self.HOUR, self._total))]
            self.spent_s += time.process_time() - began_s
            yield from part

    def _line(self, number: int) -> str:
        t_s = number * self._poll_s
        hour = t_s % DAY_S / 3600
        at_home = 8 <= hour < 23
        attendance = "unlocked" if at_home else "locked"
        if self._random.random() < 0.001:
            return f"{t_s},{self._random.choice(('failed', 'invalid', 'missing'))},{attendance}"
        busy = at_home and int(t_s // 5400) % 5 == 0
        value = self._random.uniform(30, 95) if busy else self._random.uniform(0, 15 if at_home else 2)
        return f"{t_s},{value:.2f},{attendance}"


def _observe_s(readings: int, seed: int) -> float:
    """CPU seconds of one reading at `poll_ms = 1000`: the rules themselves, without sampling and messages."""
    device = DevicePressure(PressureConfig(poll_ms=round(TRACKER_POLL_S * 1000)))
    values = [random.Random(seed).uniform(0, 40) for _ in range(readings)]
    began_s = time.process_time()
    for number, value in enumerate(values):
        device.observe(number * TRACKER_POLL_S, value, "unlocked")
    return (time.process_time() - began_s) / max(1, readings)


def _resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not tell VmRSS")


def claims(figures: Figures, max_s: float, max_mib: float, max_share: float) -> list[Claim]:
    """What must be true of the figures."""
    grown_mib = figures.memory_grown_bytes / MIB
    return [
        Claim("quick", figures.replay_cpu_s < max_s, f"{figures.replay_cpu_s:.2f} s of {max_s:g} s"),
        Claim("flat", grown_mib < max_mib, f"memory grew by {grown_mib:.2f} of {max_mib:g} MiB"),
        Claim(
            "cheap",
            figures.tracker_share < max_share,
            f"a reading a second costs {figures.tracker_share:.4%} of a core, of {max_share:.2%}",
        ),
    ]


def _table(options: argparse.Namespace, figures: Figures) -> str:
    rows = [
        ("simulated days", f"{options.days:g}"),
        ("readings", f"{figures.readings}"),
        ("replay, CPU s", f"{figures.replay_cpu_s:.2f}"),
        ("a row, CPU us", f"{figures.replay_cpu_s * 1e6 / max(1, figures.readings):.1f}"),
        ("making the readings, CPU s", f"{figures.making_cpu_s:.2f}"),
        ("memory grown, KiB", f"{figures.memory_grown_bytes / 1024:.0f}"),
        ("a reading's rules, CPU us", f"{figures.observe_us:.1f}"),
        ("a tracker at 1 s, % of a core", f"{figures.tracker_share * 100:.4f}"),
    ]
    return "\n".join(f"{name:<32}{value:>12}" for name, value in rows)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(run_command(main))
