"""What the park's memory holds and what it has promised, and who goes to disk first. Pure.

A move to the park is promised its room before anything is copied, so that no session is frozen in vain. Where
parked sessions can be spilled to a folder, the memory is only a stop on the way there: then what is resident
may make way, and a promise has to fit beside the other promises alone. What the folder may still take is
its limit: memory and folder together must have room for all that is resident and promised.
"""

from __future__ import annotations

import copy
import mmap
from typing import Final

from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import EngineInfo
from swapd.migration.ledger import blocks_for

KEEP_FREE_BYTES: Final = 1 << 30
KEEP_FREE_PCT: Final = 5
"""Of the disk that parked sessions go to, the smaller of the two is left free."""


def whole_pages(size: int) -> int:
    """Memory is lent in whole pages."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def park_size(positions: int, info: EngineInfo) -> int:
    """Bytes that a session of so many positions takes, made by engines of that kind."""
    return whole_pages(blocks_for(positions, info.block_tokens) * info.block_bytes)


def disk_room(limit_bytes: int, held_bytes: int, total_bytes: int, free_bytes: int) -> int:
    """What a folder that holds `held_bytes` may still take: its limit (0: none) and its disk decide.

    Some of the disk is left free whatever the limit: the database may lie on it, and must not be stopped by
    what is parked.
    """
    rest = min(KEEP_FREE_BYTES, total_bytes * KEEP_FREE_PCT // 100)
    room = free_bytes - rest
    if limit_bytes:
        room = min(room, limit_bytes - held_bytes)
    return max(0, room)


class ParkLedger:
    """Sizes in bytes. Resident sessions stand in the order of their last use, the oldest first."""

    def __init__(self, capacity_bytes: int, *, spills: bool) -> None:
        self.capacity_bytes = capacity_bytes
        self.spills = spills
        self.disk_room_bytes: int | None = None
        """What the folder may still take, as last looked at; None: there is no telling."""
        self._resident: dict[str, int] = {}
        self._promised: dict[str, int] = {}

    @property
    def sessions(self) -> set[str]:
        """Who is in memory."""
        return set(self._resident)

    @property
    def resident_bytes(self) -> int:
        return sum(self._resident.values())

    @property
    def promised_bytes(self) -> int:
        return sum(self._promised.values())

    def could_take(self, size: int) -> bool:
        """Whether a promise of `size` could be kept now."""
        held = 0 if self.spills else self.resident_bytes
        return size <= self.capacity_bytes - self.promised_bytes - held and self._fits_with_disk(size)

    def could_take_soon(self, size: int) -> bool:
        """Whether waiting helps: with a folder, what is promised now makes way as soon as it has come."""
        if not self.spills:
            return self.could_take(size)
        return size <= self.capacity_bytes and self._fits_with_disk(size)

    def _fits_with_disk(self, size: int) -> bool:
        if not self.spills or self.disk_room_bytes is None:
            return True
        wanted = size + self.promised_bytes + self.resident_bytes
        return wanted <= self.capacity_bytes + self.disk_room_bytes

    def promise(self, move: str, size: int) -> bool:
        """Set room aside for a move; False leaves all as it was. A repeat changes nothing."""
        if move in self._promised:
            return True
        if not self.could_take(size):
            return False
        self._promised[move] = size
        return True

    def expect(self, move: str, positions: int, info: EngineInfo) -> None:
        """Promise a move the room that its session will take. Raises `park_full`."""
        size = park_size(positions, info)
        if not self.promise(move, size):
            raise SwapdError(Code.PARK_FULL, f"{size} bytes wanted of {self.capacity_bytes}")

    def withdraw(self, move: str) -> None:
        """End a promise, kept or not. Unknown ones are ignored."""
        self._promised.pop(move, None)

    def keep(self, session: str, size: int) -> None:
        """Enter a session that is in memory now, as the one used last."""
        self._resident.pop(session, None)
        self._resident[session] = size

    def touch(self, session: str) -> None:
        """Somebody asked for a session: of all it should go to disk last."""
        if session in self._resident:
            self._resident[session] = self._resident.pop(session)

    def remove(self, session: str) -> None:
        """The session is not in memory any more: spilled, resumed or ended. Unknown ones are ignored."""
        self._resident.pop(session, None)

    def oldest(self, among: set[str]) -> str | None:
        """The one of `among` to be spilled first: the least recently used (LRU)."""
        return next((session for session in self._resident if session in among), None)

    def copy(self) -> ParkLedger:
        """The same promises in a ledger of its own: to try out what would fit."""
        trial = copy.copy(self)
        trial._resident, trial._promised = dict(self._resident), dict(self._promised)
        return trial

    def check_integrity(self) -> None:
        """Raise AssertionError when more is promised than can be kept."""
        held = 0 if self.spills else self.resident_bytes
        assert self.promised_bytes + held <= self.capacity_bytes
        assert self.resident_bytes <= self.capacity_bytes
