"""What the planner is shown of workers and sessions."""

from __future__ import annotations

from swapd.migration.ledger import CapacityLedger
from swapd.migration.planner import Candidate, Traveller
from swapd.sessions.admission import Admission
from swapd.sessions.live import LiveSession
from swapd.worker.link import WorkerLink


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


def traveller(session: LiveSession) -> Traveller:
    """A session; it is eligible from its first accepted token on (H85)."""
    return Traveller(
        session=session.id,
        budget_tokens=session.record.spec().budget,
        finished=session.over,
        eligible=session.durable >= 1,
        moving=session.move is not None,
    )
