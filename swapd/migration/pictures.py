"""What the planner is shown of workers and sessions, and what people are told of its refusals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from swapd.messages.generation import PARK
from swapd.migration.ledger import CapacityLedger
from swapd.migration.planner import Candidate, Traveller
from swapd.sessions.admission import Admission
from swapd.sessions.live import LiveSession
from swapd.sessions.table import SessionTable
from swapd.worker.link import WorkerLink

HOLDERS_SHOWN: Final = 16
"""A reason names no more sessions than this: it is read by people."""


def candidate(link: WorkerLink, ledger: CapacityLedger, admission: Admission) -> Candidate:
    """A worker, with its room by the ledger."""
    capacity = ledger.worker(link.name)
    ready = link.ready
    return Candidate(
        worker=link.name,
        alive=link.state == "ready" and ready is not None,
        admitting=admission.admitting(link.name),
        fingerprint=ready.info.fingerprint if ready is not None else "",
        block_tokens=ready.info.block_tokens if ready is not None else 1,
        free_blocks=capacity.usable_blocks - capacity.committed if capacity is not None else 0,
        free_slots=capacity.max_sessions - len(capacity.charges) if capacity is not None else 0,
    )


def parked(fingerprint: str) -> Candidate:
    """The park, as the source of a session that was made by engines of that fingerprint."""
    return Candidate(PARK, True, False, fingerprint, 1, 0, 0)


def traveller(session: LiveSession, waited_s: float = 0.0) -> Traveller:
    """A session; it is eligible from its first accepted token on (H85)."""
    return Traveller(
        session=session.id,
        budget_tokens=session.record.spec().budget,
        finished=session.over,
        eligible=session.durable >= 1,
        moving=session.move is not None,
        fresh=not session.received and not session.over,
        copy_tokens=computed(session),
        waited_s=waited_s,
    )


def computed(session: LiveSession) -> int:
    """Positions whose KV is there: the last token's is made with the next one."""
    return max(len(session.record.prompt) + len(session.received) - 1, 0)


def holders(table: SessionTable, ledger: CapacityLedger, workers: Iterable[str]) -> str | None:
    """The sessions that hold the workers' places, none of which has ended (H48)."""
    names: list[str] = []
    for worker in workers:
        capacity = ledger.worker(worker)
        charged = capacity.charges if capacity is not None else {}
        live = (table.get(name) for name in sorted(charged))
        names += [session.id for session in live if session is not None and not session.over]
    if not names:
        return None
    rest = len(names) - HOLDERS_SHOWN
    return "held by " + ", ".join(names[:HOLDERS_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def progress(session: LiveSession) -> str:
    """How far a session is that is not eligible yet (H56): its first token tells that prefill is done."""
    return "no accepted token" if session.received else "still in prefill"
