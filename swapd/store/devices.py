"""What is durable of lent devices: take-backs, give-backs, events, and six hours of readings (R128)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from swapd.device_views import DeviceEvent, GiveBackView, SamplePoint, TakenBack, TrendPoint
from swapd.store.activity import add_activity

SAMPLES_KEPT_S: Final = 6 * 3600.0
EVENTS_KEPT: Final = 1000
"""A device, newest first."""


def save_take_back(db: sqlite3.Connection, device: str, taken: TakenBack | None) -> None:
    """Write a take-back, or that there is none any more."""
    if taken is None:
        db.execute("DELETE FROM take_backs WHERE device = ?", (device,))
        return
    db.execute(
        "INSERT INTO take_backs (device, since, until, ends_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (device) DO UPDATE SET since = excluded.since, until = excluded.until,"
        " ends_at = excluded.ends_at",
        (device, taken.since, taken.until, taken.ends_at),
    )


def load_take_backs(db: sqlite3.Connection) -> dict[str, TakenBack]:
    """All take-backs in force, by device."""
    rows = db.execute("SELECT device, since, until, ends_at FROM take_backs")
    return {device: TakenBack(since, until, ends_at) for device, since, until, ends_at in rows}


def save_give_back(db: sqlite3.Connection, device: str, view: GiveBackView) -> None:
    """Write one give-back; the same one (by `began_at`) again replaces it."""
    db.execute(
        "INSERT INTO give_backs (device, began_at, view) VALUES (?, ?, ?)"
        " ON CONFLICT (device, began_at) DO UPDATE SET view = excluded.view",
        (device, view.began_at, msgspec.json.encode(view).decode()),
    )


def last_give_back(db: sqlite3.Connection, device: str) -> GiveBackView | None:
    """The newest give-back of a device."""
    row = db.execute(
        "SELECT view FROM give_backs WHERE device = ? ORDER BY began_at DESC LIMIT 1", (device,)
    ).fetchone()
    return None if row is None else msgspec.json.decode(row[0], type=GiveBackView)


def add_device_event(db: sqlite3.Connection, event: DeviceEvent) -> None:
    """Append one event and forget those of the device that are beyond `EVENTS_KEPT`.

    How often pressure engaged outlives the events: it is counted here, in the same transaction.
    """
    if event.kind == "engaged":
        add_activity(db, event.at, "engaged", 1, event.device)
    db.execute(
        "INSERT INTO device_events (device, at, kind, why, seconds) VALUES (?, ?, ?, ?, ?)",
        (event.device, event.at, event.kind, event.why, event.seconds),
    )
    db.execute(
        "DELETE FROM device_events WHERE device = ? AND key <= ("
        " SELECT key FROM device_events WHERE device = ? ORDER BY key DESC LIMIT 1 OFFSET ?)",
        (event.device, event.device, EVENTS_KEPT),
    )


def device_events(db: sqlite3.Connection, device: str, limit: int) -> Sequence[DeviceEvent]:
    """Newest first."""
    rows = db.execute(
        "SELECT at, device, kind, why, seconds FROM device_events WHERE device = ? ORDER BY key DESC LIMIT ?",
        (device, limit),
    )
    return [DeviceEvent(*row) for row in rows]


def add_samples(db: sqlite3.Connection, samples: Iterable[tuple[str, SamplePoint]]) -> None:
    """Append readings, each with its device's name."""
    db.executemany(
        "INSERT INTO samples (device, at, result, attendance, reading_pct, threshold_pct, engaged)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            (device, s.at, s.result, s.attendance, s.reading_pct, s.threshold_pct, int(s.engaged))
            for device, s in samples
        ),
    )


def prune_samples(db: sqlite3.Connection, before: float) -> None:
    """Forget readings that are older (R128)."""
    db.execute("DELETE FROM samples WHERE at < ?", (before,))


def samples(
    db: sqlite3.Connection, device: str, since: float, newest: int | None = None
) -> Sequence[SamplePoint]:
    """Oldest first; with `newest` at most so many, the newest ones."""
    rows = db.execute(
        "SELECT at, result, attendance, reading_pct, threshold_pct, engaged FROM ("
        " SELECT * FROM samples WHERE device = ? AND at >= ? ORDER BY at DESC LIMIT ?) ORDER BY at",
        (device, since, -1 if newest is None else newest),
    )
    return [SamplePoint(at, result, who, value, line, bool(on)) for at, result, who, value, line, on in rows]


def trend(
    db: sqlite3.Connection, device: str, first: int, points: int, step_s: float
) -> Sequence[TrendPoint]:
    """`points` stretches of `step_s` seconds each, the first beginning at `first * step_s`."""
    rows = db.execute(
        "SELECT CAST(at / ? AS INTEGER), reading_pct, threshold_pct, engaged FROM samples"
        " WHERE device = ? AND at >= ? ORDER BY at",
        (step_s, device, first * step_s),
    )
    found: dict[int, TrendPoint] = {}
    for stretch, load_pct, threshold_pct, engaged in rows:
        before = found.get(stretch)
        if before is not None:
            load_pct = max((p for p in (load_pct, before.load_pct) if p is not None), default=None)
            threshold_pct = before.threshold_pct if threshold_pct is None else threshold_pct
            engaged = engaged or before.engaged
        found[stretch] = TrendPoint(stretch * step_s, load_pct, threshold_pct, bool(engaged))
    return [
        found.get(stretch) or TrendPoint(stretch * step_s, None, None, False)
        for stretch in range(first, first + points)
    ]
