"""Quiet hours by the clock on the owner's wall: the machine's own time zone, and what it says now."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from swapd.config import OwnerConfig
from swapd.lending.quiet import parse_quiet, quiet_state
from swapd.lending.verdict import Quiet

LOOK_EVERY_S: Final = 5.0
"""Quiet hours begin and end by the minute."""
ZONE_FILE: Final = Path("/etc/localtime")


def local_zone() -> tzinfo:
    """The zone of the machine, with its changes of the clock; at worst the offset of this moment."""
    try:
        if name := os.environ.get("TZ", "").removeprefix(":"):
            return ZoneInfo(name)
        with ZONE_FILE.open("rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError, ZoneInfoNotFoundError):
        zone = datetime.now().astimezone().tzinfo
        assert zone is not None
        return zone


class QuietClock:
    """Call it for the state of quiet hours now; looked at every `LOOK_EVERY_S`, or when the clock jumps."""

    def __init__(self, owner: OwnerConfig, wall: Callable[[], float] = time.time) -> None:
        self._rules = [parse_quiet(entry) for entry in owner.quiet_hours]
        self._lead_s = owner.quiet_lead_s
        self._wall = wall
        self._looked_at = float("-inf")
        self._now = Quiet()

    def __call__(self) -> Quiet:
        now = self._wall()
        if self._rules and not 0 <= now - self._looked_at < LOOK_EVERY_S:
            self._looked_at = now
            state = quiet_state(self._rules, datetime.fromtimestamp(now, local_zone()), self._lead_s)
            ends_at = None if state.ends_at is None else state.ends_at.timestamp()
            self._now = Quiet(state.active, state.begins_in_s, ends_at)
        return self._now
