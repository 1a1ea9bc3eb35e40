"""What the clock on the owner's wall shows, with the rules by which that clock changes.

`datetime.now().astimezone()` knows only today's offset; quiet hours must know when clocks change next. The
machine's zone is read again when it is set anew (a laptop that travels), and no environment variable counts.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

SYSTEM_ZONE_PATH: Final = "/etc/localtime"

_Identity = tuple[int, int, int]


class LocalTime:
    """The machine's local time; UTC where no zone is set or its file cannot be read."""

    def __init__(self, path: str = SYSTEM_ZONE_PATH) -> None:
        self._path = path
        self._seen: _Identity | None = None
        self._zone: tzinfo = UTC

    def at(self, wall_s: float) -> datetime:
        """Local time with its zone at `wall_s`, seconds since 1970."""
        return datetime.fromtimestamp(wall_s, self._current())

    def _current(self) -> tzinfo:
        try:
            found = os.stat(self._path)
            identity = (found.st_dev, found.st_ino, found.st_mtime_ns)
            if identity != self._seen:
                with open(self._path, "rb") as file:
                    self._zone = ZoneInfo.from_file(file)
                self._seen = identity
        except (OSError, ValueError):
            self._seen, self._zone = None, UTC
        return self._zone
