"""What a move has on loan: a region of the arena, room at its target, a place among the moves under way.

All three are given back on every outcome (H49, H97). A region is fenced at once, and lent again when it has
been overwritten: its session and its device wait for neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import trio

from swapd.config import Config
from swapd.errors import SwapdError
from swapd.messages.from_worker import EngineInfo
from swapd.messages.generation import Lease
from swapd.migration.ledger import CapacityLedger
from swapd.migration.loan_book import LoanBook
from swapd.migration.move import Move
from swapd.sessions.live import LiveSession
from swapd.transport.arena import Arena
from swapd.transport.leases import LeaseBook


class Loans:
    """The lender of all moves; `run` overwrites what comes back. `moving` counts moves not given back."""

    def __init__(
        self,
        config: Config,
        ledger: CapacityLedger,
        arena: Arena | None,
        leases: LeaseBook | None,
        arena_refusal: SwapdError | None,
    ) -> None:
        leases = leases if arena is not None else None
        self.book = LoanBook(ledger, leases, config.max_concurrent_migrations, arena_refusal)
        self._ledger = ledger
        self._arena = arena
        self._leases = leases
        self._arena_refusal = arena_refusal
        # Not more than the arena has regions.
        self._retired, self._to_wipe = trio.open_memory_channel[Lease](math.inf)

    async def run(self, freed: Callable[[], None]) -> None:
        """Overwrite regions off this thread, one after the other, and lend them again, until cancelled."""
        async for lease in self._to_wipe:
            assert self._arena is not None
            assert self._leases is not None
            await trio.to_thread.run_sync(self._arena.wipe, lease)
            self._leases.release(lease)
            freed()

    @property
    def moving(self) -> int:
        return self.book.moving

    def lend(self, session: LiveSession, target: str, info: EngineInfo) -> Lease:
        """Lend all or nothing for a move of `session` to `target`; raises what `LoanBook.lend` does."""
        lease = self.book.lend(session.id, session.record.spec().budget, target, info)
        assert self._arena is not None
        self._arena.publish(lease)
        return lease

    def transfer(self) -> dict[str, str | int | bool | None]:
        """How KV crosses between workers: the arena's size and whether the host locked its pages (H91)."""
        arena = self._arena
        if arena is None:
            refusal = self._arena_refusal.sentence if self._arena_refusal is not None else None
            return {"kind": "none", "bytes": 0, "page_locked": False, "refusal": refusal}
        return {
            "kind": "arena",
            "bytes": arena.data_bytes,
            "page_locked": arena.page_locked,
            "refusal": None,
        }

    def arena_bytes(self) -> dict[str, int]:
        """The arena's data bytes: all, on loan, free; zeros where there is none."""
        leases = self._leases
        if leases is None:
            return {"total": 0, "lent": 0, "free": 0}
        free = leases.free_bytes
        return {"total": leases.capacity_bytes, "lent": leases.capacity_bytes - free, "free": free}

    def settle(self, move: Move) -> None:
        """Keep the charge where the session lives, drop the other; drop both if it has ended (H49).

        One for blocks that wait to be taken up there goes with them (B24).
        """
        self.book.moving -= 1
        session = move.session
        owner = session.record.owner
        for worker in (move.source.worker, move.target.worker):
            if session.salvage is not None and session.salvage.target.worker == worker:
                continue
            if session.ended or owner is None or owner.worker != worker:
                self._ledger.free(worker, session.id)

    def give_back(self, leases: Sequence[Lease]) -> None:
        """Fence them: from here on nobody gets at these bytes (H96, H97)."""
        assert self._arena is not None
        for lease in leases:
            self._arena.retire(lease)
            self._retired.send_nowait(lease)
