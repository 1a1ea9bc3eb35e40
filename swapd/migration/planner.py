"""Who moves where: pure choice over a picture of the workers, with the reason for each refusal (H55)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from swapd.certify.registry import Bar, End
from swapd.errors import Code

Bars = Callable[[End, End], Bar | None]
"""What keeps sessions from moving from one end to another, by the evidence for it; None: nothing does."""
BARS_SHOWN: Final = 3
"""Ways of which a refusal tells why they are barred: it is read by people."""
_GRAVEST: Final = (Code.CERTIFICATE_REVOKED, Code.CERTIFICATE_EXPIRED, Code.NO_EDGE)
"""Which of several reasons is told: the one that most needs somebody to know of it."""


class Candidate(msgspec.Struct, frozen=True):
    """A worker as the planner sees it. `free_blocks` and `free_slots` are by the ledger."""

    worker: str
    alive: bool
    admitting: bool
    fingerprint: str
    block_tokens: int
    free_blocks: int
    free_slots: int

    @property
    def end(self) -> End:
        return End(self.worker, self.fingerprint)


class Traveller(msgspec.Struct, frozen=True):
    """A session that should leave. `eligible`: prefill done and at least one token accepted (H85).

    `fresh`: nothing has come of it, so it may as well begin elsewhere (B18).
    `copy_tokens`: positions that a move would copy. `waited_s`: for room on the way, so far.
    """

    session: str
    budget_tokens: int
    finished: bool = False
    eligible: bool = True
    moving: bool = False
    fresh: bool = False
    copy_tokens: int = 0
    waited_s: float = 0.0


class Assignment(msgspec.Struct, frozen=True):
    session: str
    target: str


class Refusal(msgspec.Struct, frozen=True):
    """`retry`: worth trying again within the drain's deadline (H56, A5)."""

    session: str
    code: Code
    retry: bool
    detail: str | None = None
    """Names and numbers, for people."""


def plan(
    source: Candidate,
    others: Iterable[Candidate],
    travellers: Sequence[Traveller],
    *,
    migration_enabled: bool,
    bars: Bars,
) -> tuple[list[Assignment], list[Refusal]]:
    """Give each session the emptiest worker that may and can take it; all choices count together.

    `bars` is asked for every way, each time: what allowed it a moment ago may have expired (H136).
    """
    assignments: list[Assignment] = []
    refusals: list[Refusal] = []
    workers = [worker for worker in others if worker.worker != source.worker and worker.alive]
    free = {worker.worker: worker.free_blocks for worker in workers}
    slots = {worker.worker: worker.free_slots for worker in workers}
    barred = {worker.worker: bar for worker in workers if (bar := bars(source.end, worker.end)) is not None}
    # Largest first: a big session may fit only where no small one went before it.
    for traveller in sorted(travellers, key=lambda t: (-t.budget_tokens, t.session)):
        if traveller.moving:
            continue
        code, detail = _refusal(traveller, workers, migration_enabled, barred)
        if code is None:
            fitting = [
                worker
                for worker in workers
                if worker.worker not in barred
                and worker.admitting
                and slots[worker.worker] > 0
                and free[worker.worker] >= _blocks(traveller, worker)
            ]
            if fitting:
                best = max(fitting, key=lambda worker: (free[worker.worker], worker.worker))
                free[best.worker] -= _blocks(traveller, best)
                slots[best.worker] -= 1
                assignments.append(Assignment(traveller.session, best.worker))
                continue
            code = Code.TARGET_FULL
        refusals.append(Refusal(traveller.session, code, code in _RETRY, detail))
    return assignments, refusals


_RETRY = frozenset({Code.NOT_ELIGIBLE, Code.TARGET_FULL, Code.NO_TARGET})


def _blocks(traveller: Traveller, worker: Candidate) -> int:
    return -(-traveller.budget_tokens // worker.block_tokens)


def _refusal(
    traveller: Traveller,
    workers: Sequence[Candidate],
    migration_enabled: bool,
    barred: Mapping[str, Bar],
) -> tuple[Code | None, str | None]:
    """Why no worker may take it, and whose doing that is, where the evidence is."""
    if traveller.finished:
        return Code.ALREADY_FINISHED, None
    if not traveller.eligible:
        return Code.NOT_ELIGIBLE, None
    if not migration_enabled:
        return Code.MIGRATION_DISABLED, None
    if not workers:
        return Code.NO_TARGET, None
    allowed = [worker for worker in workers if worker.worker not in barred]
    if not allowed:
        bars = sorted(barred.values(), key=lambda bar: (_GRAVEST.index(bar.code), bar.detail))
        return bars[0].code, ", ".join(bar.detail for bar in bars[:BARS_SHOWN])
    if not any(worker.admitting for worker in allowed):
        return Code.NO_TARGET, None
    return None, None
