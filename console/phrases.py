"""Numbers and times as people read them, each with its unit. Pure but for the local time zone."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

_BYTES: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def clock(at: float, now: float | None = None) -> str:
    """A moment (seconds since 1970) in local time: `14:03`, with the day when that is not today."""
    when = datetime.fromtimestamp(at)
    today = datetime.fromtimestamp(time.time() if now is None else now).date()
    days = (today - when.date()).days
    if days == 0:
        return when.strftime("%H:%M")
    if -7 < days < 7:
        return when.strftime("%a %H:%M")
    return when.strftime("%d %b %Y")


def iso(at: float) -> str:
    """A moment for `<time datetime>`, with its offset."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")


def duration(seconds: float) -> str:
    """A span in the unit that fits: `40 ms`, `2.1 s`, `45 s`, `12 min`, `3 h 20 min`, `5 days`."""
    seconds = max(seconds, 0.0)
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 10 and minutes:
        return f"{hours} h {minutes} min"
    if hours < 96:
        return f"{round(seconds / 3600)} h"
    return f"{seconds / 86400:.0f} days"


def pause(milliseconds: float) -> str:
    """How long somebody waited, which is told in milliseconds up to a second: `48 ms`, `180 ms`, `1.2 s`."""
    return f"{milliseconds:.0f} ms" if milliseconds < 999.5 else duration(milliseconds / 1000)


def size(count: float) -> str:
    """Bytes with a binary unit: `512 B`, `1.5 GiB`."""
    for unit in _BYTES[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_BYTES[-1]}"


def percent(value: float) -> str:
    """A share as `/status` and the rules write it: `34%` (R50, D9)."""
    return f"{value:.0f}%"


def count(number: float) -> str:
    """A whole number with thousands apart: `41,000`."""
    return f"{number:,.0f}"


def plural(number: float, one: str, many: str | None = None) -> str:
    """`1 session`, `3 sessions`."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"
