"""Quiet hours: nothing is lent at the times that the owner wrote down, by the clock on the wall."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swapd.lending.quiet import (
    DAY_NAMES,
    QuietHoursError,
    QuietRule,
    QuietState,
    always_quiet,
    parse_quiet,
    quiet_state,
)
from tests.lending import zones

BERLIN = zones.zone(zones.BERLIN)


def at(text: str, zone: tzinfo = BERLIN, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def ask(entries: list[str], now: datetime, lead_s: float = 0.0) -> QuietState:
    return quiet_state([parse_quiet(entry) for entry in entries], now, lead_s)


def end_of(state: QuietState) -> str:
    assert state.active
    assert state.ends_at is not None
    return state.ends_at.strftime("%a %H:%M %z")


@pytest.mark.parametrize(
    ("entry", "days", "begin_min", "end_min"),
    [
        ("22:00-07:00", range(7), 22 * 60, 31 * 60),
        ("Mon-Fri 09:00-17:30", range(5), 9 * 60, 17 * 60 + 30),
        ("Sat,Sun 00:00-24:00", (5, 6), 0, 24 * 60),
        ("fri-mon 8:05-8:06", (4, 5, 6, 0), 8 * 60 + 5, 8 * 60 + 6),
        ("Mon, Wed , Sat-Sun 20:00 - 00:00", (0, 2, 5, 6), 20 * 60, 24 * 60),
        ("  SUN   23:59-23:58 ", (6,), 24 * 60 - 1, 48 * 60 - 2),
        ("Mon-Mon 01:00-02:00", (0,), 60, 120),
    ],
)
def test_an_entry_is_read(entry: str, days: range, begin_min: int, end_min: int) -> None:
    assert parse_quiet(entry) == QuietRule(frozenset(days), begin_min, end_min)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("", "'' is no time span"),
        ("at night", "'at night' is no time span"),
        ("22:00", "'22:00' is no time span"),
        ("Mon-Fri", "'Mon' in 'Mon-Fri' is no time of day"),
        ("22-7", "'22' in '22-7' is no time of day"),
        ("25:00-26:00", "'25:00' in '25:00-26:00' is no time of day; write 00:00 to 24:00"),
        ("10:60-11:00", "'10:60' in '10:60-11:00' is no time of day"),
        ("10:00-24:01", "'24:01' in '10:00-24:01' is no time of day"),
        ("10:00-1\uff11:00", "is no time of day"),
        ("24:00-01:00", "cannot begin at 24:00; write 00:00 and the next day"),
        ("10:00-10:00", "'10:00-10:00' begins when it ends; a whole day is 00:00-24:00"),
        ("Mo 10:00-11:00", "'mo' in 'Mo 10:00-11:00' is no day; days are Mon, Tue"),
        ("Mon- 10:00-11:00", "'' in 'Mon- 10:00-11:00' is no day"),
        ("Mon,,Tue 10:00-11:00", "'' in 'Mon,,Tue 10:00-11:00' is no day"),
        ("Mon-Wed-Fri 10:00-11:00", "'wed-fri' in 'Mon-Wed-Fri 10:00-11:00' is no day"),
        ("10:00-11:00,12:00-13:00", "is no time of day"),
    ],
)
def test_an_entry_that_means_nothing_is_a_sentence(entry: str, said: str) -> None:
    with pytest.raises(QuietHoursError) as caught:
        parse_quiet(entry)
    assert said in str(caught.value)


def test_without_rules_it_is_never_quiet() -> None:
    assert ask([], at("2026-11-27 23:00")) == QuietState(False, None, None)
    assert not quiet_state([parse_quiet("22:00-07:00")], at("2026-11-27 21:59:59")).active  # no lead


def test_a_span_over_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    entry = ["Fri 22:00-07:00"]
    assert not ask(entry, at("2026-11-27 06:59")).active  # a Friday morning
    assert ask(entry, at("2026-11-27 21:59:30")).begins_in_s == 30.0
    for moment in ("2026-11-27 22:00", "2026-11-28 00:00", "2026-11-28 06:59:59"):
        state = ask(entry, at(moment))
        assert end_of(state) == "Sat 07:00 +0100"
        assert state.begins_in_s is None
    assert not ask(entry, at("2026-11-28 07:00")).active
    assert not ask(entry, at("2026-11-28 23:00")).active


def test_spans_that_adjoin_or_overlap_are_one() -> None:
    entries = ["22:00-07:00", "Mon-Fri 07:00-08:00", "Sat,Sun 00:00-24:00", "Sat 06:00-09:00"]
    assert end_of(ask(entries, at("2026-11-26 23:00"))) == "Fri 08:00 +0100"
    assert end_of(ask(entries, at("2026-11-27 22:00"))) == "Mon 08:00 +0100"


def test_a_device_is_given_back_ahead_of_time() -> None:
    entry = ["22:00-07:00"]
    assert ask(entry, at("2026-11-27 21:58:59"), 60.0) == QuietState(False, 61.0, None)
    early = ask(entry, at("2026-11-27 21:59:00"), 60.0)
    assert early.active
    assert early.begins_in_s == 60.0
    assert end_of(early) == "Sat 07:00 +0100"
    assert ask(entry, at("2026-11-28 07:00"), 60.0).begins_in_s == 15 * 3600.0


def test_a_pause_shorter_than_the_lead_is_no_pause() -> None:
    entries = ["Fri 10:00-11:00", "Fri 11:05-12:00"]
    between = ask(entries, at("2026-11-27 11:01"), 300.0)
    assert between.begins_in_s == 240.0
    assert end_of(between) == "Fri 12:00 +0100"
    assert end_of(ask(entries, at("2026-11-27 10:30"), 300.0)) == "Fri 12:00 +0100"
    assert end_of(ask(entries, at("2026-11-27 10:30"), 299.0)) == "Fri 11:00 +0100"


def test_hours_that_are_always_quiet_have_no_end() -> None:
    assert ask(["00:00-24:00"], at("2026-03-20 12:00")) == QuietState(True, None, None)
    assert ask(["Mon-Sun 12:00-11:59"], at("2026-11-27 11:59:30"), 60.0) == QuietState(True, 30.0, None)
    assert always_quiet([parse_quiet("Mon-Fri 00:00-24:00"), parse_quiet("Fri-Sun 23:00-22:59")]) is False
    assert always_quiet([parse_quiet("Mon-Fri 00:00-24:00"), parse_quiet("Sat,Sun 00:00-24:00")]) is True
    assert always_quiet([]) is False


@pytest.mark.parametrize(
    ("entries", "always"),
    [
        (["00:00-24:00", "Sun 23:00-01:00"], True),
        # The first minute of Monday belongs to a span of Sunday's.
        (["Mon 00:01-24:00", "Tue-Sat 00:00-24:00", "Sun 00:00-00:02", "Sun 00:02-00:01"], True),
        (["Mon 00:01-24:00", "Tue-Sat 00:00-24:00", "Sun 00:00-00:02", "Sun 00:02-24:00"], False),
        (["Tue 12:00-11:59", "Wed-Mon 12:00-11:59", "Tue 11:59-12:00"], False),
        (["00:00-12:00", "12:00-23:59"], False),
    ],
)
def test_a_week_without_a_minute_left_is_seen(entries: list[str], always: bool) -> None:
    assert always_quiet([parse_quiet(entry) for entry in entries]) is always


def test_where_clocks_go_forward_the_missing_hour_is_no_hour() -> None:
    # On 29 March 2026 there is no 02:00 to 03:00 in Berlin.
    night = ask(["22:00-07:00"], at("2026-03-28 22:00"))
    assert end_of(night) == "Sun 07:00 +0200"
    assert night.ends_at is not None
    assert night.ends_at - at("2026-03-28 22:00").astimezone(UTC) == timedelta(hours=8)
    assert ask(["02:30-04:00"], at("2026-03-29 01:59")).begins_in_s == 60.0
    assert end_of(ask(["01:30-02:30"], at("2026-03-29 01:45"))) == "Sun 03:00 +0200"
    # A span that lies in it comes the next time the wall shows it.
    assert ask(["02:10-02:20"], at("2026-03-29 01:59")).begins_in_s == 60.0 + 23 * 3600 + 600
    assert ask(["Sun 02:10-02:20"], at("2026-03-29 01:00")).begins_in_s == (7 * 24 + 0) * 3600 + 600


def test_where_clocks_go_back_the_hour_that_comes_twice_is_quiet_twice() -> None:
    # On 25 October 2026 it is 02:00 to 03:00 twice.
    entry = ["02:15-02:45"]
    assert end_of(ask(entry, at("2026-10-25 02:30"))) == "Sun 02:45 +0200"
    assert ask(entry, at("2026-10-25 02:50")).begins_in_s == 25 * 60
    assert end_of(ask(entry, at("2026-10-25 02:30", fold=1))) == "Sun 02:45 +0100"
    assert ask(entry, at("2026-10-25 02:50", fold=1)).begins_in_s == 23 * 3600 + 25 * 60
    night = ask(["22:00-07:00"], at("2026-10-24 22:00"))
    assert night.ends_at is not None
    assert night.ends_at - at("2026-10-24 22:00").astimezone(UTC) == timedelta(hours=10)
    # Both begin before, and end after, the hour comes again.
    assert end_of(ask(["01:00-02:00", "02:00-03:00"], at("2026-10-25 01:30"))) == "Sun 03:00 +0100"


def test_a_day_without_midnight_begins_at_one() -> None:
    """Clocks that change at midnight: the rule of the whole day holds from its first moment on."""
    zone = zones.zone(zones.MIDNIGHT_JUMP)
    before = at("2026-03-26 23:59", zone)
    assert before.utcoffset() != (before + timedelta(days=1)).utcoffset()
    assert ask(["Fri 00:00-24:00"], before).begins_in_s == 60.0
    assert end_of(ask(["Fri 00:00-24:00"], at("2026-03-27 01:00", zone))) == "Sat 00:00 +0300"


def test_a_time_without_its_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="its zone"):
        ask(["22:00-07:00"], datetime(2026, 11, 27, 12))


def in_words(rule: QuietRule) -> str:
    days = ",".join(DAY_NAMES[day] for day in sorted(rule.days))
    end_min = rule.end_min if rule.end_min <= 24 * 60 else rule.end_min - 24 * 60
    clock = "{:02}:{:02}-{:02}:{:02}".format(*divmod(rule.begin_min, 60), *divmod(end_min, 60))
    return f"{days} {clock}"


def quiet_on_the_wall(rules: list[QuietRule], wall: datetime) -> bool:
    """The definition: the wall time lies in a span that began today or yesterday."""
    minute = wall.hour * 60 + wall.minute
    return any(
        (wall.weekday() in rule.days and rule.begin_min <= minute < rule.end_min)
        or ((wall.weekday() - 1) % 7 in rule.days and minute < rule.end_min - 24 * 60)
        for rule in rules
    )


def oracle(rules: list[QuietRule], now: datetime, lead_min: int, step_min: int) -> QuietState:
    """Walk through three weeks, step by step."""
    steps = 21 * 24 * 60 // step_min
    lead = lead_min // step_min
    moments = [now.astimezone(UTC) + timedelta(minutes=step_min * number) for number in range(steps + lead)]
    quiet = [quiet_on_the_wall(rules, moment.astimezone(now.tzinfo)) for moment in moments]
    first = next((number for number, on in enumerate(quiet[:steps]) if on), None)
    begins = None if first in (None, 0) else first * step_min * 60.0
    active = [any(quiet[number : number + lead + 1]) for number in range(steps)]
    if not active[0]:
        return QuietState(False, begins, None)
    end = next((number for number, on in enumerate(active) if not on), None)
    return QuietState(True, begins, None if end is None else moments[end].astimezone(now.tzinfo))


def rules_of(step_min: int) -> st.SearchStrategy[list[QuietRule]]:
    clock = st.integers(0, 24 * 60 // step_min - 1).map(lambda number: number * step_min)
    length = st.integers(1, 24 * 60 // step_min - 1).map(lambda number: number * step_min)
    days = st.frozensets(st.integers(0, 6), min_size=1)
    one = st.builds(lambda on, begin, long: QuietRule(on, begin, begin + long), days, clock, length)
    return st.lists(one, min_size=1, max_size=4)


zone_rules = st.sampled_from(
    [zones.BERLIN, zones.NEW_YORK, zones.LORD_HOWE, zones.KOLKATA, zones.MIDNIGHT_JUMP, "UTC0"]
)


def steps_into_2026(step_min: int) -> st.SearchStrategy[datetime]:
    return st.integers(0, 365 * 24 * 60 // step_min).map(
        lambda number: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=step_min * number)
    )


def agree(rules: list[QuietRule], now: datetime, lead_min: int, step_min: int) -> None:
    parsed = [parse_quiet(in_words(rule)) for rule in rules]
    assert parsed == rules
    expected = oracle(rules, now, lead_min, step_min)
    found = quiet_state(parsed, now, lead_min * 60.0)
    assert found[:2] == expected[:2]
    # Times of one zone compare by what the wall shows, which may show it twice.
    assert [each and each.astimezone(UTC) for each in (found.ends_at, expected.ends_at)] == [
        expected.ends_at and expected.ends_at.astimezone(UTC)
    ] * 2


@settings(deadline=None, max_examples=80)
@given(rules_of(15), zone_rules, steps_into_2026(15), st.integers(0, 8).map(lambda number: number * 15))
@example(
    [QuietRule(frozenset({6}), 135, 150)], zones.BERLIN, datetime(2026, 3, 22, 1, 30, tzinfo=UTC), 0
)  # left out once
def test_it_agrees_with_a_walk_through_the_weeks(
    rules: list[QuietRule], rule: str, moment: datetime, lead_min: int
) -> None:
    agree(rules, moment.astimezone(zones.zone(rule)), lead_min, 15)


@settings(deadline=None, max_examples=6)
@given(rules_of(1), zone_rules, steps_into_2026(1), st.integers(0, 90))
def test_it_agrees_with_a_walk_minute_by_minute(
    rules: list[QuietRule], rule: str, moment: datetime, lead_min: int
) -> None:
    agree(rules, moment.astimezone(zones.zone(rule)), lead_min, 1)


def test_zones_made_by_rule_are_zones() -> None:
    """The tests' zones change when those of the world do."""
    made = ZoneInfo.from_file(io.BytesIO(zones.zone_bytes(zones.BERLIN)))
    assert datetime(2026, 3, 29, 0, 59, 59, tzinfo=UTC).astimezone(made).hour == 1
    assert datetime(2026, 3, 29, 1, tzinfo=UTC).astimezone(made).hour == 3
