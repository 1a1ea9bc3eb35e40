"""Giving a device back when the store has failed, and nothing moves or ends durably any more (H160).

    no session on a worker                     → stopped at once
    sessions, for longer than they may finish  → stopped all the same: as if its process had died
    named in a move that has not ended         → left alone: which side owns the session is unknown (SF)

A worker that is stopped loses only what was never accepted: the store has the rest, and the next start
replays its sessions or ends them with `recovery_unavailable`, as after a crash. A side of an unknown move is
another matter: a copy is released after its commit is known and not before (decision 1). The owner may end
that process all the same, and is told how.
"""

from __future__ import annotations

import sqlite3

from swapd.config import OwnerConfig
from swapd.store.moves import open_moves
from swapd.store.writer import Store


def patience_s(owner: OwnerConfig) -> float:
    """How long sessions are waited for: as long as the ladder waits for those that can go nowhere."""
    return 0.0 if owner.when_full == "cancel" else owner.finish_s


class UnsettledMoves:
    """The workers that may hold a side of a move, once nothing changes in the store any more."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: frozenset[str] | None = None

    async def workers(self) -> frozenset[str] | None:
        """Names of sources and targets; None: the disk does not tell. Cancelled: asked again next time."""
        if self._found is None:
            try:
                moves = await self._store.read(open_moves)
            except (sqlite3.Error, OSError):
                return None
            # A store that failed stays as it is until a restart, so once is enough.
            self._found = frozenset(side.worker for move in moves for side in (move.source, move.target))
        return self._found
