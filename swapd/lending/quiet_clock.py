"""Quiet hours as they are now, by the clock on the owner's wall."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from swapd.config import OwnerConfig
from swapd.lending.local_time import LocalTime
from swapd.lending.quiet import parse_quiet, quiet_state
from swapd.lending.verdict import Quiet

LOOK_EVERY_S: Final = 5.0
"""Quiet hours begin and end by the minute."""


class QuietClock:
    """Call it for the state of quiet hours now; looked at every `LOOK_EVERY_S`, or when the clock jumps."""

    def __init__(self, owner: OwnerConfig, wall: Callable[[], float] = time.time) -> None:
        self._rules = [parse_quiet(entry) for entry in owner.quiet_hours]
        self._lead_s = owner.quiet_lead_s
        self._wall = wall
        self._local = LocalTime()
        self._looked_at = float("-inf")
        self._now = Quiet()

    def __call__(self) -> Quiet:
        now = self._wall()
        if self._rules and not 0 <= now - self._looked_at < LOOK_EVERY_S:
            self._looked_at = now
            state = quiet_state(self._rules, self._local.at(now), self._lead_s)
            ends_at = None if state.ends_at is None else state.ends_at.timestamp()
            self._now = Quiet(state.active, state.begins_in_s, ends_at)
        return self._now
