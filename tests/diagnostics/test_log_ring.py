"""The latest log lines are kept as they were written, and no more than fit."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator

import pytest

from swapd.diagnostics.log_ring import LogRing
from swapd.log import configure_logging, keep_lines


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.raiseExceptions, sys.excepthook, threading.excepthook)
    stream = io.StringIO()
    configure_logging(stream)
    yield stream
    logging.captureWarnings(False)
    root.handlers[:], _, logging.raiseExceptions, sys.excepthook, threading.excepthook = before
    root.setLevel(before[1])


def test_the_oldest_lines_make_room() -> None:
    ring = LogRing(max_lines=3, max_bytes=100)
    for number in range(5):
        ring.add(f"line {number}")
    assert ring.lines() == ["line 2", "line 3", "line 4"]
    assert ring.lines(2) == ["line 3", "line 4"]
    assert ring.lines(9) == ["line 2", "line 3", "line 4"]
    assert ring.lines(0) == []


def test_the_size_is_bounded_as_well() -> None:
    ring = LogRing(max_lines=100, max_bytes=10)
    for line in ("aaaa", "bbbb", "cccc"):
        ring.add(line)
    assert ring.lines() == ["bbbb", "cccc"]
    ring.add("d" * 10)
    assert ring.lines() == ["d" * 10]
    ring.add("e" * 11)
    assert ring.lines() == ["d" * 10]


def test_what_is_kept_is_what_was_written(stream: io.StringIO) -> None:
    """H181: through the one filter, each record once."""
    ring = LogRing()
    keep_lines(ring.add)
    logging.getLogger("swapd.test").warning("worker lost", extra={"worker": "a", "prompt": "canary-1"})
    logging.getLogger("some.library").error("text of a %s", "canary-2")
    assert ring.lines() == stream.getvalue().splitlines()
    first, second = map(json.loads, ring.lines())
    assert (first["worker"], first["fields_dropped"]) == ("a", 1)
    assert "canary" not in "".join(ring.lines())
    assert second["logger"] == "some.library"


def test_without_the_filter_nothing_is_kept() -> None:
    """H181: a handler of somebody else's writes what it likes, so it gives us nothing."""
    ring = LogRing()
    keep_lines(ring.add)
    logging.getLogger("swapd.test").error("line")
    assert ring.lines() == []
