#!/usr/bin/env python
"""Check on a machine with an NVIDIA GPU what cannot be checked without one.

NVML as swapd reads it: selection by UUID, attribution of a process that this script starts, stale samples,
what a container hides. Copies between the card and a page-locked arena. With --handoff, two vLLM workers on
the one card move sessions with made-up weights. Progress goes to stderr, one line a check and a summary line
to stdout. The exit status is 0 when no check fails, 1 when one does, 2 when the script could not run, 3
without an NVIDIA GPU, 130 after Ctrl-C, 143 when it was terminated. See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

# A script's own folder is on the path, the project's is not.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from ops.ending import run_command
from ops.gpu_checking.attribution import CardCheck
from ops.gpu_checking.copies import check_copies
from ops.gpu_checking.report import REPORT_VERSION, Check, NoCard, summary, table
from ops.handoff_bench.report import encode, host_facts
from swapd.errors import SwapdError

NO_CARD: Final = 3
INTERRUPTED: Final = 130
POLL_S: Final = 1.0
ARENA_MIB: Final = 256
LOAD: Final = (sys.executable, "-m", "ops.gpu_checking.load")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    try:
        return _check(options)
    except NoCard as none:
        print(f"gpu_check: no NVIDIA GPU to check: {none}.")
        return NO_CARD
    except SwapdError as error:
        print(f"gpu_check: {error.code}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="0", help="the card, by UUID or index (0)")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument(
        "--arena-mib", type=int, default=ARENA_MIB, help=f"size of the arena ({ARENA_MIB}; 0: no copies)"
    )
    parser.add_argument("--poll-s", type=float, default=POLL_S, help=f"time between polls ({POLL_S:g})")
    parser.add_argument(
        "--load",
        type=shlex.split,
        default=LOAD,
        help="a command that says `ready`, and uses the card until its stdin ends (matrices in torch)",
    )
    parser.add_argument(
        "--handoff", action="store_true", help="move sessions between two vLLM workers on the card (minutes)"
    )
    parser.add_argument("--model", type=Path, help="for --handoff: a checkpoint instead of made-up weights")
    parser.add_argument("--keep", action="store_true", help="for --handoff: keep the folder with its logs")
    return parser.parse_args(arguments)


def _check(options: argparse.Namespace) -> int:
    card = CardCheck(options.device, options.load, options.poll_s, _say)
    checks: list[Check] = card.run()
    uuid = str(card.card["uuid"])
    if options.arena_mib:
        _say("copies between the card and an arena")
        checks.append(check_copies(options.arena_mib, uuid))
    cells: list[object] = []
    if options.handoff:
        from ops.gpu_checking.handoff import check_handoff

        found, cells = check_handoff(uuid, options.model, options.keep, _say)
        checks += found
    if options.json is not None:
        report = {
            "version": REPORT_VERSION,
            "host": host_facts(),
            "card": card.card,
            "checks": json.loads(msgspec.json.encode(checks)),
            "handoff": cells,
        }
        options.json.write_text(encode(report))
    print(table(checks))
    print(summary(f"{card.card['product']}, driver {card.card['driver']}", checks))
    return int(any(each.state == "fails" for each in checks))


def _say(line: str) -> None:
    print(f"gpu_check: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(run_command(main))
