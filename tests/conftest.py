"""What holds for all tests."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from typing import Any, Final

import pytest
import trio
from hypothesis import settings

# The same examples on every run, and no time limit an example: a busy machine is not a failure.
settings.register_profile("swapd", deadline=None, derandomize=True)
settings.load_profile("swapd")

# The browser's driver is installed where those tests run: on Python 3.11.
collect_ignore = [] if find_spec("playwright") else ["browser"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots",
        action="store_true",
        help="write a picture of each page of the console, light and dark, to docs/console/",
    )


OWN_SHARE: Final = 0.9
"""Of a test's time limit, after which an asynchronous test is cancelled."""
CLOCKS: Final = {"mock_clock", "autojump_clock"}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have Trio end a test that hangs, shortly before pytest-timeout does, so that all of it is unwound.

    pytest-timeout's signal can break off Trio's own loop: its tasks are left as they are, and the tests after
    it in the process fail, too.
    """
    if not isinstance(item, pytest.Function) or CLOCKS.intersection(item.fixturenames):
        return
    if inspect.iscoroutinefunction(item.obj) and not hasattr(item.obj, "hypothesis"):
        marker = item.get_closest_marker("timeout")
        limit_s = float(marker.args[0] if marker is not None else item.config.getini("timeout"))
        item.obj = _ended_by(item.obj, time.monotonic() + OWN_SHARE * limit_s)


def _ended_by(test: Callable[..., Awaitable[Any]], end: float) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(test)
    async def ended(**fixtures: Any) -> None:
        # What its fixtures took counts, as it does for pytest-timeout.
        with trio.fail_after(max(end - time.monotonic(), 0.0)):
            await test(**fixtures)

    return ended


@pytest.fixture(autouse=True)
def _disks_that_work() -> Iterator[None]:
    """No test inherits the waiting or failing disk of the one before it."""
    yield
    if (failing := sys.modules.get("tests.store.failing")) is not None:
        failing.all_disks_work()
