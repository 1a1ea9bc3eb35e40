"""How long attendance waits for what; tests wait less."""

from __future__ import annotations

from typing import NamedTuple


class Timings(NamedTuple):
    """All in seconds."""

    poll_s: float = 30.0
    """How often everything is read again without a hint: a lost signal costs at most this."""
    call_s: float = 5.0
    """After this long without an answer, nothing is known any more."""
    coalesce_s: float = 0.05
    """From a hint to reading again."""
    backoff_first_s: float = 0.5
    backoff_max_s: float = 10.0
