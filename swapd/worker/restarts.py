"""When a worker that ended is started again: with back-off, and so many times in a row (B32). Pure."""

from __future__ import annotations

from typing import Final

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0


class Restarts:
    """Short lives in a row; one of more than `BACKOFF_MAX_S` ends the row."""

    def __init__(self, allowed: int) -> None:
        self.in_a_row = 0
        self._allowed = allowed
        self._pause_s = BACKOFF_FIRST_S

    @property
    def given_up(self) -> bool:
        """Whether it is not started any more."""
        return self.in_a_row > self._allowed

    def lived(self, for_s: float) -> None:
        """A life is over; 0: it could not even begin."""
        self.in_a_row += 1
        if for_s > BACKOFF_MAX_S:
            self.forget()

    def forget(self) -> None:
        """Count from the beginning: it was stopped, which says nothing of how it lives."""
        self.in_a_row = 0
        self._pause_s = BACKOFF_FIRST_S

    def next_pause_s(self) -> float:
        """How long to wait before the next start; each time twice as long as before."""
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, BACKOFF_MAX_S)
        return pause_s
