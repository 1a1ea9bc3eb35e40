"""What a check found, and how it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

Json = dict[str, Any]
State = Literal["holds", "fails", "skipped", "seen"]
"""`seen` is a fact that is neither good nor bad."""

REPORT_VERSION: Final = 1


class Check(msgspec.Struct, frozen=True):
    """One check: what was looked at, how it came out, what was seen, and its figures."""

    name: str
    state: State
    detail: str
    figures: Json = {}


class NoCard(Exception):
    """There is no NVIDIA GPU here that could be checked; the text says why."""


def judged(name: str, holds: bool, detail: str, **figures: object) -> Check:
    return Check(name, "holds" if holds else "fails", detail, figures)


def table(checks: Sequence[Check]) -> str:
    """One line a check."""
    width = max((len(each.name) for each in checks), default=0)
    return "\n".join(f"{each.state:<8} {each.name:<{width}}  {each.detail}" for each in checks)


def summary(card: str, checks: Sequence[Check]) -> str:
    """The last line: the card, and how many checks came out how."""
    counts = {state: sum(each.state == state for each in checks) for state in ("holds", "fails", "skipped")}
    told = f"{counts['holds']} hold, {counts['fails']} fail, {counts['skipped']} skipped"
    return f"gpu_check: {card}: {told}"
