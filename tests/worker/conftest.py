"""Short socket directories, and two workers that the tests of a module share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.client import WorkerProcess, worker


@pytest.fixture
def folder() -> Iterator[Path]:
    """A socket directory, with room beside it; pytest's own paths are too long for sockets."""
    parent = Path(tempfile.mkdtemp(prefix="swapd-worker-"))
    try:
        yield parent / "s"
    finally:
        shutil.rmtree(parent)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    """Two sim workers; each test takes them over as a newer coordinator."""
    parent = Path(tempfile.mkdtemp(prefix="swapd-worker-"))
    try:
        with worker(parent / "s", "a") as one, worker(parent / "s", "b") as two:
            yield one, two
    finally:
        shutil.rmtree(parent)
