"""Short socket directories: pytest's own paths are too long for sockets."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    parent = Path(tempfile.mkdtemp(prefix="swapd-devices-"))
    try:
        yield parent / "s"
    finally:
        shutil.rmtree(parent)
