"""What a generation is, as coordinator, worker and store all see it."""

from __future__ import annotations

from typing import Final

import msgspec

PARK: Final = "park"
"""The worker name under which the service itself owns sessions, parked in host memory (B3)."""


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens are chosen. `temperature` 0 is greedy; `seed` is set for every session at admission.

    The noise of a token is a pure function of (`seed`, position), so no generator state moves (H89).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class GenerationSpec(msgspec.Struct, frozen=True):
    """One session as an engine needs it: prompt and budget in tokens; `salt` separates prefix caches."""

    session: str
    prompt: tuple[int, ...]
    sampling: Sampling
    max_new_tokens: int
    salt: str = ""

    @property
    def budget(self) -> int:
        """Tokens whose KV may have to be held: prompt + max_new_tokens."""
        return len(self.prompt) + self.max_new_tokens


class Owner(msgspec.Struct, frozen=True):
    """The one process that may append to a session under `epoch` (H19)."""

    worker: str
    incarnation: str


class Lease(msgspec.Struct, frozen=True):
    """A region of the arena lent to one move (H96). Offsets and sizes are bytes from the arena's start."""

    region: int
    generation: int
    offset: int
    size: int


class BlockEntry(msgspec.Struct, frozen=True, array_like=True):
    """One block in a region: its index in the session, byte offset in the region, valid tokens, CRC-32."""

    index: int
    offset: int
    valid: int
    crc: int


class StateEntry(msgspec.Struct, frozen=True, array_like=True):
    """One item of decode state, and the digest of all that it is a function of (H89)."""

    name: str
    digest: str


class Manifest(msgspec.Struct, frozen=True):
    """Binds bytes to meaning: whose blocks these are and what they must check as (B21).

    `swapd.messages.snapshot` makes and checks them. `state` is there from the freeze on. The last three
    have defaults so that what a worker of an older build says can be read, and is refused.
    """

    session: str
    epoch: int
    region: int
    generation: int
    fingerprint: str
    blocks: tuple[BlockEntry, ...]
    state: tuple[StateEntry, ...] = ()
    schema: int = 0
    """Of the snapshot: what blocks, state and digests mean."""
    digest: str = ""
    """Of all the other fields."""
