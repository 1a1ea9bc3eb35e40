"""What the transport tests share: a short private directory, and proof that nothing is left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
import zmq

from swapd.transport.sockets import Context


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def short_dir() -> Iterator[str]:
    """A 0700 directory whose path leaves room for socket names (pytest's own may be too long)."""
    path = tempfile.mkdtemp(prefix="sw-")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def no_fd_leak() -> Iterator[None]:
    """The test ends with as many open descriptors as it began."""
    before = open_fds()
    yield
    assert open_fds() == before


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    made.term()
