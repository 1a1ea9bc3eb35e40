"""Which processes listen on a borrower port: port → socket inode (`/proc/net/tcp`) → pid (`/proc/<pid>/fd`).

A scan of all descriptors is dear, so what was found is kept while its descriptor still names the socket, and
a port that is not found is looked for again only every `RESCAN_S`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from swapd.devices.processes import Process

LISTEN: Final = b"0A"
RESCAN_S: Final = 10.0
RETRY_S: Final = 5.0
"""While a port has no process that we can see. Reading `/proc/net/tcp` takes the kernel milliseconds."""
MAX_FDS: Final = 65536
"""Descriptors looked at in one scan."""
ACTIVATORS: Final = frozenset({"systemd", "init"})
"""They hold the sockets of services that they start on demand, and nearly everything is their child."""


class _Held(NamedTuple):
    pid: int
    start_ticks: int
    fd: str


class Listeners:
    """Who listens on some ports. One thread's."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._held: dict[int, list[_Held]] = {}
        self._scan_at_s = 0.0
        self._ports: frozenset[int] = frozenset()

    def pids(self, ports: frozenset[int], processes: Iterable[Process], now_s: float) -> frozenset[int]:
        """Those of `processes` that listen on one of `ports`, whatever the address."""
        if not ports:
            self._held.clear()
            self._ports = ports
            return frozenset()
        known = {process.pid: process for process in processes}
        stands = bool(self._held) and all(self._stands(inode, known) for inode in self._held)
        if ports != self._ports or now_s >= self._scan_at_s or (not stands and self._held):
            self._ports = ports
            self._scan(ports, known)
            self._scan_at_s = now_s + (RESCAN_S if self._held else RETRY_S)
        return frozenset(held.pid for holders in self._held.values() for held in holders)

    def _stands(self, inode: int, known: dict[int, Process]) -> bool:
        return all(
            (process := known.get(held.pid)) is not None
            and process.start_ticks == held.start_ticks
            and _names_socket(f"{self._proc}/{held.pid}/fd/{held.fd}", inode)
            for held in self._held[inode]
        )

    def _scan(self, ports: frozenset[int], known: dict[int, Process]) -> None:
        inodes = set(listening_inodes(ports, self._proc))
        self._held = {}
        if not inodes:
            return
        targets = {f"socket:[{inode}]": inode for inode in inodes}
        left = MAX_FDS
        for process in known.values():
            if process.pid <= 1 or process.name in ACTIVATORS:
                continue
            for fd in _fds(process.pid, self._proc):
                left -= 1
                if left < 0:
                    return
                inode = targets.get(_target(f"{self._proc}/{process.pid}/fd/{fd}"))
                if inode is not None:
                    held = _Held(process.pid, process.start_ticks, fd)
                    self._held.setdefault(inode, []).append(held)


def listening_inodes(ports: frozenset[int], proc: Path) -> Iterator[int]:
    """The sockets that listen on one of `ports`, in our network namespace."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(proc, "net", table).read_bytes().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …
            fields = line.split(None, 10)
            with contextlib.suppress(ValueError, IndexError):
                if fields[3] == LISTEN and int(fields[1].rpartition(b":")[2], 16) in ports:
                    yield int(fields[9])


def _fds(pid: int, proc: Path) -> list[str]:
    try:
        return os.listdir(f"{proc}/{pid}/fd")
    except OSError:
        return []


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _names_socket(path: str, inode: int) -> bool:
    return _target(path) == f"socket:[{inode}]"
