"""Ports for services that tests start: free, and nobody else's a moment later.

The kernel's own choice (port 0) can be given away again between the look and the start: to a client of
another test, or to another test process that looks at the same time. So they come from below the range of
the kernel's choices, and each test process has a part of its own.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from typing import Final

FIRST: Final = 20_000
PART: Final = 1_500
PARTS: Final = 8
"""Up to 32,000: the kernel's choices begin at 32,768."""


def _candidates() -> Iterator[int]:
    part = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PARTS
    # Another run of the tests on this machine begins elsewhere.
    begin = os.getpid() * 37 % PART
    for number in itertools.count():
        yield FIRST + part * PART + (begin + number) % PART


_next = _candidates()


def free_port() -> int:
    """A port of the loopback that is free and was not handed out by this process lately."""
    for _ in range(PART):
        port = next(_next)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")
