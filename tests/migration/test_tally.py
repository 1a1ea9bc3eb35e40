"""What drains and moves came to: counted once, and only what is over (H180)."""

from __future__ import annotations

from typing import Any

from swapd.distribution import Distribution
from swapd.migration.tally import PHASES, Tally
from swapd.views import SessionOutcome

MARKS = {"frozen": 10.0, "prepared": 14.0, "committed": 15.0, "activated": 18.0, "first_token": 30.0}


def moved(**changes: Any) -> SessionOutcome:
    fields: dict[str, Any] = {
        "session": "s",
        "outcome": "completed_native",
        "reason": None,
        "phase": "released",
        "frozen_ms": 30.0,
        "copy_started_at": 100.0,
        "copy_ended_at": 102.0,
        "timings_ms": MARKS,
    }
    return SessionOutcome(**(fields | changes))


def test_the_parts_of_a_pause_add_up_to_it() -> None:
    """H179"""
    tally = Tally()
    tally.took(moved(recomputed_tokens=2), 400)
    taken = {phase: round(tally.phases_s[phase].spread().total * 1000, 6) for phase in PHASES}
    assert taken == {
        "precopy": 2000.0,
        "freeze": 10.0,
        "prepare": 4.0,
        "commit": 1.0,
        "activate": 3.0,
        "first_token": 12.0,
    }
    assert tally.pause_s.spread().total == 0.03
    assert (tally.reused_tokens, tally.recomputed_tokens) == (400, 2)


def test_a_move_that_ended_early_has_only_the_parts_that_it_reached() -> None:
    tally = Tally()
    tally.took(moved(timings_ms={"frozen": 10.0}, frozen_ms=None, copy_ended_at=None), 0)
    assert [phase for phase in PHASES if sum(tally.phases_s[phase].spread().counts)] == ["freeze"]
    assert sum(tally.pause_s.spread().counts) == 0


def test_a_token_that_comes_before_the_answer_takes_no_negative_time() -> None:
    tally = Tally()
    tally.took(moved(timings_ms=MARKS | {"first_token": 17.0}), 0)
    assert tally.phases_s["first_token"].spread().total == 0.0


def test_a_drain_counts_when_it_is_over() -> None:
    """H180: a blocked one may still become drained."""
    tally = Tally()
    for state in ("running", "blocked", "drained", "cancelled"):
        tally.drain_recorded(state)
    assert tally.drains == {"drained": 1, "cancelled": 1}


def test_a_value_belongs_to_the_first_bound_that_it_does_not_exceed() -> None:
    taken = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        taken.add(value)
    assert taken.spread() == ((1.0, 2.0), (2, 2, 1), 8.0)
