"""Lent time, visits and the sentence about what happened: rules without clock and store."""

from __future__ import annotations

import pytest

from swapd.activity.lent_time import LentTime
from swapd.activity.view import activity_view, duration_text, sentence, step_of, times_text
from swapd.activity.visits import AWAY_S, Visits
from swapd.device_views import ActivityStep
from swapd.store.activity import Recorded


def test_lent_time_is_that_between_two_looks_that_found_it_lent() -> None:
    lent = LentTime()
    for now, is_lent in [(0.0, False), (1.0, True), (2.0, True), (5.0, True), (6.0, False), (9.0, True)]:
        lent.look("gpu0", now, is_lent=is_lent)
    assert lent.take() == {"gpu0": 4.0}
    lent.look("gpu0", 10.5, is_lent=True)
    assert lent.take() == {"gpu0": 1.5}
    assert lent.take() == {}


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    lent = LentTime()
    for now in (5.0, 4.0, 6.0):
        lent.look("gpu0", now, is_lent=True)
    assert lent.take() == {"gpu0": 2.0}


def test_a_visit_goes_on_from_page_to_page_and_ends_with_half_an_hour_of_silence() -> None:
    first = Visits().look(1000.0)
    assert first.before is None
    assert first.look(1000.0 + AWAY_S).before is None
    second = first.look(1001.0 + AWAY_S)
    assert second.before == 1000.0
    assert second.look(1500.0 + AWAY_S).before == 1000.0
    assert second.look(0.0).before == 1000.0


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (
            (22_320.0, 41_000, 2, 5, 100.0),
            "Lent 6.2 h, 41,000 tokens served, twice your work came first, 5 generations moved, "
            "longest pause 0.1 s.",
        ),
        (
            (90.0, 1, 1, 1, 62.4),
            "Lent 2 min, 1 token served, once your work came first, 1 generation moved, longest pause 62 ms.",
        ),
        ((30.0, 0, 0, 0, None), "Lent 30 s."),
        ((0.0, 7, 0, 0, None), "Not lent, 7 tokens served."),
        ((0.0, 0, 0, 0, None), "Nothing was lent and nothing was served."),
        ((3600.0, 0, 0, 0, 55.0), "Lent 1.0 h."),
    ],
)
def test_what_happened_is_one_sentence(facts: tuple[float, int, int, int, float | None], told: str) -> None:
    assert sentence(*facts) == told


@pytest.mark.parametrize(
    ("seconds", "text"), [(59.4, "59 s"), (60.0, "1 min"), (3599.0, "60 min"), (3600.0, "1.0 h")]
)
def test_durations_as_people_say_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_the_view_has_every_configured_device_and_tells_how_far_the_record_goes_back() -> None:
    sums = Recorded(
        500.0,
        12,
        {"gpu0": 60.04, "gone": 99.0},
        {"gpu0": 3},
        {"gpu0": {"pressure": 1, "game": 1, "taken_back": 4, "quiet_hours": 2}},
        {"completed_native": 2, "parked": 1, "failed": 1},
        80.0,
        [(300.0, 30.04, 5), (600.0, 0.0, 7)],
    )
    view = activity_view(sums, 300.0, ("gpu0", "gpu1"), 300.0)
    assert [(one.device, one.lent_s, one.pressure_events) for one in view.devices] == [
        ("gpu0", 60.0, 3),
        ("gpu1", 0.0, 0),
    ]
    assert (view.recorded_since, view.came_first, view.moved, view.lent_s) == (500.0, 2, 3, 60.0)
    back = activity_view(sums._replace(returned=1), 300.0, ("gpu0",), 300.0)
    assert (back.moved, back.returned) == (2, 1), "who was parked and came back left its worker once"
    assert "2 generations moved" in back.sentence
    assert view.course == (ActivityStep(300.0, 30.0, 5), ActivityStep(600.0, 0.0, 7))
    assert activity_view(sums, 600.0, ("gpu0",), 300.0).recorded_since is None
    assert activity_view(sums._replace(first_at=None), 600.0, (), 300.0).recorded_since is None


def test_steps_are_few_and_even() -> None:
    hour = 3600.0
    spans = {60.0: 300.0, 3 * hour: 900.0, 24.1 * hour: hour, 40 * hour: 2 * hour, 168.1 * hour: 6 * hour}
    assert {span: step_of(span) for span in spans} == spans
    assert step_of(31 * 24 * hour) == 24 * hour


def test_how_often_as_people_say_it() -> None:
    assert [times_text(n) for n in (0, 1, 2, 3, 1200)] == ["never", "once", "twice", "3 times", "1,200 times"]
