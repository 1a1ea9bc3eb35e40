"""What the transport tests share: a short private directory, and proof that nothing is left behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest
import zmq

from swapd.transport.sockets import Context
from tests.descriptors import none_left_open


@pytest.fixture
def short_dir() -> Iterator[str]:
    """A 0700 directory whose path leaves room for socket names (pytest's own may be too long)."""
    path = tempfile.mkdtemp(prefix="sw-")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def no_fd_leak() -> Iterator[None]:
    """The test leaves no descriptor open."""
    with none_left_open():
        yield


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    made.term()
