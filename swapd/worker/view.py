"""What callers see of a worker: its link's word, and what the books say of it."""

from __future__ import annotations

import msgspec

from swapd.migration.ledger import WorkerCapacity
from swapd.store.quarantines import QuarantineRecord
from swapd.views import QuarantineView, WorkerView
from swapd.worker.link import WorkerLink


def worker_view(
    link: WorkerLink,
    *,
    admitting: bool,
    closed: str | None,
    sessions: int,
    capacity: WorkerCapacity | None,
    drain: str | None,
    held: QuarantineRecord | None,
) -> WorkerView:
    """One worker. `closed`: why it admits nobody, if the link does not say; `held`: its quarantine."""
    ready, stats = link.ready, link.stats
    info = ready.info if ready is not None else None
    return WorkerView(
        id=link.name,
        state=link.state,
        admitting=admitting,
        reason=link.reason or closed,
        incarnation=ready.incarnation if ready is not None else None,
        engine=info.engine if info is not None else None,
        model=info.model if info is not None else None,
        device=link.worker.device,
        pid=ready.pid if ready is not None else None,
        sessions=sessions,
        usable_blocks=capacity.usable_blocks if capacity is not None else 0,
        committed_blocks=capacity.committed if capacity is not None else 0,
        free_blocks=stats.free_blocks if stats is not None else None,
        drain=drain,
        stats=msgspec.to_builtins(stats) if stats is not None else {},
        quarantine=QuarantineView(held.code, held.at) if held is not None else None,
    )
