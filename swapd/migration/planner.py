"""Who moves where: pure choice over a picture of the workers, with the reason for each refusal (H55)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from swapd.errors import Code


class Candidate(msgspec.Struct, frozen=True):
    """A worker as the planner sees it. `free_blocks` and `free_slots` are by the ledger."""

    worker: str
    alive: bool
    admitting: bool
    fingerprint: str
    block_tokens: int
    free_blocks: int
    free_slots: int


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
    certified: bool,
) -> tuple[list[Assignment], list[Refusal]]:
    """Give each session the emptiest worker that may and can take it; all choices count together.

    `certified`: some evidence allows native moves between workers of equal fingerprint (H129, H133).
    """
    assignments: list[Assignment] = []
    refusals: list[Refusal] = []
    workers = [worker for worker in others if worker.worker != source.worker and worker.alive]
    free = {worker.worker: worker.free_blocks for worker in workers}
    slots = {worker.worker: worker.free_slots for worker in workers}
    # Largest first: a big session may fit only where no small one went before it.
    for traveller in sorted(travellers, key=lambda t: (-t.budget_tokens, t.session)):
        if traveller.moving:
            continue
        code = _refusal(traveller, source, workers, migration_enabled, certified)
        if code is None:
            fitting = [
                worker
                for worker in workers
                if _edge(source, worker)
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
        refusals.append(Refusal(traveller.session, code, code in _RETRY))
    return assignments, refusals


_RETRY = frozenset({Code.NOT_ELIGIBLE, Code.TARGET_FULL, Code.NO_TARGET})


def _edge(source: Candidate, target: Candidate) -> bool:
    return source.fingerprint == target.fingerprint


def _blocks(traveller: Traveller, worker: Candidate) -> int:
    return -(-traveller.budget_tokens // worker.block_tokens)


def _refusal(
    traveller: Traveller,
    source: Candidate,
    workers: Sequence[Candidate],
    migration_enabled: bool,
    certified: bool,
) -> Code | None:
    if traveller.finished:
        return Code.ALREADY_FINISHED
    if not traveller.eligible:
        return Code.NOT_ELIGIBLE
    if not migration_enabled:
        return Code.MIGRATION_DISABLED
    if not workers:
        return Code.NO_TARGET
    if not certified or not any(_edge(source, worker) for worker in workers):
        return Code.NO_EDGE
    if not any(worker.admitting for worker in workers if _edge(source, worker)):
        return Code.NO_TARGET
    return None
