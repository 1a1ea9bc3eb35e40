"""What a bench or a drill claims, how it tells whether that holds, and how a bench ends.

A bench's exit status is 0 when every claim holds, 1 when one does not, 2 when it could not run, 130 after
Ctrl-C. What it tells goes to stdout, one line of verdict last; how far it is goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio


class Claim(msgspec.Struct, frozen=True):
    """One thing that must hold, and what was found."""

    name: str
    holds: bool
    detail: str


class NotRun(Exception):
    """It could not measure; the text says why."""


def verdicts(claims: Iterable[Claim]) -> list[str]:
    """A line for each claim."""
    return [f"{'holds' if claim.holds else 'FAILS'}  {claim.name}: {claim.detail}" for claim in claims]


def conclude(table: str, claims: Sequence[Claim]) -> int:
    """Print the table, every verdict and the line of them all; return the exit status."""
    print(table)
    for line in verdicts(claims):
        print(line)
    failed = sum(not claim.holds for claim in claims)
    print(f"{failed} of {len(claims)} claims fail" if failed else f"all {len(claims)} claims hold")
    return 1 if failed else 0


def run_bench(name: str, bench: Callable[[], int]) -> int:
    """Run a bench to its exit status, also where it cannot measure."""
    try:
        return bench()
    except KeyboardInterrupt:
        return 130
    except (ExceptionGroup, NotRun, AssertionError, trio.TooSlowError) as error:
        print(f"{name}: {_first(error)}", file=sys.stderr)
        return 2


def stopwatch() -> Callable[[str], None]:
    """Lines on stderr, each with the seconds since now."""
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {line}", file=sys.stderr, flush=True)

    return say


def add_options(parser: argparse.ArgumentParser, *, timing: bool = True) -> None:
    """Where the report goes and, where a claim is about `timing`, that such claims are left out."""
    parser.add_argument("--json", type=Path, help="write the report here")
    if timing:
        parser.add_argument(
            "--no-timing-claims", action="store_true", help="judge only what a busy machine keeps"
        )


def write_report(path: Path | None, report: Mapping[str, Any], claims: Sequence[Claim]) -> None:
    """Write a report with its claims as JSON, if there is to be one."""
    if path is not None:
        told = [*report.items(), ("claims", [msgspec.structs.asdict(claim) for claim in claims])]
        path.write_text(json.dumps(dict(told), indent=1) + "\n")


def median_and_most(values: Sequence[float], digits: int) -> str:
    """A cell of a table."""
    return f"{statistics.median(values):.{digits}f} / {max(values):.{digits}f}"


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
