"""The latest log lines of this process, as they were written: filtered, bounded in number and size."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

RING_LINES: Final = 2000
RING_BYTES: Final = 1 << 20


class LogRing:
    """`add` may be called from any thread, as logging is. The oldest lines make room for new ones."""

    def __init__(self, max_lines: int = RING_LINES, max_bytes: int = RING_BYTES) -> None:
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._lines: deque[str] = deque()
        self._bytes = 0

    def add(self, line: str) -> None:
        """Keep one line; lines of the log are ASCII. One that is larger than the ring is not kept."""
        if len(line) > self._max_bytes:
            return
        with self._lock:
            self._lines.append(line)
            self._bytes += len(line)
            while len(self._lines) > self._max_lines or self._bytes > self._max_bytes:
                self._bytes -= len(self._lines.popleft())

    def lines(self, last: int | None = None) -> Sequence[str]:
        """Oldest first: all, or the `last` ones."""
        with self._lock:
            kept = list(self._lines)
        return kept if last is None else kept[max(len(kept) - last, 0) :]
