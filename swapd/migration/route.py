"""The two sides that a wave goes between, workers or the park, and what its steps need to know of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from swapd.config import Config, TimerConfig
from swapd.errors import SwapdError
from swapd.messages.from_worker import Ready
from swapd.messages.generation import PARK, Owner
from swapd.messages.to_worker import ToWorker
from swapd.migration.move import Move
from swapd.migration.quarantine import target_fault
from swapd.sessions.table import SessionTable
from swapd.store.moves import note_phase
from swapd.store.writer import Store
from swapd.worker.dialogue import WorkerLost

M = TypeVar("M")


class Peer(Protocol):
    """One side of a wave: a worker's link, or the park, which answers the same messages (B3)."""

    @property
    def name(self) -> str: ...
    @property
    def owner(self) -> Owner | None: ...
    @property
    def ready(self) -> Ready | None: ...
    @property
    def stats(self) -> object: ...
    def is_owner(self, owner: Owner | None) -> bool: ...
    def tell(self, body: ToWorker) -> None: ...
    async def request(self, body: ToWorker, expect: type[M], timeout_s: float | None = None) -> M: ...


@dataclass(frozen=True)
class Route:
    """From `source` to `target`. Sizes are those of both engines: the planner compared their fingerprints."""

    table: SessionTable
    source: Peer
    target: Peer
    timers: TimerConfig
    window: int
    block_tokens: int
    block_bytes: int

    @classmethod
    def between(cls, config: Config, table: SessionTable, source: Peer, target: Peer) -> Route:
        """The source must be ready, or else the target: sizes are read now, and it may be gone later."""
        ready = source.ready or target.ready
        assert ready is not None
        info = ready.info
        return cls(
            table, source, target, config.timers, config.window_tokens, info.block_tokens, info.block_bytes
        )

    @property
    def parks(self) -> bool:
        """Whether the sessions stop at the target: no token of theirs will show that they have arrived."""
        return self.target.name == PARK

    @property
    def store(self) -> Store:
        return self.table.store

    def check(self, move: Move) -> None:
        """Raise `WorkerLost` unless both incarnations of the move are still there."""
        for link, owner in ((self.source, move.source), (self.target, move.target)):
            if not link.is_owner(owner):
                raise WorkerLost(link.name)

    async def ask_target(
        self, moves: Iterable[Move], body: ToWorker, expect: type[M], timeout_s: float, *, imports: bool
    ) -> M:
        """Ask the target something on behalf of moves; those that fail by its fault say so (H79).

        `imports`: the target was to take bytes. Raises what `WorkerLink.request` raises.
        """
        try:
            return await self.target.request(body, expect, timeout_s)
        except SwapdError as error:
            for move in moves:
                move.target_fault = target_fault(error.code, imports=imports)
            raise

    def ride(self, move: Move) -> None:
        """Let the phase ride along with the next group commit; nobody waits for it (H66)."""
        phase = str(move.phase)
        self.store.post(lambda db: note_phase(db, move.id, phase), lambda _: None)
