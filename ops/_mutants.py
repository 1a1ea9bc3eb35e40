"""Mutation testing of `swapd/pressure/` and the migration transaction.

Each mutant is one small change of one module. The module's tests run against it in a fork; a mutant that no
test notices survives. At most 5 % may, and each of them is explained in `ops/mutating/survivors.toml`.

Exit status: 0 the claim holds, 1 it does not, 2 the tests fail without any mutant.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import random
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import hypothesis  # noqa: E402, F401  # loaded once, before the forks
import msgspec  # noqa: E402, F401
import pytest  # noqa: E402, F401
import trio  # noqa: E402, F401

from ops.mutating.sites import Mutant, mutants  # noqa: E402
from ops.mutating.trial import Result, foreign_modules, run_tests  # noqa: E402

SURVIVORS = ROOT / "ops" / "mutating" / "survivors.toml"
MAX_SURVIVING = 0.05
SEED = 20


class Target(NamedTuple):
    """Modules and the tests that must notice a change; `more` is asked about what `tests` let through."""

    modules: str
    tests: tuple[str, ...]
    more: tuple[str, ...] = ()


TARGETS = (
    Target("swapd/pressure/*.py", ("tests/pressure",)),
    Target(
        "swapd/migration/transaction.py",
        ("tests/migration/test_transaction.py",),
        ("tests/migration/test_wave.py", "tests/migration/test_supervisor.py"),
    ),
)


class Verdict(NamedTuple):
    mutant: Mutant
    result: Result

    @property
    def survived(self) -> bool:
        return self.result == "passed"


def stages(target: Target, path: str, limit_s: float) -> Iterator[tuple[Sequence[str], float]]:
    """What to ask about a module's mutant, one after the other until one notices, each with its time limit.

    First the test files named after the module: most mutants end there, and no other has to be collected.
    They are a small part of all that `limit_s` is for, and one that hangs there is not waited for as long.
    """
    name = Path(path).stem
    files: list[str] = []
    for test in target.tests:
        where = ROOT / test
        found = sorted(where.glob("test_*.py")) if where.is_dir() else [where]
        files += [str(file.relative_to(ROOT)) for file in found]
    named = [file for file in files if Path(file).stem == f"test_{name}"]
    rest = sorted(set(files) - set(named), key=lambda file: (name not in file, file))
    for tests, timeout_s in ((named, limit_s / 2), (rest, limit_s), (target.more, 300.0)):
        if tests:
            yield tests, timeout_s


def collect(only: Sequence[str]) -> list[tuple[Target, list[Mutant]]]:
    found = []
    for target in TARGETS:
        for path in sorted(ROOT.glob(target.modules)):
            relative = str(path.relative_to(ROOT))
            if not only or any(part in relative for part in only):
                found.append((target, mutants(relative, path.read_text())))
    return found


def explanations() -> dict[str, str]:
    """Why a surviving mutant changes nothing that matters, by its key."""
    if not SURVIVORS.exists():
        return {}
    data = tomllib.loads(SURVIVORS.read_text())
    return {entry["mutant"]: entry["why"] for entry in data.get("survivor", [])}


def warm_up(targets: Iterable[Target]) -> None:
    """Load once what all forks would load: all but the project's own modules, one of which is the mutant."""
    for target in targets:
        for name in foreign_modules((*target.tests, *target.more), ROOT):
            with contextlib.suppress(ImportError, AttributeError):
                importlib.import_module(name)
    # Forked children must not each visit, and so copy, all of it.
    gc.freeze()


def baseline(targets: Iterable[Target]) -> dict[Target, float]:
    """How long each target's tests take unchanged. Exits with 2 when they fail."""
    took = {}
    for target in targets:
        began = time.monotonic()
        if run_tests(target.tests, timeout_s=600, root=ROOT) != "passed":
            print(f"the tests fail without a mutant: {' '.join(target.tests)}", file=sys.stderr)
            sys.exit(2)
        took[target] = time.monotonic() - began
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART", help="modules whose path has it"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="a fixed random choice of N mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole result")
    parser.add_argument("--show", action="store_true", help="list surviving mutants as they are found")
    args = parser.parse_args()

    work = collect(args.only)
    everything = [(target, mutant) for target, found in work for mutant in found]
    if args.sample is not None and args.sample < len(everything):
        everything = random.Random(SEED).sample(everything, args.sample)
    print(f"{len(everything)} mutants of {len(work)} modules", file=sys.stderr)
    targets = {target for target, _ in work}
    warm_up(targets)
    times = baseline(targets)

    def judge(item: tuple[Target, Mutant]) -> Verdict:
        target, mutant = item
        limit_s = 20 + 5 * times[target] * max(1, args.jobs / (os.cpu_count() or 1))
        for tests, timeout_s in stages(target, mutant.path, limit_s):
            result = run_tests(tests, path=mutant.path, source=mutant.source, timeout_s=timeout_s, root=ROOT)
            if result != "passed":
                return Verdict(mutant, result)
        return Verdict(mutant, "passed")

    verdicts: list[Verdict] = []
    began = time.monotonic()
    with ThreadPoolExecutor(args.jobs) as pool:
        for number, verdict in enumerate(pool.map(judge, everything), 1):
            verdicts.append(verdict)
            if verdict.survived and args.show:
                print(f"\rsurvived: line {verdict.mutant.line} {verdict.mutant.key}", file=sys.stderr)
            if number % 10 == 0 or number == len(everything):
                rest_s = (time.monotonic() - began) / number * (len(everything) - number)
                print(f"\r{number}/{len(everything)}, {rest_s:.0f} s left ", end="", file=sys.stderr)
    print(file=sys.stderr)
    return report(verdicts, args.json, partial=bool(args.only) or args.sample is not None)


def report(verdicts: Sequence[Verdict], file: Path | None, *, partial: bool) -> int:
    known = explanations()
    alive = [v for v in verdicts if v.survived]
    unexplained = [v for v in alive if v.mutant.key not in known]
    stale = [] if partial else sorted(set(known) - {v.mutant.key for v in alive})
    total: Counter[str] = Counter(v.mutant.path for v in verdicts)
    left: Counter[str] = Counter(v.mutant.path for v in alive)
    print(f"{'module':<36} {'mutants':>8} {'survived':>9} {'share':>7}")
    for path in sorted(total):
        print(f"{path:<36} {total[path]:>8} {left[path]:>9} {left[path] / total[path]:>7.1%}")
    for verdict in alive:
        why = known.get(verdict.mutant.key, "NOT EXPLAINED")
        print(f"  line {verdict.mutant.line} of {verdict.mutant.key}\n      {why}")
    for key in stale:
        print(f"  explained and no longer surviving: {key}")
    share = len(alive) / len(verdicts) if verdicts else 0.0
    holds = bool(verdicts) and share <= MAX_SURVIVING and not unexplained
    if file is not None:
        file.write_text(
            json.dumps(
                {
                    "holds": holds,
                    "mutants": len(verdicts),
                    "survived": len(alive),
                    "share": share,
                    "unexplained": [v.mutant.key for v in unexplained],
                    "stale": stale,
                    "timeouts": sum(v.result == "timeout" for v in verdicts),
                    "modules": {path: {"mutants": total[path], "survived": left[path]} for path in total},
                    "survivors": [{"mutant": v.mutant.key, "line": v.mutant.line} for v in alive],
                },
                indent=1,
            )
        )
    print(
        f"mutants: {len(alive)} of {len(verdicts)} survived ({share:.1%}, at most {MAX_SURVIVING:.0%}), "
        f"{len(unexplained)} not explained: {'holds' if holds else 'DOES NOT HOLD'}"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
