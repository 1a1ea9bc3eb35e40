"""Capacity as a ledger: what every session may come to need is charged before it is promised.

The unit is a KV block. A session is charged ceil((prompt + budget) / block tokens) on its worker from
admission to its end; a moving session is charged on both workers from reserve to release. While the sum
stays within the usable blocks, the engine never has to preempt, and preemption would recompute (H46, H75).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that `tokens` positions occupy, the partial one included."""
    return -(-tokens // block_tokens)


@dataclass
class WorkerCapacity:
    """What one worker incarnation can hold, and what of it is promised."""

    usable_blocks: int
    max_sessions: int
    block_tokens: int
    charges: dict[str, int] = field(default_factory=dict)

    @property
    def committed(self) -> int:
        """Blocks promised."""
        return sum(self.charges.values())

    def room_for(self, tokens: int, beside: int = 0) -> bool:
        """Whether a budget of `tokens` still fits (H46); with `beside`, and one of that size after it."""
        wanted = blocks_for(tokens, self.block_tokens) + blocks_for(beside, self.block_tokens)
        sessions = 2 if beside else 1
        fits = self.committed + wanted <= self.usable_blocks
        return fits and len(self.charges) + sessions <= self.max_sessions

    def could_hold(self, tokens: int) -> bool:
        """Whether it would fit an empty worker."""
        return blocks_for(tokens, self.block_tokens) <= self.usable_blocks


class CapacityLedger:
    """Charges by worker and session. Whoever charged takes back, also from a worker that was lost."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerCapacity] = {}

    def set_worker(self, worker: str, usable_blocks: int, max_sessions: int, block_tokens: int) -> None:
        """Record a worker's capacity; what is charged stays until it is taken back."""
        old = self._workers.get(worker)
        charges = old.charges if old is not None else {}
        self._workers[worker] = WorkerCapacity(usable_blocks, max_sessions, block_tokens, charges)

    def forget(self, worker: str) -> None:
        """Drop a worker that is gone, with all that was charged to it."""
        self._workers.pop(worker, None)

    def worker(self, worker: str) -> WorkerCapacity | None:
        """Capacity of a known worker."""
        return self._workers.get(worker)

    def charge(self, worker: str, session: str, tokens: int, beside: int = 0) -> bool:
        """Promise room for `tokens` to a session; False leaves all as it was. Repeats change nothing.

        `beside`: only if that many tokens of another session would still fit.
        """
        capacity = self._workers.get(worker)
        if capacity is None:
            return False
        if session in capacity.charges:
            return True
        if not capacity.room_for(tokens, beside):
            return False
        capacity.charges[session] = blocks_for(tokens, capacity.block_tokens)
        return True

    def restore(self, worker: str, session: str, tokens: int) -> None:
        """Charge what a worker is known to hold already (re-attach); may not be refused."""
        capacity = self._workers.get(worker)
        if capacity is not None:
            capacity.charges[session] = blocks_for(tokens, capacity.block_tokens)

    def free(self, worker: str, session: str) -> None:
        """Take a promise back; unknown ones are ignored."""
        capacity = self._workers.get(worker)
        if capacity is not None:
            capacity.charges.pop(session, None)

    def copy(self) -> CapacityLedger:
        """The same promises in a ledger of its own: to try out what would fit."""
        trial = CapacityLedger()
        trial._workers = {
            name: replace(capacity, charges=dict(capacity.charges))
            for name, capacity in self._workers.items()
        }
        return trial

    def total_charges(self) -> int:
        """Open promises over all workers (`swapd_open_reservations`, H49)."""
        return sum(len(capacity.charges) for capacity in self._workers.values())
