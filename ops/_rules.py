"""The rules of `docs/rules/`: read them with their states, and find the tests that name them.

A rule is a list item, `- **H18** `done` text`. A test names a rule in the docstring of its function or
class, or as the first word of its name. Comments and other strings do not count: a number there is often
something else.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("handoff.md", "calibration.md")
STATES = ("planned", "done", "dropped")
"""A dropped rule was taken back by a decision: nothing proves it, and nothing has to."""

RULE_LINE = re.compile(r"^- \*\*(?P<number>[RHBDPO][1-9]\d*)\*\* `(?P<state>[a-z]+)` (?P<text>.+)$")
# A list item that means to be a rule but is not written as one must not get lost.
NEARLY_RULE_LINE = re.compile(r"^\s*- \*\*[RHBDPO]\d+\*\*")
NAMED = re.compile(
    r"\b(?P<letter>[RHBDPO])(?P<first>[1-9]\d*)(?:\s?[-\u2013]\s?(?P=letter)(?P<last>[1-9]\d*))?\b"
)
NAMED_IN_FUNCTION = re.compile(r"^test_(?P<number>[rhbdpo][1-9]\d*)_")
LETTERS = "HBRDPO"
TEXT_WIDTH = 88


class RulesError(Exception):
    """A page that does not follow the form; one sentence with file and line."""


class Rule(NamedTuple):
    """One rule: `page` is its file's name, `line` where it stands there."""

    number: str
    state: str
    text: str
    page: str
    line: int


def order(number: str) -> tuple[int, int]:
    return LETTERS.index(number[0]), int(number[1:])


def read_page(text: str, page: str) -> Iterator[Rule]:
    """Yield the rules of one page. Raises `RulesError` on an item that is nearly a rule."""
    for line, content in enumerate(text.splitlines(), 1):
        match = RULE_LINE.match(content)
        if match and match["state"] in STATES:
            yield Rule(match["number"], match["state"], match["text"], page, line)
        elif NEARLY_RULE_LINE.match(content):
            raise RulesError(f"{page}:{line}: write it as - **H1** `planned` text, or `done`, or `dropped`.")


def read_rules(folder: Path = ROOT / "docs" / "rules") -> dict[str, Rule]:
    """Return all rules by number, in order. Raises `RulesError`, also for a number that stands twice."""
    rules: dict[str, Rule] = {}
    for page in PAGES:
        for rule in read_page((folder / page).read_text(encoding="utf-8"), page):
            if rule.number in rules:
                raise RulesError(f"{page}:{rule.line}: {rule.number} stands twice.")
            rules[rule.number] = rule
    return {number: rules[number] for number in sorted(rules, key=order)}


def numbers_in(text: str) -> Iterator[str]:
    """Yield the rule numbers that a docstring names, ranges spelled out."""
    for match in NAMED.finditer(text):
        first, last = int(match["first"]), int(match["last"] or match["first"])
        # A range that runs backwards is a slip: both ends count, so that it is seen.
        span = range(first, last + 1) if first <= last else (first, last)
        for number in span:
            yield f"{match['letter']}{number}"


def named_by(source: str) -> Iterator[tuple[str, str]]:
    """Yield (rule number, test) for each naming in one test file's source."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                if found := NAMED_IN_FUNCTION.match(name):
                    yield found["number"].upper(), name
            case ast.ClassDef(name=name) if name.startswith("Test"):
                pass
            case _:
                continue
        for number in numbers_in(ast.get_docstring(node) or ""):
            yield number, name


def naming_tests(folder: Path = ROOT / "tests") -> dict[str, list[str]]:
    """Return, for each number that a test names, the tests as `path::name`."""
    named: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for number, test in named_by(path.read_text(encoding="utf-8")):
            named.setdefault(number, set()).add(f"{path.relative_to(folder.parent)}::{test}")
    return {number: sorted(tests) for number, tests in named.items()}


def problems(rules: Mapping[str, Rule], named: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what is wrong between the rules and the tests, one sentence each."""
    found = [
        f"{rule.number} is done ({rule.page}:{rule.line}), but no test names it."
        for rule in rules.values()
        if rule.state == "done" and rule.number not in named
    ]
    found += [
        f"{test} names {number}, but there is no such rule."
        for number in sorted(set(named) - set(rules), key=order)
        for test in named[number]
    ]
    found += [
        f"{test} names {rule.number}, but that was dropped."
        for rule in rules.values()
        if rule.state == "dropped"
        for test in named.get(rule.number, ())
    ]
    return found


def summary(rules: Iterable[Rule]) -> str:
    counts = Counter((rule.page, rule.state) for rule in rules)
    lines = [f"{'page':<16}" + "".join(f"{state:>9}" for state in STATES)]
    lines += [f"{page:<16}" + "".join(f"{counts[page, state]:>9}" for state in STATES) for page in PAGES]
    sums = (sum(counts[page, state] for page in PAGES) for state in STATES)
    lines.append(f"{'all':<16}" + "".join(f"{count:>9}" for count in sums))
    return "\n".join(lines)


def table(rules: Iterable[Rule], named: Mapping[str, Sequence[str]]) -> str:
    lines = [f"{'rule':<6}{'state':<9}{'tests':>5}  text"]
    for rule in rules:
        text = rule.text if len(rule.text) <= TEXT_WIDTH else rule.text[: TEXT_WIDTH - 1] + "…"
        lines.append(f"{rule.number:<6}{rule.state:<9}{len(named.get(rule.number, ())):>5}  {text}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="ops/rules", description="Print swapd's rules and their states.")
    parser.add_argument("--state", choices=STATES, help="list only the rules in this state")
    parser.add_argument("--all", action="store_true", help="list every rule, not only the counts")
    parser.add_argument("--json", action="store_true", help="print rules and tests as JSON")
    options = parser.parse_args(arguments)
    try:
        rules, named = read_rules(), naming_tests()
    except (RulesError, OSError) as error:
        print(f"ops/rules: {error}", file=sys.stderr)
        return 1
    chosen = [rule for rule in rules.values() if options.state in (None, rule.state)]
    if options.json:
        entries = [rule._asdict() | {"tests": named.get(rule.number, [])} for rule in chosen]
        print(json.dumps(entries, ensure_ascii=False, indent=1))
    else:
        if options.all or options.state:
            print(table(chosen, named), end="\n\n")
        print(summary(rules.values()))
    wrong = problems(rules, named)
    for problem in wrong:
        print(f"ops/rules: {problem}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    # `ops/rules --all | head` is no fault.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
