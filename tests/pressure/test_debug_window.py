"""The debug window opens for a time and ends by itself."""

from __future__ import annotations

import pytest

from swapd.errors import Code, SwapdError
from swapd.pressure.debug_window import MAX_WINDOW_S, DebugWindow


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_it_ends_by_itself() -> None:
    """R129"""
    clock = Clock()
    window = DebugWindow(clock)
    assert not window.is_open
    window.open_for(60.0)
    assert (window.is_open, window.left_s) == (True, 60.0)
    clock.now += 59.9
    assert window.is_open
    clock.now += 0.1
    assert (window.is_open, window.left_s) == (False, 0.0)


def test_the_last_word_counts_and_zero_ends_it() -> None:
    clock = Clock()
    window = DebugWindow(clock)
    window.open_for(MAX_WINDOW_S)
    window.open_for(5.0)
    assert window.left_s == 5.0
    window.open_for(0.0)
    assert not window.is_open


def test_the_configuration_keeps_it_open() -> None:
    window = DebugWindow(Clock(), by_configuration=True)
    window.open_for(0.0)
    assert (window.is_open, window.left_s) == (True, 0.0)


@pytest.mark.parametrize("seconds", [-1.0, MAX_WINDOW_S + 1, float("nan"), float("inf")])
def test_it_is_never_open_for_ever(seconds: float) -> None:
    window = DebugWindow(Clock())
    with pytest.raises(SwapdError) as refused:
        window.open_for(seconds)
    assert refused.value.code is Code.INVALID_REQUEST
    assert not window.is_open
