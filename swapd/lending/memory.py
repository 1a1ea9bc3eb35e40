"""Whether a device's memory is back after its workers ended (B17). Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from swapd.messages.sampler import Measurement

TOLERANCE_BYTES: Final = 64 << 20
"""What a driver may keep for itself, and others may take, without the memory counting as not returned."""


MEMORY_WAIT_S: Final = 10.0
"""How long the memory may take to come back after the last process was collected."""


class Returned(NamedTuple):
    """The device is free since `free_s`; `back`: whether its memory is, None where nothing can tell."""

    free_s: float
    back: bool | None


class MemoryReturn:
    """Follows one device's memory over the ends of its workers. Times are CLOCK_BOOTTIME."""

    def __init__(self) -> None:
        self.gone_s: float | None = None
        """When the last process was collected."""
        self._before: int | None = None
        self._expected: int | None = None

    def begin(self) -> None:
        """A give-back begins."""
        self.gone_s = self._expected = None

    def remember(self, seen: Measurement | None) -> None:
        """The workers are about to start: what is in use now belongs to others."""
        if seen is not None and seen.memory_used_bytes is not None:
            self._before = seen.memory_used_bytes - (seen.lender_memory_bytes or 0)

    def expect(self, seen: Measurement | None) -> None:
        """The workers are about to end: say how much may be in use after them. The first time counts."""
        if self._expected is None:
            self._expected = expected_bytes(self._before, seen)

    def look(self, seen: Measurement | None, now_s: float) -> Returned | None:
        """All processes are collected by now: whether the device is free; None: not yet."""
        if self.gone_s is None:
            self.gone_s = now_s
        if self._expected is None or seen is None or seen.memory_used_bytes is None:
            return Returned(self.gone_s, None)
        if seen.at_s >= self.gone_s and is_back(seen, self._expected):
            return Returned(seen.at_s, True)
        return Returned(now_s, False) if now_s - self.gone_s >= MEMORY_WAIT_S else None


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
