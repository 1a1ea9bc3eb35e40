"""Numbers for people: every one has its unit."""

from __future__ import annotations

import pytest

from console.phrases import clock, count, duration, pause, percent, plural, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.04, "40 ms"), (2.13, "2.1 s"), (9.96, "10 s"), (45.4, "45 s"), (119.6, "2 min"),
     (720, "12 min"), (12000, "3 h 20 min"), (7200, "2 h"), (187_200, "52 h"), (432_000, "5 days")],
)  # fmt: skip
def test_a_span_has_the_unit_that_fits(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0.4, "0 ms"), (48.2, "48 ms"), (182.0, "182 ms"), (999.7, "1.0 s"), (2500, "2.5 s")],
)
def test_a_pause_is_told_in_milliseconds_up_to_a_second(milliseconds, text):
    assert pause(milliseconds) == text


def test_a_moment_of_another_day_says_which():
    noon = 1_700_000_000.0
    assert clock(noon, noon + 60).count(":") == 1
    assert len(clock(noon - 86_400, noon).split()) == 2
    assert clock(noon - 40 * 86_400, noon).endswith("2023")


def test_the_other_numbers():
    assert [size(n) for n in (512, 1536, 200 << 20, 3 << 40)] == ["512 B", "1.5 KiB", "200 MiB", "3.0 TiB"]
    assert percent(33.6) == "34%"
    assert count(41_000) == "41,000"
    assert (plural(1, "session"), plural(0, "session")) == ("1 session", "0 sessions")
