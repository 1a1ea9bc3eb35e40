"""Which part of the arena is lent to which move: a first-fit allocator with coalescing. Pure.

A region is a slot of the arena's table; its generation grows by one at every grant, so a lease that was
released can never be mistaken for a later one of the same slot (H96). Many leases exist at once (B27).

Invariants: free runs are sorted, disjoint, never adjacent, and with the active leases they tile the capacity.
"""

from __future__ import annotations

import bisect
import copy
import heapq
import mmap
from typing import NamedTuple

from swapd.messages.generation import Lease


class _Run(NamedTuple):
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class LeaseBook:
    """The ledger of leases; sizes are bytes, space is handed out in whole pages."""

    def __init__(self, capacity_bytes: int, *, base_offset: int, regions: int) -> None:
        """Manage `capacity_bytes` from `base_offset` on, in at most `regions` leases at once."""
        if base_offset % mmap.PAGESIZE or capacity_bytes < 0 or regions < 0:
            raise ValueError("base_offset must be page-aligned, sizes must not be negative")
        self._base = base_offset
        self._capacity = capacity_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        self._free = [_Run(base_offset, self._capacity)] if self._capacity else []
        self._generations = [0] * regions
        self._idle = list(range(regions))
        self._active: dict[int, Lease] = {}

    @property
    def capacity_bytes(self) -> int:
        return self._capacity

    @property
    def free_bytes(self) -> int:
        return sum(run.size for run in self._free)

    @property
    def active(self) -> int:
        """Leases that were granted and not released."""
        return len(self._active)

    def fits(self, size: int) -> bool:
        """Whether an empty arena could grant this; if not, waiting is in vain (`arena_too_small`)."""
        return bool(self._generations) and _pages(size) <= self._capacity

    def grant(self, size: int) -> Lease | None:
        """Lend `size` bytes, page-aligned; None when there is no room now."""
        if size <= 0:
            raise ValueError("a lease has at least one byte")
        needed = _pages(size)
        place = next((i for i, run in enumerate(self._free) if run.size >= needed), None)
        if place is None or not self._idle:
            return None
        run = self._free[place]
        rest = [_Run(run.offset + needed, run.size - needed)] if run.size > needed else []
        self._free[place : place + 1] = rest
        region = heapq.heappop(self._idle)
        self._generations[region] += 1
        lease = Lease(region=region, generation=self._generations[region], offset=run.offset, size=size)
        self._active[region] = lease
        return lease

    def release(self, lease: Lease) -> None:
        """Take a lease back. A no-op unless exactly this lease is active, so it may be repeated."""
        if self._active.get(lease.region) != lease:
            return
        del self._active[lease.region]
        heapq.heappush(self._idle, lease.region)
        run = _Run(lease.offset, _pages(lease.size))
        at = bisect.bisect_left(self._free, run)
        first, last = at, at
        if at < len(self._free) and run.end == self._free[at].offset:
            run, last = _Run(run.offset, run.size + self._free[at].size), at + 1
        if at > 0 and self._free[at - 1].end == run.offset:
            before = self._free[at - 1]
            run, first = _Run(before.offset, before.size + run.size), at - 1
        self._free[first:last] = [run]

    def copy(self) -> LeaseBook:
        """The same leases in a book of its own: to try out what would be granted."""
        trial = copy.copy(self)
        trial._free, trial._generations = list(self._free), list(self._generations)
        trial._idle, trial._active = list(self._idle), dict(self._active)
        return trial

    def check_integrity(self) -> None:
        """Raise AssertionError unless the invariants at the head of this file hold."""
        leased = [_Run(lease.offset, _pages(lease.size)) for lease in self._active.values()]
        at = self._base
        for run in sorted([*self._free, *leased]):
            assert run.offset == at, f"gap or overlap at {at}"
            at = run.end
        assert at == self._base + self._capacity, f"ends at {at}"
        adjacent = [(a, b) for a, b in zip(self._free, self._free[1:], strict=False) if a.end >= b.offset]
        assert not adjacent, f"free runs are not coalesced: {adjacent}"
        assert sorted([*self._idle, *self._active]) == list(range(len(self._generations)))
        assert all(lease.generation == self._generations[region] for region, lease in self._active.items())


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
