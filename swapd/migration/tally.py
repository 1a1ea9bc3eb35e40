"""What drains and moves came to, counted for metrics (H179, H180).

Outcomes are counted from their records: those of earlier runs when the service starts, each later one when
its record has become durable. So a crash between record and count loses nothing and counts nothing twice.
How long things took is counted since start, when a move is noted: at most once.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Final

from swapd.distribution import Distribution
from swapd.migration.drains import DRAIN_TRANSITIONS
from swapd.store.drains import count_drains
from swapd.store.moves import count_moves
from swapd.views import SessionOutcome

PHASES: Final = ("precopy", "freeze", "prepare", "commit", "activate", "first_token")
"""The parts of a move that take time. From `freeze` to `first_token` its client waits."""
PHASE_BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PAUSE_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
CLEAR_BOUNDS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
FINAL_STATES: Final = tuple(state for state, after in DRAIN_TRANSITIONS.items() if not after)

_MARKS: Final = (
    ("freeze", "frozen"),
    ("prepare", "prepared"),
    ("commit", "committed"),
    ("activate", "activated"),
    ("first_token", "first_token"),
)
"""Phase and the moment at which it ends, in the order of a move."""


class Tally:
    """Counts of one supervisor."""

    def __init__(self) -> None:
        self.moves: Counter[str] = Counter()
        """Finished moves by outcome."""
        self.drains: Counter[str] = Counter()
        """Drains that are over, by state."""
        self.reused_tokens = 0
        self.recomputed_tokens = 0
        self.pause_s = Distribution(PAUSE_BOUNDS_S)
        self.clear_s = Distribution(CLEAR_BOUNDS_S)
        self.phases_s = {phase: Distribution(PHASE_BOUNDS_S) for phase in PHASES}

    def load(self, db: sqlite3.Connection) -> None:
        """Take over what earlier runs recorded. Called once, before anything new is recorded."""
        self.moves.update(count_moves(db))
        self.drains.update({s: n for s, n in count_drains(db).items() if s in FINAL_STATES})

    def move_recorded(self, outcome: str) -> None:
        """A finished move has become durable."""
        self.moves[outcome] += 1

    def drain_recorded(self, state: str) -> None:
        """A drain's state has become durable; only what is over counts."""
        if state in FINAL_STATES:
            self.drains[state] += 1

    def cleared(self, seconds: float) -> None:
        """Nothing of a drain's sessions is left on its worker's device (B17)."""
        self.clear_s.add(seconds)

    def took(self, result: SessionOutcome, reused_tokens: int) -> None:
        """A move is over: how long its parts took, and what the target did not have to compute."""
        self.reused_tokens += reused_tokens
        self.recomputed_tokens += result.recomputed_tokens or 0
        if result.frozen_ms is not None:
            self.pause_s.add(result.frozen_ms / 1000)
        if result.copy_started_at is not None and result.copy_ended_at is not None:
            self.phases_s["precopy"].add(result.copy_ended_at - result.copy_started_at)
        since_ms = 0.0
        for phase, mark in _MARKS:
            at_ms = result.timings_ms.get(mark)
            if at_ms is None:
                return
            # Moments of two processes may come in the other order; a part takes no less than nothing.
            self.phases_s[phase].add(max(at_ms - since_ms, 0.0) / 1000)
            since_ms = at_ms
