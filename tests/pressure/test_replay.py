"""Recorded readings: what is taken, what is refused, and what comes out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from swapd.config import PressureConfig
from swapd.errors import Code, SwapdError
from swapd.pressure.reading import HINT_ABOVE_CAP
from swapd.pressure.replay import MAX_LINE_CHARS, ROW_FIELDS, Recorded, Totals, parse, replay, row

HEAD = "t_s,reading,attendance"
CONFIG = PressureConfig(warmup_samples=2, sustain_s=5)


def recorded(*lines: str) -> list[Recorded]:
    return list(parse([HEAD, *lines], "day.csv"))


def refused(*lines: str) -> str:
    with pytest.raises(SwapdError) as caught:
        list(parse(lines, "day.csv"))
    assert caught.value.code == Code.INVALID_REQUEST
    return caught.value.detail


def test_numbers_words_and_attendances_are_read() -> None:
    assert recorded(
        "0,3,unlocked",
        "5.5, 4.25 ,locked",
        '"10","100","unknown"',
        "1e3,0,locked",
        "-15,missing,locked",
        "20,failed,unknown",
        "25,invalid,unlocked",
    ) == [
        (0.0, 3.0, "unlocked"),
        (5.5, 4.25, "locked"),
        (10.0, 100.0, "unknown"),
        (1000.0, 0.0, "locked"),
        (-15.0, "missing", "locked"),
        (20.0, "failed", "unknown"),
        (25.0, "invalid", "unlocked"),
    ]


def test_blank_lines_and_either_line_end_are_taken() -> None:
    lines = [HEAD + "\r\n", "\n", "0,3,unlocked\r\n", "", "5,4,locked\n"]
    assert len(list(parse(lines, "day.csv"))) == 2
    assert recorded() == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("5,3", "2 cells where t_s,reading,attendance are needed"),
        ("5,3,locked,1", "4 cells where t_s,reading,attendance are needed"),
        ("x,3,locked", "t_s must be a number of seconds, not 'x'"),
        (",3,locked", "t_s must be a number of seconds, not ''"),
        ("nan,3,locked", "t_s must be a number of seconds, not 'nan'"),
        ("inf,3,locked", "t_s must be a number of seconds, not 'inf'"),
        ("1_0,3,locked", "t_s must be a number of seconds, not '1_0'"),
        ("5,3,away", "attendance must be locked, unlocked or unknown, not 'away'"),
        ("5,3,Locked", "attendance must be locked, unlocked or unknown, not 'Locked'"),
        ("5,3,", "attendance must be locked, unlocked or unknown, not ''"),
        ("5,100.01,locked", "reading must be 0 to 100, failed, invalid or missing, not '100.01'"),
        ("5,-0.01,locked", "reading must be 0 to 100, failed, invalid or missing, not '-0.01'"),
        ("5,nan,locked", "reading must be 0 to 100, failed, invalid or missing, not 'nan'"),
        ("5,lost,locked", "reading must be 0 to 100, failed, invalid or missing, not 'lost'"),
        ("5,,locked", "reading must be 0 to 100, failed, invalid or missing, not ''"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str, what: str) -> None:
    assert refused(HEAD, "0,3,locked", line) == f"day.csv line 3: {what}"


@pytest.mark.parametrize("head", ["", "0,3,locked", "t_s,reading", "reading,t_s,attendance", HEAD + ",x"])
def test_the_first_line_names_the_columns(head: str) -> None:
    expected = "day.csv line 1: the first line must be t_s,reading,attendance"
    assert refused(head, "0,3,locked") == expected
    assert refused() == expected


def test_what_is_shown_of_a_cell_is_bounded() -> None:
    assert refused(HEAD, f"5,{'x' * 41},locked").endswith("not '" + "x" * 39 + "…'")
    assert refused(HEAD, f"5,{'x' * 40},locked").endswith("not '" + "x" * 40 + "'")


def test_a_line_without_an_end_is_refused() -> None:
    padded = "5,3,locked".ljust(MAX_LINE_CHARS)
    assert recorded(padded) == [(5.0, 3.0, "locked")]
    assert refused(HEAD, padded + " ") == f"day.csv line 2: the line is over {MAX_LINE_CHARS} characters"


def test_a_quote_that_does_not_close_is_refused() -> None:
    assert refused(HEAD, "0,3,locked", '5,"3,locked').endswith("line 3: unexpected end of data")


def test_rows_come_while_lines_are_read() -> None:
    """Nothing is held: a row is there before the next line is asked for."""
    asked = 0

    def lines() -> Iterator[str]:
        nonlocal asked
        yield HEAD
        while True:
            asked += 1
            yield f"{asked},3,unlocked"

    rows = replay(parse(lines(), "endless"), CONFIG)
    for number in range(1, 4):
        assert next(rows).t_s == number
        assert asked == number


def test_a_row_has_eleven_fields_in_order() -> None:
    assert ROW_FIELDS == (
        "t_s",
        "profile",
        "credited_s",
        "baseline_pct",
        "target_pct",
        "threshold_pct",
        "calibrated",
        "engaged",
        "learned_samples",
        "learned_s",
        "hint",
    )
    steps = recorded("0,50,unlocked", "5,50,unlocked", "10,50,unlocked", "15,failed,unknown")
    rows = [row(decision) for decision in replay(steps, CONFIG)]
    assert [tuple(each) for each in rows] == [ROW_FIELDS] * 4
    assert [tuple(each.values()) for each in rows] == [
        (0.0, "unlocked", 0.0, None, None, None, False, False, 1, 0.0, None),
        (5.0, "unlocked", 5.0, 50.5, 40.0, 40.0, True, False, 2, 5.0, HINT_ABOVE_CAP),
        (10.0, "unlocked", 5.0, 50.5, 40.0, 40.0, True, True, 3, 10.0, HINT_ABOVE_CAP),
        (15.0, None, 0.0, None, None, None, False, True, 0, 0.0, None),
    ]


def test_a_headless_recording_has_one_profile() -> None:
    """D34."""
    steps = recorded("0,50,unknown", "5,50,locked")
    told = list(replay(steps, CONFIG, headless=True))
    assert [(each.profile, each.learned_samples) for each in told] == [("unlocked", 1), ("unlocked", 2)]
    assert [each.profile for each in replay(steps, CONFIG)] == [None, "locked"]


def test_totals_count_and_say_what_changed() -> None:
    totals = Totals()
    assert (totals.rows, totals.readings, totals.last) == (0, 0, None)
    steps = recorded(
        "0,3,unlocked",
        "5,3,unlocked",
        "10,3,unlocked",
        "15,90,unlocked",
        "20,90,unlocked",
        "25,failed,unlocked",
        "24,missing,unlocked",
        "30,0,unlocked",
        "40,0,unlocked",
        "50,0,unlocked",
        "60,0,unlocked",
        "65,3,locked",
    )
    config = PressureConfig(warmup_samples=2, sustain_s=5, learn_quantile=0.25)
    changed = [totals.add(decision) for decision in replay(steps, config)]
    assert [number for number, each in enumerate(changed) if each] == [0, 1, 4, 10, 11]
    assert (totals.rows, totals.readings, totals.engagements) == (12, 10, 1)
    assert totals.engaged_s == 5 + 6 + 30
    assert totals.last is not None
    assert totals.last.t_s == 65.0


def test_every_engagement_is_counted() -> None:
    config = PressureConfig(mode="fixed", threshold_pct=30, sustain_s=0, release_s=0)
    totals = Totals()
    for decision in replay(recorded("0,50,locked", "5,0,locked", "10,50,locked", "15,50,locked"), config):
        totals.add(decision)
    assert (totals.engagements, totals.engaged_s) == (2, 10.0)
