"""Whether a device's memory is back after its workers ended (B17). Pure."""

from __future__ import annotations

from typing import Final

from swapd.messages.sampler import Measurement

TOLERANCE_BYTES: Final = 64 << 20
"""What a driver may keep for itself, and others may take, without the memory counting as not returned."""


def expected_bytes(before: int | None, last: Measurement | None) -> int | None:
    """How much may be in use once the workers are gone; None where nothing can tell.

    `before`: in use before the workers started. `last`: the newest measurement while they ran; what others
    hold by it counts too, since the owner may have taken more meanwhile.
    """
    others: int | None = None
    if last is not None and last.memory_used_bytes is not None and last.lender_memory_bytes is not None:
        others = max(last.memory_used_bytes - last.lender_memory_bytes, 0)
    known = [value for value in (before, others) if value is not None]
    return max(known) if known else None


def is_back(now: Measurement, expected: int) -> bool | None:
    """Whether the memory is back by a measurement taken after the workers ended; None: it cannot tell."""
    if now.memory_used_bytes is None:
        return None
    return now.memory_used_bytes <= expected + TOLERANCE_BYTES
