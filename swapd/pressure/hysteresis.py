"""When pressure engages and when it lets go (R5-R7, D2, D33). Pure.

Time counts between valid readings only: a reading that failed neither adds to a spell nor ends it, unless the
gap grows over the limit.
"""

from __future__ import annotations

from swapd.config import PressureConfig
from swapd.pressure.bounds import gap_limit_s, interval_s, release_line_pct


class Hysteresis:
    """One device's spell at or above the threshold, or below the release line while engaged."""

    def __init__(self, config: PressureConfig) -> None:
        self._config = config
        self._gap_limit_s = gap_limit_s(config)
        self.engaged = False
        self._spell_s = 0.0
        self._since_s: float | None = None
        """When the spell began; None outside of one."""
        self._last_s: float | None = None

    def observe(self, t_s: float, value_pct: float, threshold_pct: float) -> None:
        """Take a valid reading in, with the threshold in force after it was learned (R51, D10)."""
        if self._last_s is not None and not 0.0 <= interval_s(self._last_s, t_s) <= self._gap_limit_s:
            self._since_s = None
        self._last_s = t_s
        if self.engaged:
            counts = value_pct < release_line_pct(self._config, threshold_pct)
            needed_s = self._config.release_s
        else:
            counts = value_pct >= threshold_pct
            needed_s = self._config.sustain_s
        if not counts:
            self._end_spell()
            return
        if self._since_s is None:
            self._since_s = t_s
        self._spell_s = interval_s(self._since_s, t_s)
        if self._spell_s >= needed_s:
            self.engaged = not self.engaged
            self._end_spell()

    def _end_spell(self) -> None:
        self._since_s, self._spell_s = None, 0.0

    @property
    def above_s(self) -> float:
        """For how long readings have been at or above the threshold; 0 while engaged."""
        return 0.0 if self.engaged else self._spell_s

    @property
    def below_s(self) -> float:
        """For how long readings have been below the release line; 0 while not engaged."""
        return self._spell_s if self.engaged else 0.0
