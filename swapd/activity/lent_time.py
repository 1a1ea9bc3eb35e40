"""For how long devices were lent, from looks at their states. Pure."""

from __future__ import annotations

from collections.abc import Mapping


class LentTime:
    """Counts the time between two looks that both found a device lent.

    Times are of a clock that stands still while the machine sleeps: then it lends nothing.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._lent_s: dict[str, float] = {}

    def look(self, device: str, now: float, *, is_lent: bool) -> None:
        """A device was looked at."""
        since = self._since.pop(device, None)
        if is_lent:
            if since is not None:
                self._lent_s[device] = self._lent_s.get(device, 0.0) + max(now - since, 0.0)
            self._since[device] = now

    def take(self) -> Mapping[str, float]:
        """Hand out what was counted since the last call, in seconds by device."""
        taken, self._lent_s = self._lent_s, {}
        return taken
