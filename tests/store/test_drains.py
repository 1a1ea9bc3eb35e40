"""The rows of drains, and the generation of the coordinator (H54, H65)."""

from __future__ import annotations

import sqlite3

import msgspec

from swapd.migration.records import drain_view
from swapd.sessions.record import DrainRecord
from swapd.store.drains import load_drain, open_drains, recent_drains, save_drain
from swapd.store.meta import next_generation
from swapd.views import Asker, SessionOutcome

DRAIN = DrainRecord("d1", "gpu0", "running", "operator", 600.0, 10.0, None, ())
OUTCOMES = (
    SessionOutcome("a", "completed_native", None, "finished", target="gpu1", frozen_ms=9.0),
    SessionOutcome("b", "blocked", "no_target", "planned"),
)


def test_a_drain_is_read_as_it_was_last_saved(db: sqlite3.Connection) -> None:
    """H54, H65"""
    save_drain(db, DRAIN)
    assert load_drain(db, "d1") == DRAIN
    ended = msgspec.structs.replace(DRAIN, state="drained", finished_at=20.0, sessions=OUTCOMES)
    save_drain(db, ended)
    assert load_drain(db, "d1") == ended
    assert load_drain(db, "nobody") is None


def test_who_asked_and_when_it_was_clear_are_kept(db: sqlite3.Connection) -> None:
    """B16, B17: also what becomes known later."""
    asked = (Asker("operator", 10.0, "a new driver"),)
    save_drain(db, msgspec.structs.replace(DRAIN, askers=asked))
    joined = msgspec.structs.replace(
        DRAIN, origin="take_back_now", askers=(*asked, Asker("take_back_now", 12.0)), time_to_clear_s=3.25
    )
    assert not save_drain(db, joined), "its state is no other one"
    assert load_drain(db, "d1") == joined


def test_a_drain_of_before_there_were_askers_says_who_asked(db: sqlite3.Connection) -> None:
    """B16"""
    save_drain(db, msgspec.structs.replace(DRAIN, origin="owner_pressure"))
    db.execute("UPDATE drains SET askers = '[]'")
    record = load_drain(db, "d1")
    assert record is not None
    assert drain_view(record).askers == (Asker("owner_pressure", 10.0),)


def test_running_and_blocked_drains_are_open_after_a_restart(db: sqlite3.Connection) -> None:
    """H65: a blocked drain keeps its worker closed until it is cancelled."""
    for n, state in enumerate(("running", "drained", "blocked", "cancelled")):
        save_drain(db, msgspec.structs.replace(DRAIN, id=f"d{n}", state=state))
    assert [d.id for d in open_drains(db)] == ["d0", "d2"]
    assert [d.id for d in recent_drains(db, 3)] == ["d3", "d2", "d1"]


def test_each_start_has_a_larger_generation(db: sqlite3.Connection) -> None:
    assert [next_generation(db) for _ in range(3)] == [1, 2, 3]
