"""Single numbers about the store as a whole."""

from __future__ import annotations

import sqlite3
from typing import Final

from swapd.activity.visits import Visits
from swapd.views import Switch


def next_generation(db: sqlite3.Connection) -> int:
    """Return this start's coordinator generation: larger than that of any start before, so that workers
    can tell the new coordinator from a late message of the old one."""
    rows: list[tuple[int]] = db.execute(
        "INSERT INTO meta (name, value) VALUES ('generation', 1)"
        " ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value"
    ).fetchall()
    return rows[0][0]


_OFF_SINCE: Final = "off_since."


def off_switches(db: sqlite3.Connection) -> dict[Switch, float]:
    """The switches that are off, and since when (seconds since 1970)."""
    rows: list[tuple[str, int]] = db.execute(
        "SELECT name, value FROM meta WHERE name IN ('off_since.admission', 'off_since.migration')"
    ).fetchall()
    known: tuple[Switch, ...] = ("admission", "migration")
    found = {name.removeprefix(_OFF_SINCE): float(value) for name, value in rows}
    return {switch: found[switch] for switch in known if switch in found}


def set_switch(db: sqlite3.Connection, switch: Switch, off_since: float | None) -> None:
    """Write that a switch is off, or (None) that it is on."""
    name = f"{_OFF_SINCE}{switch}"
    if off_since is None:
        db.execute("DELETE FROM meta WHERE name = ?", (name,))
        return
    db.execute(
        "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING", (name, int(off_since))
    )


def load_visits(db: sqlite3.Connection) -> Visits:
    """Those of the last save."""
    rows: list[tuple[str, int]] = db.execute(
        "SELECT name, value FROM meta WHERE name IN ('visit.last', 'visit.before')"
    ).fetchall()
    found = {name.removeprefix("visit."): float(value) for name, value in rows}
    return Visits(**found)


def save_visits(db: sqlite3.Connection, visits: Visits) -> None:
    """Write what is known of them, to the second."""
    db.executemany(
        "INSERT INTO meta (name, value) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        ((f"visit.{name}", int(at)) for name, at in visits._asdict().items() if at is not None),
    )
