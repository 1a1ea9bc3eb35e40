"""What was done with lent devices, in buckets of five minutes, kept for a month.

Tokens are counted by difference: a session's row says how many of its accepted tokens are in the buckets
already, and both change in one transaction. So no crash loses a token or counts one twice, and appending
tokens costs nothing more. Moves and give-backs have records of their own, which are read when somebody asks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from swapd.messages.generation import PARK

BUCKET_S: Final = 300.0
ACTIVITY_KEPT_S: Final = 31 * 86_400.0

What = Literal["tokens", "lent_s", "engaged"]


class Recorded(NamedTuple):
    """Sums since a time. `first_at` is when recording began; None: nothing was recorded yet."""

    first_at: float | None
    tokens: int
    lent_s: Mapping[str, float]
    """By device."""
    engaged: Mapping[str, int]
    """How often pressure engaged, by device."""
    given_back: Mapping[str, Mapping[str, int]]
    """Give-backs by device and the reason that began them."""
    moves: Mapping[str, int]
    """Finished moves by outcome."""
    longest_pause_ms: float | None
    course: Sequence[tuple[float, float, int]]
    """Begin of a step, lent seconds of all devices together, tokens; steps of nothing are left out."""
    returned: int = 0
    """Of the moves that were completed, those out of the park."""


def bucket_of(at: float) -> int:
    """The begin of the bucket that a time falls into, in seconds since 1970."""
    return int(at // BUCKET_S * BUCKET_S)


def add_activity(db: sqlite3.Connection, at: float, what: What, value: float, device: str = "") -> None:
    """Add to the bucket of `at`; nothing is written for nothing."""
    if value:
        db.execute(
            "INSERT INTO activity (at, what, device, value) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (at, what, device) DO UPDATE SET value = value + excluded.value",
            (bucket_of(at), what, device, value),
        )


def count_tokens(db: sqlite3.Connection, now: float, ended_after: float, limit: int) -> int:
    """Take the accepted tokens of up to `limit` sessions into buckets; return how many sessions had any.

    Looked at are sessions that have not ended and those that ended after `ended_after`; tokens of an ended
    one belong to the time of its end.
    """
    rows = db.execute(
        "SELECT key, accepted - counted, NULL FROM sessions WHERE finished_at IS NULL AND accepted > counted"
        " UNION ALL SELECT key, accepted - counted, finished_at FROM sessions"
        " WHERE finished_at >= ? AND accepted > counted LIMIT ?",
        (ended_after, limit),
    ).fetchall()
    for _key, fresh, ended in rows:
        add_activity(db, now if ended is None else ended, "tokens", fresh)
    db.executemany("UPDATE sessions SET counted = accepted WHERE key = ?", ((row[0],) for row in rows))
    return len(rows)


def count_before_deletion(db: sqlite3.Connection, keys: Sequence[tuple[int]]) -> None:
    """Take into the buckets what is not there yet of sessions that are about to be deleted."""
    for (key,) in keys:
        row = db.execute(
            "SELECT accepted - counted, finished_at FROM sessions WHERE key = ?", (key,)
        ).fetchone()
        add_activity(db, row[1], "tokens", row[0])


def prune_activity(db: sqlite3.Connection, before: float) -> None:
    """Forget buckets that began before that time."""
    db.execute("DELETE FROM activity WHERE at < ?", (before,))


def recorded(db: sqlite3.Connection, since: float, devices: Sequence[str], step_s: float) -> Recorded:
    """Sum up what happened from `since`, the begin of a bucket, until now; `step_s`: of its course."""
    (first_at,) = db.execute("SELECT min(at) FROM activity").fetchone()
    sums: dict[str, dict[str, float]] = {"tokens": {}, "lent_s": {}, "engaged": {}}
    for what, device, value in db.execute(
        "SELECT what, device, sum(value) FROM activity WHERE at >= ? GROUP BY what, device", (since,)
    ):
        sums[what][device] = value
    moves: dict[str, int] = {}
    pauses: list[float] = []
    returned = 0
    for outcome, count, pause_ms, from_park in db.execute(
        "SELECT outcome, count(*), max(json_extract(stats, '$.frozen_ms')),"
        " count(*) FILTER (WHERE source_worker = ?) FROM moves WHERE finished_at >= ? GROUP BY outcome",
        (PARK, since),
    ):
        moves[outcome] = count
        returned += from_park if outcome == "completed_native" else 0
        if pause_ms is not None:
            pauses.append(pause_ms)
    return Recorded(
        first_at,
        int(sums["tokens"].get("", 0)),
        sums["lent_s"],
        {device: int(count) for device, count in sums["engaged"].items()},
        {device: _given_back(db, device, since) for device in devices},
        moves,
        max(pauses, default=None),
        _course(db, since, step_s),
        returned,
    )


def _course(db: sqlite3.Connection, since: float, step_s: float) -> list[tuple[float, float, int]]:
    rows = db.execute(
        "SELECT CAST((at - :since) / :step AS INTEGER) AS number,"
        " sum(value) FILTER (WHERE what = 'lent_s'), sum(value) FILTER (WHERE what = 'tokens')"
        " FROM activity WHERE at >= :since GROUP BY number ORDER BY number",
        {"since": since, "step": step_s},
    )
    return [
        (since + number * step_s, lent_s or 0.0, int(tokens or 0))
        for number, lent_s, tokens in rows
        if lent_s or tokens
    ]


def _given_back(db: sqlite3.Connection, device: str, since: float) -> dict[str, int]:
    return dict(
        db.execute(
            "SELECT json_extract(view, '$.why'), count(*) FROM give_backs"
            " WHERE device = ? AND began_at >= ? GROUP BY 1",
            (device, since),
        )
    )
