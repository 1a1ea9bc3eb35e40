"""What moves may borrow, and the order in which a want is told. Pure.

A move needs a region of the arena for its KV, room at its target, and a place among the moves under way. A
drain borrows from the one book of the service, a pre-flight from a copy of it.
"""

from __future__ import annotations

from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import EngineInfo
from swapd.messages.generation import PARK, Lease
from swapd.migration.ledger import CapacityLedger, blocks_for
from swapd.transport.leases import LeaseBook


class LoanBook:
    """`moving` counts the moves that have not given back; `ceiling` bounds it (H76)."""

    def __init__(
        self,
        ledger: CapacityLedger,
        leases: LeaseBook | None,
        ceiling: int | None,
        refusal: SwapdError | None,
    ) -> None:
        """`refusal`: why there is no arena, where there is none."""
        self.moving = 0
        self.ledger = ledger
        self.leases = leases
        self._ceiling = ceiling
        self._refusal = refusal

    def copy(self) -> LoanBook:
        """The same loans in a book of its own: to try out what would be lent."""
        leases = self.leases.copy() if self.leases is not None else None
        trial = LoanBook(self.ledger.copy(), leases, self._ceiling, self._refusal)
        trial.moving = self.moving
        return trial

    def lend(self, session: str, budget: int, target: str, info: EngineInfo) -> Lease:
        """Lend all or nothing for a move of a session to `target`; `info` is the source engine's.

        Raises `arena_unavailable`, `arena_too_small` (with both sizes), `arena_exhausted`, `target_full`.
        """
        leases = self.leases
        if leases is None:
            raise self._refusal or SwapdError(Code.ARENA_UNAVAILABLE)
        # The whole budget: a session can never outgrow its lease while it is copied.
        size = blocks_for(budget, info.block_tokens) * info.block_bytes
        if not leases.fits(size):
            raise SwapdError(
                Code.ARENA_TOO_SMALL, f"{size} bytes needed, the arena has {leases.capacity_bytes}"
            )
        if self._ceiling is not None and self.moving >= self._ceiling:
            raise SwapdError(Code.ARENA_EXHAUSTED, f"{self.moving} moves are under way")
        # The park has no blocks: its room is promised by itself (B3).
        if target != PARK and not self.ledger.charge(target, session, budget):
            raise SwapdError(Code.TARGET_FULL)
        lease = leases.grant(size)
        if lease is None:
            self.ledger.free(target, session)
            raise SwapdError(Code.ARENA_EXHAUSTED)
        self.moving += 1
        return lease

    def arrived(self, lease: Lease) -> None:
        """A move is over: its region and its place are free; its room at the target is the session's."""
        assert self.leases is not None
        self.leases.release(lease)
        self.moving -= 1
