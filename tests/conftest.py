"""What holds for all tests."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
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


SEARCHED: Final = {"vllm": "mark.vllm", "alone": "mark.alone", "browser": "tests/browser/"}
"""Parts of `ops/test` with few tests: what a file of theirs has in its text, or in its path."""


def all_of(expression: str) -> set[str]:
    """What holds for every test that a marker expression selects; of one that is no plain list, nothing."""
    return set() if " or " in expression or "(" in expression else set(expression.split(" and "))


def may_have(path: Path, marker: str) -> bool:
    """Whether a test in a file can have one of these markers."""
    return SEARCHED[marker] in str(path) or SEARCHED[marker] in path.read_text(encoding="utf-8")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a test of the part that runs: importing all of them takes longer than some."""
    if not collection_path.name.startswith("test_"):
        return None
    wanted = all_of(config.option.markexpr)
    if "not browser" in wanted and SEARCHED["browser"] in str(collection_path):
        return True
    return None if all(may_have(collection_path, one) for one in wanted & set(SEARCHED)) else True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hold `may_have` against what the tests are marked with; have what takes long begin first."""
    for item in items:
        for marker in SEARCHED:
            if item.get_closest_marker(marker) is not None and not may_have(item.path, marker):
                raise pytest.UsageError(f"{item.nodeid} is marked {marker} in a way that is not searched for")
    items.sort(key=lambda item: -TAKES_S.get(f"{item.path.parent.name}/{item.path.name}", 0))


TAKES_S: Final = {
    "e2e/test_sim.py": 180,
    "e2e/test_lending_nvml.py": 150,
    "e2e/test_parking.py": 80,
    "e2e/test_lending_sim.py": 75,
    "e2e/test_crash.py": 65,
    "e2e/test_restart.py": 40,
    "e2e/test_serving.py": 30,
    "devices/test_link.py": 28,
    "e2e/test_soak.py": 26,
    "tests/test_quickstart_process.py": 25,
    "e2e/test_disk.py": 25,
    "transport/test_fdpass.py": 25,
    "worker/test_process.py": 25,
    "e2e/test_drill_leak.py": 22,
    "e2e/test_salvage.py": 20,
    "e2e/test_snapshot.py": 20,
    "migration/test_supervisor.py": 20,
    "attendance/test_watch.py": 20,
    "store/test_durability.py": 20,
    "browser/test_live_devices.py": 20,
}
"""Files that take longest, and about how long. With `--no-loadscope-reorder` they begin first, so that none
goes on by itself at the end: xdist begins with the files of the most tests, which are seldom the longest."""


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
