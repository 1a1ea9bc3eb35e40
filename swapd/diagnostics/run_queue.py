"""Whether the coordinator gets a CPU when it wants one, as the kernel counts it (B8).

`/proc/self/schedstat` has for the first thread, which is Trio's: nanoseconds run, nanoseconds waited for a
CPU while it could have run. Every token and every message passes through that thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import trio

LOOK_EVERY_S: Final = 10.0
HIGH_RATIO: Final = 0.5
"""Above it the thread waits longer than it runs: clients and moves are slowed down."""
WANTED_MIN: Final = 0.02
"""A thread that wanted less than this share of a CPU waits for nobody's harm."""
SCHEDSTAT: Final = Path("/proc/self/schedstat")
NS_PER_S: Final = 1e9


class RunTimes(NamedTuple):
    """Of one moment, in seconds."""

    at: float
    ran: float
    waited: float


def wait_ratio(before: RunTimes, after: RunTimes) -> float:
    """Of the time that the thread wanted to run, the share in which it had to wait: 0.0 to 1.0. Pure."""
    ran, waited = after.ran - before.ran, after.waited - before.waited
    wanted = ran + waited
    if wanted <= WANTED_MIN * (after.at - before.at):
        return 0.0
    return min(max(waited / wanted, 0.0), 1.0)


class RunQueueWatch:
    """`run` is its task. `ratio` is that of the last `LOOK_EVERY_S`; None where the kernel does not tell."""

    def __init__(self, path: Path = SCHEDSTAT, clock: Callable[[], float] = trio.current_time) -> None:
        self.ratio: float | None = None
        self._path = path
        self._clock = clock

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look until cancelled."""
        before = self.read()
        task_status.started()
        while True:
            await trio.sleep(LOOK_EVERY_S)
            after = self.read()
            self.ratio = wait_ratio(before, after) if before is not None and after is not None else None
            before = after

    def read(self) -> RunTimes | None:
        """What the kernel has counted for this process's first thread; None where it does not count."""
        try:
            # A file of the kernel's memory: reading it waits for no disk.
            ran, waited = self._path.read_text().split()[:2]
            return RunTimes(self._clock(), int(ran) / NS_PER_S, int(waited) / NS_PER_S)
        except (OSError, ValueError):
            return None
