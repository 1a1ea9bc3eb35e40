"""What the process says about itself once a second: the engine thread's snapshot and the kernel's figures."""

from __future__ import annotations

import os
from pathlib import Path

import trio

from swapd.messages.from_worker import WorkerStats
from swapd.worker.control import ControlStatistics
from swapd.worker.loop import Snapshot


def vital_signs(snapshot: Snapshot, control: ControlStatistics) -> WorkerStats:
    """Gather a heartbeat's figures; `threads` are the kernel's, native ones included."""
    return WorkerStats(
        step=snapshot.step,
        step_ms_median=snapshot.step_ms_median,
        free_blocks=snapshot.free_blocks,
        running=snapshot.running + snapshot.waiting,
        held=snapshot.held,
        frozen=snapshot.frozen,
        reserved=snapshot.reserved + snapshot.prepared,
        sessions=snapshot.sessions,
        unaccepted=snapshot.unaccepted,
        threads=len(os.listdir("/proc/self/task")),
        fds=len(os.listdir("/proc/self/fd")),
        rss_bytes=int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        preemptions=snapshot.preemptions,
        fenced=snapshot.fenced + control.fenced,
        recomputed_tokens=snapshot.recomputed_tokens,
        swept=snapshot.swept,
        tasks=trio.lowlevel.current_statistics().tasks_living,
        taken_at=snapshot.taken_at,
    )
