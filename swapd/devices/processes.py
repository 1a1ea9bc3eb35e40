"""Who is who in `/proc`: the lenders' trees, whoever listens on a borrower port, processes by name.

A process is a pid and a start time, for a pid comes back. `/proc/<pid>/task/*/children` is not there on every
kernel, and a walk over it is no snapshot either, so trees come from the parents that all processes name.

A `ProcessTable` is for a sampler that asks again and again: it lists `/proc` every time, but reads only
processes that are new; all are read anew every `FULL_SCAN_S`, for `exec` changes a name and keeps the pid.
The functions at the end do the same once, from scratch.

What cannot be read (other users' `exe` and `fd` without privileges, hidden pids) is just not found: its load
is the owner's then, never a lender's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from swapd.devices.listeners import Listeners

PROC: Final = Path("/proc")
COMM_MAX_BYTES: Final = 15
"""The kernel cuts `comm` here."""
FULL_SCAN_S: Final = 20.0
STAT_BYTES: Final = 1024
MAX_TREE: Final = 65536
"""Processes of all lenders together; a table of more is not ours to understand."""


class Process(NamedTuple):
    """One process when it was read. `name` is `comm`."""

    pid: int
    parent: int
    start_ticks: int
    name: str


class _Member(NamedTuple):
    start_ticks: int
    root: tuple[int, int]


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """Read one process; None when it is gone, unreadable or no process."""
    data = read_small(f"{proc}/{pid}/stat")
    if data is None:
        return None
    try:
        # `comm` may hold spaces and parentheses: the last one closes it.
        head, tail = data.rsplit(b") ", 1)
        fields = tail.split(None, 20)
        name = head[head.index(b"(") + 1 :].decode(errors="replace")
        return Process(pid, int(fields[1]), int(fields[19]), name)
    except (ValueError, IndexError):
        return None


def read_small(path: str, limit: int = STAT_BYTES) -> bytes | None:
    """Read a small file of `/proc` in one call; None when it cannot be."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, limit)
    except OSError:
        return None
    finally:
        os.close(fd)


class ProcessTable:
    """All processes, read sparingly. One thread's; `refresh` before the questions of one poll."""

    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._known: dict[int, Process] = {}
        self._young: set[int] = set()
        self._full_at_s: float | None = None
        self._members: dict[int, _Member] = {}
        self._lent: frozenset[int] = frozenset()
        self._listeners = Listeners(proc)
        self._names: dict[Process, tuple[str, str]] = {}
        self._listed: list[str] = []
        # What was asked and answered since the processes last changed.
        self._asked: frozenset[int] | None = None
        self._named: dict[tuple[str, ...], tuple[Process, ...]] = {}

    def refresh(self) -> None:
        """Look which processes there are. New ones are read now and once more at the next call (`exec`)."""
        now = self._clock()
        listed = _list(self._proc)
        full = self._full_at_s is None or now - self._full_at_s >= FULL_SCAN_S
        if not full and not self._young and listed == self._listed:
            return
        if full:
            self._full_at_s = now
            self._names.clear()
        self._listed = listed
        self._named.clear()
        self._asked = None
        before, young = self._known, self._young
        self._known, self._young = {}, set()
        for pid in _pids(listed):
            process = before.get(pid)
            if full or process is None or pid in young:
                if process is None:
                    self._young.add(pid)
                process = read_process(pid, self._proc)
            if process is not None:
                self._known[pid] = process

    @property
    def processes(self) -> dict[int, Process]:
        """As of the last `refresh`; not to be changed."""
        return self._known

    def lenders(self, roots: Iterable[int], ports: Iterable[int] = ()) -> frozenset[int]:
        """Each root and each listener on a port, with its whole tree of children (D24).

        A descendant whose parent ended stays with its root, also beyond the root's own end: it is still the
        lender's work. It leaves when the root lives on and is no lender any more.
        """
        listeners = self._listeners.pids(frozenset(ports), self._known.values(), self._clock())
        seeds = frozenset(pid for pid in (*roots, *listeners) if pid > 1 and pid in self._known)
        if seeds == self._asked:
            return self._lent
        self._asked = seeds
        found: dict[int, _Member] = {}
        for pid, member in self._members.items():
            process = self._known.get(pid)
            if process is None or process.start_ticks != member.start_ticks:
                continue
            root = self._known.get(member.root[0])
            lives = root is not None and root.start_ticks == member.root[1]
            if member.root[0] in seeds or not lives:
                found[pid] = member
        for pid in seeds:
            start = self._known[pid].start_ticks
            found[pid] = _Member(start, (pid, start))
        self._members = self._with_children(found)
        self._lent = frozenset(self._members)
        return self._lent

    def lenders_now(self, roots: Iterable[int], ports: Iterable[int] = ()) -> frozenset[int]:
        """`refresh`, then `lenders`."""
        self.refresh()
        return self.lenders(roots, ports)

    def _with_children(self, found: dict[int, _Member]) -> dict[int, _Member]:
        children: dict[int, list[Process]] = {}
        for process in self._known.values():
            children.setdefault(process.parent, []).append(process)
        queue = list(found)
        while queue and len(found) < MAX_TREE:
            pid = queue.pop()
            for child in children.get(pid, ()):
                # A child is no older than its parent; else the parent's pid has come back since it was read.
                older = child.start_ticks < found[pid].start_ticks
                if child.pid not in found and child.pid > 1 and not older:
                    found[child.pid] = _Member(child.start_ticks, found[pid].root)
                    queue.append(child.pid)
        return found

    def named(self, names: Iterable[str]) -> tuple[Process, ...]:
        """The processes of one of these names (D23)."""
        key = tuple(names)
        found = self._named.get(key)
        if found is None:
            wanted = _Names(key)
            found = self._named[key] = tuple(
                process
                for process in (self._known.values() if wanted else ())
                if not wanted.isdisjoint(self._names_of(process))
            )
        return found

    def running(self, names: Iterable[str]) -> tuple[str, ...]:
        """Which of these names run at all (D37), as they were asked for."""
        return tuple(name for name in names if self.named((name,)))

    def _names_of(self, process: Process) -> tuple[str, str]:
        names = self._names.get(process)
        if names is None:
            exe = exe_name(process.pid, self._proc) or ""
            names = self._names[process] = (process.name.casefold(), exe.casefold())
        return names


