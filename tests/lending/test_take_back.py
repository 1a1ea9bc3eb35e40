"""What an owner may ask for with "take back now"."""

from __future__ import annotations

import math
from typing import Any

import pytest

from swapd.device_views import TakeBack
from swapd.errors import Code, SwapdError
from swapd.lending.take_back import MAX_TAKE_BACK_S, check_take_back


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        (TakeBack(), TakeBack(until="told")),
        (TakeBack(until="told"), TakeBack(until="told")),
        (TakeBack(until="unlock"), TakeBack(until="unlock")),
        (TakeBack(for_s=3600.0), TakeBack(3600.0, "time")),
        (TakeBack(0.5, "time"), TakeBack(0.5, "time")),
        (TakeBack(MAX_TAKE_BACK_S), TakeBack(MAX_TAKE_BACK_S, "time")),
    ],
)
def test_a_take_back_is_for_a_time_or_until_something(asked: TakeBack, meant: TakeBack) -> None:
    assert check_take_back(asked) == meant


@pytest.mark.parametrize(
    "asked",
    [
        TakeBack(until="time"),
        TakeBack(60.0, "told"),
        TakeBack(60.0, "unlock"),
        TakeBack(0.0),
        TakeBack(-1.0),
        TakeBack(math.nan),
        TakeBack(math.inf),
        TakeBack(math.nextafter(MAX_TAKE_BACK_S, math.inf)),
    ],
)
def test_a_take_back_that_cannot_be_meant_is_refused(asked: Any) -> None:
    with pytest.raises(SwapdError) as refused:
        check_take_back(asked)
    assert refused.value.code is Code.INVALID_REQUEST
