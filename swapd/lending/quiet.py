"""Quiet hours: at which times of the week nothing is lent, in the owner's local time. Pure.

A rule speaks of what the clock on the wall shows: it holds at every moment whose wall time lies in one of its
spans. So where clocks go forward the hour that is left out is left out of the rule as well, and where they go
back the hour that comes twice is quiet twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, NamedTuple

DAY_NAMES: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EVERY_DAY: Final = frozenset(range(7))
DAY_MIN: Final = 24 * 60

_ENTRY: Final = re.compile(r"(?:(?P<days>\S.*?)\s+)?(?P<begin>\S+?)\s*-\s*(?P<end>\S+)")
_CLOCK: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})")

_BACK_DAYS: Final = 3
"""A span is at most a day long and clocks change by less than one."""
_AHEAD_DAYS: Final = 16
"""Two weeks and more: a span that a change of the clocks leaves out once comes a week later."""
_ENDLESS: Final = timedelta(days=_AHEAD_DAYS - 2)
"""Hours that are quiet for two weeks on end are quiet for ever: every rule repeats by the week."""
_SEEK_STEP: Final = timedelta(hours=6)
"""Clocks do not change twice within this."""


class QuietRule(NamedTuple):
    """One entry of `owner.quiet_hours`. `days` (0 is Monday) are those on which a span begins.

    Minutes count from the day's midnight by the clock on the wall; `end_min` may lie in the next day.
    """

    days: frozenset[int]
    begin_min: int
    end_min: int


class QuietState(NamedTuple):
    """Whether it is quiet at one moment, the lead counted in."""

    active: bool
    """From `lead_s` before quiet hours begin until they end."""
    begins_in_s: float | None
    """Real seconds until quiet hours themselves begin; None while they last and where there are none."""
    ends_at: datetime | None
    """While active: the end, in the question's zone; spans that adjoin are one. None: they do not end."""


class QuietHoursError(ValueError):
    """An entry that cannot be read; its text is a sentence."""


def parse_quiet(entry: str) -> QuietRule:
    """Read one entry: `22:00-07:00`, `Mon-Fri 09:00-17:30`, `Sat,Sun 00:00-24:00`.

    Raises `QuietHoursError`.
    """
    match = _ENTRY.fullmatch(entry.strip())
    if match is None:
        raise QuietHoursError(f"'{entry}' is no time span; write 22:00-07:00 or Mon-Fri 09:00-17:30")
    begin = _minutes(match["begin"], entry)
    end = _minutes(match["end"], entry)
    if begin == DAY_MIN:
        raise QuietHoursError(f"'{entry}' cannot begin at 24:00; write 00:00 and the next day")
    if begin == end:
        raise QuietHoursError(f"'{entry}' begins when it ends; a whole day is 00:00-24:00")
    days = EVERY_DAY if match["days"] is None else frozenset(_days(match["days"], entry))
    return QuietRule(days, begin, end if end > begin else end + DAY_MIN)


def _minutes(text: str, entry: str) -> int:
    match = _CLOCK.fullmatch(text)
    if match is not None:
        hours, minutes = int(match[1]), int(match[2])
        if minutes < 60 and hours * 60 + minutes <= DAY_MIN:
            return hours * 60 + minutes
    raise QuietHoursError(f"'{text}' in '{entry}' is no time of day; write 00:00 to 24:00")


def _days(text: str, entry: str) -> Iterator[int]:
    for part in text.split(","):
        first, dash, last = (word.strip().lower() for word in part.partition("-"))
        for name in (first, last) if dash else (first,):
            if name not in DAY_NAMES:
                raise QuietHoursError(
                    f"'{name}' in '{entry}' is no day; days are Mon, Tue, Wed, Thu, Fri, Sat and Sun"
                )
        day = DAY_NAMES.index(first)
        yield day
        while dash and day != DAY_NAMES.index(last):
            day = (day + 1) % 7
            yield day


