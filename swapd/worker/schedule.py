"""The recorded step schedule, for benches that replay it in a control run."""

from __future__ import annotations

from collections import deque
from typing import Final

from swapd.messages.from_worker import StepRecord

STEPS_PER_ANSWER: Final = 2000
BYTES_PER_ANSWER: Final = 512 << 10
"""Half of what a frame may have."""
ENTRY_BYTES: Final = 16
"""msgpack's share of a record and of each of its entries, rounded up."""


class ScheduleBook:
    """Step records in order; grows while nobody takes them, so recording is off by default."""

    def __init__(self, on: bool) -> None:
        self.on = on
        self._steps: deque[StepRecord] = deque()

    def add(self, record: StepRecord) -> None:
        self._steps.append(record)

    def take(self) -> tuple[StepRecord, ...]:
        """Return and forget the oldest records, as many as one answer holds; empty when none are left."""
        taken: list[StepRecord] = []
        room = BYTES_PER_ANSWER
        while self._steps and len(taken) < STEPS_PER_ANSWER:
            record = self._steps[0]
            room -= ENTRY_BYTES * 2 + sum(ENTRY_BYTES + len(session) for session, _ in record.batch)
            if room < 0 and taken:
                break
            taken.append(self._steps.popleft())
        return tuple(taken)
