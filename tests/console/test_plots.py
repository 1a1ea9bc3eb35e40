"""The load as a picture: nothing is drawn that was not read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from console.plots import HEIGHT, WIDTH, load_plot
from swapd.device_views import TrendPoint


def points(*loads: float | None, threshold: float | None = 34.0) -> list[TrendPoint]:
    return [TrendPoint(30.0 * n, load, threshold, False) for n, load in enumerate(loads)]


def test_a_gap_in_the_readings_is_a_gap_in_the_line():
    plot = load_plot(points(10, 20, None, None, 40, 50))
    assert plot.line == "M50.0 90.0 L150.0 80.0M450.0 60.0 L550.0 50.0"
    assert plot.area.count("Z") == 2
    assert (plot.lowest_pct, plot.highest_pct) == (10, 50)


def test_one_reading_alone_is_seen():
    assert load_plot(points(None, 10, None)).line == "M200.0 90.0 L400.0 90.0"


def test_without_a_reading_there_is_no_line():
    plot = load_plot(points(None, None, threshold=None))
    assert (plot.line, plot.area, plot.threshold, plot.highest_pct, plot.threshold_pct) == (
        "", "", "", None, None,
    )  # fmt: skip


def test_each_time_that_the_owner_came_first_is_marked_once():
    marked = [TrendPoint(0, 50, 34, on) for on in (False, True, True, False, True, False)]
    plot = load_plot(marked)
    assert plot.engaged == ((100.0, 200.0), (400.0, 100.0))
    assert plot.times_engaged == 2


@given(st.lists(st.none() | st.floats(0, 100), max_size=50))
def test_a_picture_stays_in_its_box(loads: list[float | None]) -> None:
    plot = load_plot(points(*loads))
    for path in (plot.area, plot.line, plot.threshold):
        numbers = [float(n) for n in path.replace("M", " ").replace("L", " ").replace("Z", " ").split()]
        assert all(0 <= x <= WIDTH + 0.1 for x in numbers[::2])
        assert all(0 <= y <= HEIGHT for y in numbers[1::2])
