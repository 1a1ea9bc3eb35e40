"""When an owner was last here. Pure.

A visit is a run of looks at the console with no `AWAY_S` between two of them. What happened "while you were
away" began when the visit before this one ended; so it stays the same while the owner goes from page to page.
"""

from __future__ import annotations

from typing import Final, NamedTuple

AWAY_S: Final = 1800.0


class Visits(NamedTuple):
    """The latest look, and the last look of the visit before. Seconds since 1970; None: there was none."""

    last: float | None = None
    before: float | None = None

    def look(self, now: float) -> Visits:
        """What is known after a look at `now`. A clock that was set back ends no visit."""
        if self.last is not None and now - self.last > AWAY_S:
            return Visits(now, self.last)
        return Visits(now, self.before)