class _Names(frozenset[str]):
    """Names to look for: without regard to case, also as the kernel cuts them for `comm`."""

    def __new__(cls, names: Iterable[str]) -> _Names:
        whole = {name.casefold() for name in names if name}
        cut = {name.encode()[:COMM_MAX_BYTES].decode(errors="replace") for name in whole}
        return super().__new__(cls, whole | cut)

    def match(self, name: str) -> bool:
        return name.casefold() in self


def _list(proc: Path) -> list[str]:
    try:
        return os.listdir(proc)
    except OSError:
        return []


def _pids(listed: list[str]) -> list[int]:
    return [int(name) for name in listed if name.isdecimal()]


def exe_name(pid: int, proc: Path = PROC) -> str | None:
    """The basename of the program that a process runs; None where we may not know or there is none."""
    try:
        target = os.readlink(f"{proc}/{pid}/exe")
    except OSError:
        return None
    return os.path.basename(target.removesuffix(" (deleted)")) or None


def lender_pids(roots: Iterable[int], ports: Iterable[int] = (), proc: Path = PROC) -> frozenset[int]:
    """What `ProcessTable.lenders` gives, from scratch: every process is read."""
    table = ProcessTable(proc)
    table.refresh()
    return table.lenders(roots, ports)


def process_name(pid: int, proc: Path = PROC) -> str | None:
    """The name of a process: `comm`, whole where the program's name tells what was cut off; None: gone."""
    process = read_process(pid, proc)
    if process is None:
        return None
    if len(process.name.encode()) >= COMM_MAX_BYTES:
        exe = exe_name(pid, proc)
        if exe is not None and exe.startswith(process.name):
            return exe
    return process.name


def name_matches(pid: int, names: Iterable[str], proc: Path = PROC) -> bool:
    """Whether `comm` or the program's basename is one of `names` (D23)."""
    wanted = _Names(names)
    process = read_process(pid, proc) if wanted else None
    if process is None:
        return False
    return wanted.match(process.name) or wanted.match(exe_name(pid, proc) or "")


def running_names(names: Iterable[str], proc: Path = PROC) -> tuple[str, ...]:
    """What `ProcessTable.running` gives, from scratch."""
    table = ProcessTable(proc)
    table.refresh()
    return table.running(names)
