"""What this process has open, so that a test can show that it leaves nothing open."""

from __future__ import annotations

import gc
import os
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
    """The block leaves no descriptor open. One of before that is closed meanwhile does not count."""
    before = collected()
    yield
    left = open_files() - before
    assert not left, left