def quiet_state(rules: Sequence[QuietRule], now_local: datetime, lead_s: float = 0.0) -> QuietState:
    """Say whether nothing is lent at `now_local`, which carries its zone, and what comes next.

    With `lead_s` it is active that much earlier, so that a device given back then is free in time.
    """
    zone = now_local.tzinfo
    if zone is None:
        raise ValueError("quiet hours need a time with its zone")
    if not rules:
        return QuietState(False, None, None)
    now = now_local.astimezone(UTC)
    lead = timedelta(seconds=lead_s)
    spans = list(_merged(_spans(rules, now_local), timedelta(0)))
    begins_in_s = None
    for begin, end in spans:
        if end > now:
            begins_in_s = (begin - now).total_seconds() if begin > now else None
            break
    for begin, end in _merged(spans, lead):
        if begin - lead <= now < end:
            endless = end - now >= _ENDLESS
            return QuietState(True, begins_in_s, None if endless else end.astimezone(zone))
    return QuietState(False, begins_in_s, None)


def always_quiet(rules: Sequence[QuietRule]) -> bool:
    """Whether the rules leave no minute of the week."""
    quiet = {
        (day * DAY_MIN + minute) % (7 * DAY_MIN)
        for rule in rules
        for day in rule.days
        for minute in range(rule.begin_min, rule.end_min)
    }
    return len(quiet) == 7 * DAY_MIN


_Span = tuple[datetime, datetime]
"""From the first moment to before the second, in UTC."""


def _merged(spans: Iterable[_Span], gap: timedelta) -> Iterator[_Span]:
    """Join spans in order of their beginnings that overlap or are at most `gap` apart."""
    joined: _Span | None = None
    for begin, end in spans:
        if joined is not None and begin - joined[1] <= gap:
            joined = (joined[0], max(joined[1], end))
            continue
        if joined is not None:
            yield joined
        joined = (begin, end)
    if joined is not None:
        yield joined


def _spans(rules: Sequence[QuietRule], now_local: datetime) -> list[_Span]:
    """All spans from some days ago to some weeks ahead, in order of their beginnings."""
    first = now_local.date() - timedelta(days=_BACK_DAYS)
    on_the_wall = [
        (_wall(day, rule.begin_min), _wall(day, rule.end_min))
        for day in (first + timedelta(days=number) for number in range(_BACK_DAYS + _AHEAD_DAYS))
        for rule in rules
        if day.weekday() in rule.days
    ]
    found: list[_Span] = []
    for begin, end, offset in _steady(now_local):
        for wall_begin, wall_end in on_the_wall:
            clipped = (max(begin, wall_begin - offset), min(end, wall_end - offset))
            if clipped[0] < clipped[1]:
                found.append(clipped)
    return sorted(found)


def _wall(day: date, minute: int) -> datetime:
    """What the wall clock shows, written as if it were UTC: subtract the offset to get the moment."""
    return datetime.combine(day, time(), UTC) + timedelta(minutes=minute)


def _steady(now_local: datetime) -> Iterator[tuple[datetime, datetime, timedelta]]:
    """The stretches around a moment in which the zone's offset from UTC does not change."""
    now = now_local.astimezone(UTC)

    def offset(moment: datetime) -> timedelta:
        told = moment.astimezone(now_local.tzinfo).utcoffset()
        assert told is not None
        return told

    last = now + timedelta(days=_AHEAD_DAYS)
    begin = at = now - timedelta(days=_BACK_DAYS)
    while at < last:
        following = min(at + _SEEK_STEP, last)
        if offset(following) != offset(at):
            low, high = at, following
            while high - low > timedelta(microseconds=1):
                middle = low + (high - low) / 2
                low, high = (middle, high) if offset(middle) == offset(at) else (low, middle)
            yield begin, high, offset(at)
            begin = high
        at = following
    yield begin, last, offset(begin)
