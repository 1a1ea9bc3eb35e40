"""For how long every reading's decision is logged (R129): a time that ends by itself, or always.

It is of this run alone: a restart ends it, so that nobody's log fills up because of a day long ago.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from swapd.errors import Code, SwapdError

MAX_WINDOW_S: Final = 3600.0


class DebugWindow:
    """`clock` must not go back. `by_configuration`: `owner.debug_decisions` keeps it open."""

    def __init__(self, clock: Callable[[], float], *, by_configuration: bool = False) -> None:
        self.by_configuration: Final = by_configuration
        self._clock = clock
        self._until = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether decisions are logged now."""
        return self.by_configuration or self._clock() < self._until

    @property
    def left_s(self) -> float:
        """How long it is still open by somebody's word; 0.0 when it is not."""
        return max(self._until - self._clock(), 0.0)

    def open_for(self, seconds: float) -> None:
        """Open it for that long from now, instead of what was said before; 0 ends it.

        Raises `invalid_request` outside 0 to `MAX_WINDOW_S`.
        """
        if not 0.0 <= seconds <= MAX_WINDOW_S:
            raise SwapdError(
                Code.INVALID_REQUEST, f"decisions are logged for 0 to {MAX_WINDOW_S:.0f} seconds"
            )
        self._until = self._clock() + seconds
