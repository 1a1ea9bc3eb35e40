"""The gate before reserved blocks: copy threads write through it, the engine thread closes it.

A block may be written only while its reservation is open. Each write holds the reservation's lock, and
closing takes the same lock: after `close` or `seal` returns, no copy is under way and none begins. So blocks
can be freed, or handed to the engine's next step, without asking the copy threads; the wait is one block's
copy at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Literal

from swapd.errors import Code, SwapdError
from swapd.messages.generation import GenerationSpec, Lease, Manifest
from swapd.messages.snapshot import valid_tokens


class Reservation:
    """One move's blocks on the target. `filled` maps block index to verified valid tokens."""

    def __init__(
        self, move: str, spec: GenerationSpec, epoch: int, lease: Lease, blocks: tuple[int, ...], ttl_s: float
    ) -> None:
        self.move = move
        self.spec = spec
        self.epoch = epoch
        self.lease = lease
        self.blocks = blocks
        self.filled: dict[int, int] = {}
        self.sealed_by: Manifest | None = None
        self.touched_s = 0.0
        self._ttl_s = ttl_s
        self._lock = Lock()
        self._state: Literal["open", "sealed", "closed"] = "open"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the gate for one block's write. Raises `lease_expired` when it is shut."""
        with self._lock:
            if self._state != "open":
                raise SwapdError(Code.LEASE_EXPIRED)
            yield

    def seal(self, manifest: Manifest) -> None:
        """Let nothing more in: the engine may use the blocks. Raises `lease_expired` when discarded."""
        with self._lock:
            if self._state == "closed":
                raise SwapdError(Code.LEASE_EXPIRED)
            self._state = "sealed"
            self.sealed_by = manifest

    def close(self) -> None:
        """Let nothing more in: the blocks are about to be freed."""
        with self._lock:
            self._state = "closed"

    def expired(self, now_s: float) -> bool:
        """Whether an incomplete import was forgotten; a sealed one never is (decision 3)."""
        return self._state == "open" and now_s - self.touched_s > self._ttl_s

    def whole(self, block_tokens: int) -> int:
        """Positions from the first on that lie in full, verified blocks (B21, B24)."""
        blocks = 0
        while self.filled.get(blocks, 0) == block_tokens:
            blocks += 1
        return blocks * block_tokens

    def complete(self, computed: int, block_tokens: int) -> bool:
        """Whether every position below `computed` lies in a verified block, and no block claims more."""
        needed = valid_tokens(computed, block_tokens)
        return self.filled == dict(enumerate(needed))


class Staging:
    """All open and sealed reservations by move. Added and removed by the engine thread, read by any."""

    def __init__(self) -> None:
        self._reservations: dict[str, Reservation] = {}

    def add(self, reservation: Reservation, now_s: float) -> None:
        reservation.touched_s = now_s
        self._reservations[reservation.move] = reservation

    def get(self, move: str) -> Reservation:
        """Raises `lease_expired` for a move that is not, or no longer, reserved here."""
        found = self._reservations.get(move)
        if found is None:
            raise SwapdError(Code.LEASE_EXPIRED)
        return found

    def touch(self, move: str, now_s: float) -> None:
        """Note that a message for this move has come."""
        found = self._reservations.get(move)
        if found is not None:
            found.touched_s = now_s

    def remove(self, move: str) -> None:
        """Shut the gate and forget the reservation. Unknown moves are ignored."""
        found = self._reservations.pop(move, None)
        if found is not None:
            found.close()

    def expired(self, now_s: float) -> list[str]:
        return [move for move, found in list(self._reservations.items()) if found.expired(now_s)]
