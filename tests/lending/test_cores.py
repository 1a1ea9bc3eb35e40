"""A process sent to other cores, and brought back: a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from swapd.lending.cores import OtherCores

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is only one core")

TWO_THREADS = """
import sys, threading
threading.Thread(target=sys.stdin.read).start()
print("up", flush=True)
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", TWO_THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as made:
        assert made.stdout is not None
        made.stdout.readline()
        yield made
        made.kill()


def masks(pid: int) -> list[set[int]]:
    return [os.sched_getaffinity(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")]


def test_all_threads_leave_and_come_back_to_where_they_could_run(process: subprocess.Popen[bytes]) -> None:
    first, *rest = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(process.pid, {first})
    before = masks(process.pid)
    cores = OtherCores()
    cores.send(process.pid, frozenset(rest))
    cores.send(process.pid, frozenset({first}))  # it has left already
    assert masks(process.pid) == [set(rest)] * 2
    cores.bring_back()
    assert masks(process.pid) == before


def test_with_nowhere_to_go_it_stays(process: subprocess.Popen[bytes]) -> None:
    before = masks(process.pid)
    OtherCores().send(process.pid, frozenset())
    assert masks(process.pid) == before


def test_a_process_that_is_gone_is_no_error(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    cores = OtherCores()
    cores.send(process.pid, frozenset({0}))
    cores.bring_back()
