"""What this process has open, so that a test can show that it leaves nothing open."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def open_files() -> set[str]:
    """Each open descriptor: its number and what it is."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        # One is gone by now: that of the folder itself.
        with suppress(FileNotFoundError):
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return found


def collected() -> set[str]:
    """`open_files`, once what earlier tests of this process have left to the garbage collector is closed.

    Else it may be closed in the middle of a test that counts.
    """
    gc.collect()
    return open_files()


@contextmanager
def none_left_open() -> Iterator[None]:
    """The block ends with no more open descriptors of any kind than it began with."""
    before = _kinds(collected())
    yield
    left = _kinds(open_files()) - before
    assert not left, left


def _kinds(files: set[str]) -> Counter[str]:
    """How many there are of each: files by name, and sockets, pipes and the like, which have none."""
    return Counter(re.sub(r":\[\d+\]$", "", each.partition(" ")[2]) for each in files)
