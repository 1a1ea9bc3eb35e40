"""Copy threads: one for pre-copy, which must not slow the neighbours, one for tails that somebody waits for.

A job is a generator that yields after each block. A thread takes its jobs in turn and gives each `TURN_S` of
copying. Most end within one turn, so the other side can take in what the first ones brought while this one
copies the next; a long one goes to the back of the queue, so nobody waits for it to end. The pre-copy thread
sleeps so that it is busy for `duty` of the time at most (B30).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from threading import Condition, Thread
from typing import Final

from swapd.errors import Code, SwapdError

MAX_JOBS: Final = 4096
TURN_S: Final = 0.02
"""Of copying, without naps: some hundred blocks of a small model, a tenth of a GiB of a large one's."""
NAP_AFTER_BUSY_S: Final = 0.001
"""Sleeping after every small block would cost more than the copy."""

_log = logging.getLogger("swapd.worker")

Job = Iterator[None]


class CopyThread:
    """One thread that runs jobs fairly. Jobs report their own refusals; they must not raise."""

    def __init__(self, name: str, duty: float = 1.0) -> None:
        self._duty = duty
        self._jobs: deque[Job] = deque()
        self._changed = Condition()
        self._stopping = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Add a job (any thread). Raises `not_ready` beyond `MAX_JOBS`."""
        with self._changed:
            if len(self._jobs) >= MAX_JOBS:
                raise SwapdError(Code.NOT_READY, "the copy thread is behind")
            self._jobs.append(job)
            self._changed.notify()

    def stop(self, timeout_s: float) -> bool:
        """Drop all jobs and end after the block under way; says whether it ended in time."""
        with self._changed:
            self._stopping = True
            self._jobs.clear()
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        busy_s = turn_s = 0.0
        while (job := self._next()) is not None:
            began = time.monotonic()
            goes_on = self._advance(job)
            took_s = time.monotonic() - began
            busy_s, turn_s = busy_s + took_s, turn_s + took_s
            if goes_on:
                self._put_back(job, first=turn_s < TURN_S)
            if not goes_on or turn_s >= TURN_S:
                turn_s = 0.0
            if self._duty < 1.0 and busy_s >= NAP_AFTER_BUSY_S:
                time.sleep(busy_s * (1.0 / self._duty - 1.0))
                busy_s = 0.0

    def _put_back(self, job: Job, *, first: bool) -> None:
        with self._changed:
            if self._stopping:
                return
            if first:
                self._jobs.appendleft(job)
            else:
                self._jobs.append(job)

    def _next(self) -> Job | None:
        with self._changed:
            # No deadline: an idle copy thread waits for its next job or for `stop`.
            self._changed.wait_for(lambda: self._jobs or self._stopping)
            return None if self._stopping else self._jobs.popleft()

    def _advance(self, job: Job) -> bool:
        try:
            next(job)
        except StopIteration:
            return False
        except Exception as error:  # supervision boundary: one job's fault must not end the others'
            _log.error("copy job failed", extra={"error_type": type(error).__name__})
            return False
        return True
