"""What a part of the drill found: claims that hold or not, and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ops.judging import Claim
from tests.e2e.deployment import Reading
from tests.e2e.test_sim import reference

TERMINAL = ("completed", "failed", "cancelled")


class Findings(msgspec.Struct):
    """One part of the drill. It held when every claim does. Figures have their unit in the name."""

    part: str
    claims: list[Claim] = []
    figures: dict[str, float] = {}

    def claim(self, name: str, holds: bool, detail: str) -> None:
        self.claims.append(Claim(name, holds, detail))

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims)


class Told(msgspec.Struct):
    """How many tokens clients received, and in how many ways that was wrong."""

    tokens: int = 0
    lost: int = 0
    doubled: int = 0
    different: int = 0
    unfinished: int = 0


def compare(readings: Iterable[Reading], prompts: Sequence[Sequence[int]], length: int) -> Told:
    """Compare what each client received with an engine that nobody moved; a stream may end early."""
    told = Told()
    for one, prompt in zip(readings, prompts, strict=True):
        ids = [event.id for event in one.events if event.id is not None]
        completed = bool(one.events) and one.events[-1].name == "completed"
        last = length + 1 if completed else max(ids, default=0)
        told.tokens += len(one.tokens)
        told.doubled += len(ids) - len(set(ids))
        told.lost += len(set(range(last + 1)) - set(ids))
        expected = reference(prompt, min(length, len(one.tokens)))
        told.different += sum(a != b for a, b in zip(one.tokens, expected, strict=False))
        told.different += max(0, len(one.tokens) - len(expected))
        ends = [event.name for event in one.events if event.name in TERMINAL]
        told.unfinished += ends != [one.events[-1].name] if one.events else 1
    return told


def judge(found: Findings, told: Told) -> None:
    """The claims that every part makes about its clients' streams."""
    found.figures["tokens"] = told.tokens
    found.claim("0 tokens lost", told.lost == 0, f"{told.lost} of {told.tokens}")
    found.claim("0 tokens doubled", told.doubled == 0, f"{told.doubled} of {told.tokens}")
    found.claim("every token is that of an unmoved engine", told.different == 0, f"{told.different} differ")
    found.claim("one end a stream", told.unfinished == 0, f"{told.unfinished} without")
