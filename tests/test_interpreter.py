"""How processes in which somebody waits for a token set their interpreter."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from swapd import interpreter


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    gc.unfreeze()


def test_what_is_here_is_not_looked_through_again() -> None:
    here: list[object] = [[]]
    assert any(each is here for each in gc.get_objects())
    interpreter.spare_what_is_here()
    assert not any(each is here for each in gc.get_objects())


def test_threads_give_way_soon() -> None:
    interpreter.switch_threads_soon()
    assert sys.getswitchinterval() == pytest.approx(interpreter.SWITCH_INTERVAL_S)
