"""The first pages of the arena: what it is, and which leases are in force.

Layout, native byte order (one host): preamble `magic, version, regions, size_bytes, flags`, then three tables
of u64, one entry a region: generation mark, offset, size. The mark of generation g is 2g while the lease is
in force and 2g + 1 once it is retired, so a retired mark never equals a later lease's.

Each entry is written whole by one aligned 8-byte store, by the arena's owner alone; attached processes map
the header read-only. The order of a lease's start is given by the message that carries it. Its end is a
fence, not a lock: a copy of one block that is under way when the lease is retired ends after it, and the
block's checksum in the manifest is what refuses it (H99).
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

from swapd.errors import Code, SwapdError
from swapd.messages.generation import Lease

MAGIC: Final = b"swapdKV\0"
VERSION: Final = 1
REGIONS: Final = 512
FLAG_PAGE_LOCKED: Final = 1

_PREAMBLE: Final = struct.Struct("=8sIIQQ")
_TABLES_AT_BYTES: Final = 64
_ENTRY_BYTES: Final = 8
HEADER_BYTES: Final = -(-(_TABLES_AT_BYTES + 3 * REGIONS * _ENTRY_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
"""Whole pages; region offsets start here."""


def preamble(size_bytes: int, *, page_locked: bool) -> bytes:
    return _PREAMBLE.pack(MAGIC, VERSION, REGIONS, size_bytes, FLAG_PAGE_LOCKED if page_locked else 0)


def read_preamble(data: bytes, size_bytes: int) -> bool:
    """Verify what an attached descriptor claims to be. Returns whether its pages are locked.

    Raises `arena_unavailable`, or `version_unsupported` for a layout of another swapd.
    """
    if len(data) < _PREAMBLE.size:
        raise SwapdError(Code.ARENA_UNAVAILABLE, "the descriptor is too short for an arena")
    magic, version, regions, claimed, flags = _PREAMBLE.unpack_from(data)
    if magic != MAGIC:
        raise SwapdError(Code.ARENA_UNAVAILABLE, "the descriptor is not a swapd arena")
    if version != VERSION or regions != REGIONS:
        raise SwapdError(Code.VERSION_UNSUPPORTED, f"arena layout {version}, this side speaks {VERSION}")
    if claimed != size_bytes:
        raise SwapdError(Code.ARENA_UNAVAILABLE, f"the arena claims {claimed} bytes and has {size_bytes}")
    return bool(flags & FLAG_PAGE_LOCKED)


class RegionTable:
    """The tables in a mapped header. Raises `lease_stale` wherever a lease is not what the table says."""

    def __init__(self, header: memoryview, size_bytes: int) -> None:
        tables = header[_TABLES_AT_BYTES : _TABLES_AT_BYTES + 3 * REGIONS * _ENTRY_BYTES].cast("Q")
        self._marks = tables[:REGIONS]
        self._offsets = tables[REGIONS : 2 * REGIONS]
        self._sizes = tables[2 * REGIONS :]
        self._views = (tables, self._marks, self._offsets, self._sizes)
        self._size_bytes = size_bytes

    def check(self, lease: Lease) -> None:
        """Pass only a lease that is in force, exactly as it was published (H96)."""
        if not 0 <= lease.region < REGIONS or self._marks[lease.region] != 2 * lease.generation:
            raise _stale(lease, "is not in force")
        if (self._offsets[lease.region], self._sizes[lease.region]) != (lease.offset, lease.size):
            raise _stale(lease, "was published with another place")

    def check_retired(self, lease: Lease) -> None:
        """Pass only the last lease of its region, after it was retired."""
        if not 0 <= lease.region < REGIONS or self._marks[lease.region] != 2 * lease.generation + 1:
            raise _stale(lease, "is not the last one retired")
        if (self._offsets[lease.region], self._sizes[lease.region]) != (lease.offset, lease.size):
            raise _stale(lease, "was published with another place")

    def publish(self, lease: Lease) -> None:
        """Put a lease in force. Its generation must be newer than any its region has had."""
        inside = lease.offset >= HEADER_BYTES and 0 < lease.size <= self._size_bytes - lease.offset
        if not 0 <= lease.region < REGIONS or not inside:
            raise _stale(lease, "lies outside the arena")
        if self._marks[lease.region] >= 2 * lease.generation:
            raise _stale(lease, "is older than its region")
        self._offsets[lease.region] = lease.offset
        self._sizes[lease.region] = lease.size
        self._marks[lease.region] = 2 * lease.generation

    def retire(self, lease: Lease) -> None:
        """End a lease. A no-op unless exactly this one is in force."""
        if 0 <= lease.region < REGIONS and self._marks[lease.region] == 2 * lease.generation:
            self._marks[lease.region] = 2 * lease.generation + 1

    def close(self) -> None:
        for view in reversed(self._views):
            view.release()


def _stale(lease: Lease, why: str) -> SwapdError:
    return SwapdError(Code.LEASE_STALE, f"region {lease.region}, generation {lease.generation} {why}")
