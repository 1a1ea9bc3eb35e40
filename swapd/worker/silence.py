"""How long a worker has been silent, as far as anybody could have heard it. Pure: the time is passed in.

While the coordinator does not run (it was stopped, or the whole machine stood still), what its workers say
waits in their sockets. That time is no silence of theirs: whoever looks at the clock before the sockets would
end workers that are well. A look that comes late tells that it was such a time.
"""

from __future__ import annotations


class Silence:
    """Looked at every `look_every_s`, which is also how often the worker says something."""

    def __init__(self, look_every_s: float, now: float) -> None:
        self._look_every_s = look_every_s
        self._since = now
        self._due = now + look_every_s

    def heard(self, now: float) -> None:
        """The worker said something."""
        self._since = now

    def look(self, now: float) -> float:
        """For how many seconds nothing was heard, less those in which nobody listened."""
        late_s = now - self._due
        if late_s > self._look_every_s:
            self._since = min(self._since + late_s, now)
        self._due = now + self._look_every_s
        return now - self._since
