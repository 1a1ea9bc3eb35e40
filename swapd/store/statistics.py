"""What the store counts of its own work."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from swapd.distribution import Distribution, Spread
from swapd.store.ballast import Disk, Room

_TIMINGS: Final = 512
COMMIT_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class StoreStatistics(msgspec.Struct, frozen=True):
    """Counts since open; percentiles of the last 512 COMMITs, `commit_s` of all."""

    commits: int
    ops: int
    largest_group: int
    failed: str | None
    commit_ms_p50: float
    commit_ms_p95: float
    queue: int
    commit_s: Spread
    disk: Disk | None
    """As last looked at; None: nobody looks."""
    room: Room
    stuck_s: float | None = None
    """For how long the disk has not answered a write, if that is too long."""


class CommitCounts:
    """Written by the writer's thread only; a reader may be one group behind."""

    def __init__(self) -> None:
        self.commits = 0
        self.ops = 0
        self.largest_group = 0
        self.commit_s = Distribution(COMMIT_BOUNDS_S)
        self._last_ms: deque[float] = deque(maxlen=_TIMINGS)

    def add(self, ops: int, took_s: float) -> None:
        """One COMMIT of so many operations."""
        self._last_ms.append(took_s * 1e3)
        self.commit_s.add(took_s)
        self.commits += 1
        self.ops += ops
        self.largest_group = max(self.largest_group, ops)

    def last_ms(self, pct: int) -> float:
        """A percentile of the last COMMITs; 0 before the first."""
        times = sorted(self._last_ms)
        return times[len(times) * pct // 100] if times else 0.0
