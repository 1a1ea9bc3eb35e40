"""A worker that is to leave a set of cores leaves the cores first, and its sessions from elsewhere.

Its owner's load may hold the whole core, and a worker there runs only when nobody else wants it: it would
take minutes to hand its sessions over. On any other core of the machine it is as unimportant, and quick.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

log = logging.getLogger("swapd.lending")

PROC: Final = Path("/proc")


class OtherCores:
    """Threads of processes that were sent to other cores, and where each could run before."""

    def __init__(self) -> None:
        self._before: dict[int, dict[int, set[int]]] = {}

    def send(self, pid: int, onto: frozenset[int]) -> None:
        """Let every thread of a process run on these cores; repeats, and no cores, change nothing."""
        if pid in self._before or not onto:
            return
        before: dict[int, set[int]] = {}
        for thread in _threads(pid):
            # A thread may end meanwhile, and a core may be taken offline: then it stays where it is.
            with contextlib.suppress(OSError):
                before[thread] = os.sched_getaffinity(thread)
                os.sched_setaffinity(thread, onto)
        self._before[pid] = before
        log.info("worker leaves the device's cores", extra={"pid": pid, "threads": len(before)})

    def bring_back(self) -> None:
        """Let what is left of all threads run where it could before."""
        for pid, before in self._before.items():
            for thread in _threads(pid):
                if thread in before:
                    with contextlib.suppress(OSError):
                        os.sched_setaffinity(thread, before[thread])
        self._before.clear()

    def forget(self) -> None:
        """The processes have ended."""
        self._before.clear()


def _threads(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for entry in (PROC / str(pid) / "task").iterdir():
            yield int(entry.name)
