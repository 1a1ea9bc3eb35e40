"""CPU time of processes and threads from their `stat` files, read again and again at little cost.

The files stay open: a read is one call then, and a descriptor of `/proc` means the process that it was
opened for, also when its pid comes back (a read fails with ESRCH then). What has not changed is not parsed
again, and the threads of a process that has spent nothing are not read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from swapd.devices.cpu_rules import CoreTicks, ProcessTicks, ThreadTicks

STAT_BYTES: Final = 1024
STAT_CHUNK_BYTES: Final = 16384
"""`cpuN` lines come first in `/proc/stat`: about 60 bytes each; read on while they go on."""
MAX_OPEN: Final = 512
"""Files kept open; those beyond are opened for each read. The usual limit of a process is 1024."""


class _Stat(NamedTuple):
    parent: int
    own: int
    children: int
    threads: int
    start_ticks: int
    core: int


class _File:
    """One `stat` file, kept open."""

    __slots__ = ("_fd", "_raw", "_stat")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._raw = b""
        self._stat: _Stat | None = None

    def read(self) -> _Stat | None:
        """None: the process is gone."""
        try:
            raw = os.pread(self._fd, STAT_BYTES, 0)
        except OSError:
            return None
        if raw != self._raw:
            self._raw, self._stat = raw, _parse(raw)
        return self._stat

    def close(self) -> None:
        os.close(self._fd)


class ProcessTimes:
    """The times of some processes, asked for again and again. One thread's; `close` it."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._files: dict[int, _File] = {}
        self._threads: dict[int, dict[int, _File]] = {}
        self._open = 0

    def read(self, pids: Iterable[int], before: Mapping[int, ProcessTicks]) -> dict[int, ProcessTicks]:
        """The times of those that are there. Files of processes that are not asked for are closed."""
        times: dict[int, ProcessTicks] = {}
        for pid in pids:
            stat = self._process(pid)
            if stat is None:
                self._forget(pid)
                continue
            times[pid] = self._with_threads(pid, stat, before.get(pid))
        for pid in [pid for pid in self._files if pid not in times]:
            self._forget(pid)
        return times

    def close(self) -> None:
        """Close all files."""
        for pid in [*self._files, *self._threads]:
            self._forget(pid)

    def _process(self, pid: int) -> _Stat | None:
        file = self._files.get(pid)
        if file is not None:
            stat = file.read()
            if stat is not None:
                return stat
            self._forget(pid)  # The pid may be another process's by now.
        return self._read(f"{self._proc}/{pid}/stat", self._files, pid)

    def _with_threads(self, pid: int, stat: _Stat, before: ProcessTicks | None) -> ProcessTicks:
        threads: Mapping[int, ThreadTicks] = {}
        if before is not None and before.start_ticks == stat.start_ticks and before.own == stat.own:
            threads = before.threads
        elif stat.threads > 1:
            threads = self._read_threads(pid, stat.threads)
        return ProcessTicks(stat.parent, stat.start_ticks, stat.own, stat.children, stat.core, threads)

    def _read_threads(self, pid: int, count: int) -> dict[int, ThreadTicks]:
        files = self._threads.setdefault(pid, {})
        times = {tid: stat for tid, file in files.items() if (stat := file.read()) is not None}
        if len(times) != count or len(times) != len(files):
            times = self._list_threads(pid, files)
        return {tid: ThreadTicks(stat.own, stat.core) for tid, stat in times.items()}

    def _list_threads(self, pid: int, files: dict[int, _File]) -> dict[int, _Stat]:
        folder = f"{self._proc}/{pid}/task"
        try:
            tids = {int(name) for name in os.listdir(folder) if name.isdecimal()}
        except OSError:
            tids = set()
        times: dict[int, _Stat] = {}
        for tid in tids:
            file = files.get(tid)
            stat = file.read() if file is not None else self._read(f"{folder}/{tid}/stat", files, tid)
            if stat is not None:
                times[tid] = stat
        for tid in [tid for tid in files if tid not in times]:
            self._close(files.pop(tid))
        return times

    def _read(self, path: str, files: dict[int, _File], key: int) -> _Stat | None:
        """Open and read a file; it is kept in `files` while there are not too many."""
        try:
            file = _File(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return None
        self._open += 1
        stat = file.read()
        if stat is None or self._open > MAX_OPEN:
            self._close(file)
        else:
            files[key] = file
        return stat

    def _close(self, file: _File) -> None:
        file.close()
        self._open -= 1

    def _forget(self, pid: int) -> None:
        file = self._files.pop(pid, None)
        if file is not None:
            self._close(file)
        for thread in self._threads.pop(pid, {}).values():
            self._close(thread)


def _parse(raw: bytes) -> _Stat | None:
    # From `state` on (number 3 in proc(5) is index 0) to `processor`; `comm` may hold anything before.
    fields = raw[raw.rfind(b")") + 2 :].split(None, 37)
    try:
        return _Stat(
            parent=int(fields[1]),
            own=int(fields[11]) + int(fields[12]),
            children=int(fields[13]) + int(fields[14]),
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
            core=int(fields[36]),
        )
    except (ValueError, IndexError):
        return None


def read_cores(proc: Path) -> dict[int, CoreTicks]:
    """The `cpuN` lines of `/proc/stat`; empty when it cannot be read."""
    data = b""
    try:
        fd = os.open(f"{proc}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        while chunk := os.pread(fd, STAT_CHUNK_BYTES, len(data)):
            data += chunk
            if b"\nintr" in data:
                break
    except OSError:
        return {}
    finally:
        os.close(fd)
    cores = {}
    for line in data.split(b"\nintr", 1)[0].splitlines():
        fields = line.split(None, 8)
        name = fields[0] if fields else b""
        if name.startswith(b"cpu") and name[3:].isdigit() and len(fields) >= 8:
            try:
                cores[int(name[3:])] = CoreTicks(*map(int, fields[1:8]))
            except ValueError:
                continue
    return cores
