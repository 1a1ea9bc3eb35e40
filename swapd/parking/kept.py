"""One parked session: what its KV is, and where it lies."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import trio

from swapd.messages.generation import Lease, StateEntry
from swapd.messages.snapshot import SNAPSHOT_SCHEMA, valid_tokens


class KeptHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Binds bytes to meaning, as a manifest does: `blocks` are (valid tokens, CRC-32), by index.

    `position` output tokens exist, and KV for `computed` positions: what it belongs to is the transcript up
    to there, which only grows. `state` is the decode state there, item by item (H89).
    """

    schema: int

    session: str
    epoch: int
    position: int
    computed: int
    fingerprint: str
    block_tokens: int
    block_bytes: int
    blocks: tuple[tuple[int, int], ...]
    state: tuple[StateEntry, ...]

    @property
    def size(self) -> int:
        return len(self.blocks) * self.block_bytes

    @property
    def is_sound(self) -> bool:
        """Whether this build can use it, and the header does not contradict itself."""
        sizes = min(self.block_tokens, self.block_bytes, self.position, self.computed)
        return (
            self.schema == SNAPSHOT_SCHEMA
            and sizes > 0
            and [valid for valid, _ in self.blocks] == valid_tokens(self.computed, self.block_tokens)
        )


@dataclass
class Kept:
    """A parked session. Its bytes are in memory (`lease`) or in a `file`, in order of the blocks."""

    header: KeptHeader
    lease: Lease | None = None
    file: Path | None = None
    gone: bool = False
    """It left, or ended; its bytes go once nobody copies them."""
    lock: trio.Lock = field(default_factory=trio.Lock)
    """Held while bytes are copied or moved."""
