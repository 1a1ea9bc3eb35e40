"""What a process holds, as the kernel tells it: descriptors, threads, shared memory, its own memory."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

_INODE: Final = re.compile(r":\[\d+\]$")

IDLE: Final = "Trio thread "


class Footprint(msgspec.Struct, frozen=True):
    """One look at one process. `files` are counted by what they are, so that a leak has a name."""

    files: dict[str, int]
    threads: int
    """Without those that Trio keeps for the next job: how many depends on how busy the machine was."""
    shared: dict[str, int]
    """Mappings of memory files and of `/dev/shm`, by name."""

    @property
    def descriptors(self) -> int:
        return sum(self.files.values())

    @property
    def mappings(self) -> int:
        return sum(self.shared.values())

    def split(self, database: str) -> tuple[Footprint, int]:
        """Itself without a database's files, and how many connections to that there are."""
        others = {name: count for name, count in self.files.items() if not name.startswith(database)}
        return Footprint(others, self.threads, self.shared), self.files.get(database, 0)


def look(pid: int) -> Footprint:
    """Look at a process that lives. Raises `FileNotFoundError` for one that does not."""
    proc = Path(f"/proc/{pid}")
    files: Counter[str] = Counter()
    for entry in os.listdir(proc / "fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            files[_INODE.sub("", os.readlink(proc / "fd" / entry))] += 1
    shared: Counter[str] = Counter()
    for line in (proc / "maps").read_text().splitlines():
        _, _, path = line.partition("/")
        if path.startswith(("memfd:", "dev/shm/")):
            shared[path] += 1
    return Footprint(dict(files), _threads(proc), dict(shared))


def _threads(proc: Path) -> int:
    count = 0
    for entry in os.listdir(proc / "task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            # With a job, a thread has the job's name.
            count += not (proc / "task" / entry / "comm").read_text().startswith(IDLE)
    return count


def rss_anon_kib(pid: int) -> int:
    """The process's own memory in KiB, without what it shares (H211)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise ProcessLookupError(pid)


def stray_names(folder: Path = Path("/dev/shm")) -> list[str]:
    """Names in `folder` that no process has open or mapped: whoever made them has left them behind."""
    names = {str(path) for path in folder.iterdir()}
    for proc in Path("/proc").glob("[0-9]*") if names else ():
        with contextlib.suppress(OSError):  # it ended, or is somebody else's
            names -= set((proc / "maps").read_text().split())
            for entry in os.listdir(proc / "fd"):
                with contextlib.suppress(FileNotFoundError):
                    names.discard(os.readlink(proc / "fd" / entry))
    return sorted(names)


def descriptors_more(before: Footprint, after: Footprint) -> dict[str, int]:
    """Which descriptors there are more of than before, by what they are."""
    return dict(Counter(after.files) - Counter(before.files))
