"""What holds for all tests."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
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
