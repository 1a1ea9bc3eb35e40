"""How much memory this process may still take without waking the kernel's OOM killer.

Shared memory is charged when it is reserved, and a cgroup that is over its limit kills instead of failing the
call. So the arena asks here first. Page cache that can be given up counts as available.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

KIB: Final = 1024
UNLIMITED_V1: Final = 1 << 60
"""cgroup v1 writes "no limit" as a huge number of pages."""


def available_bytes(root: Path = Path("/")) -> int:
    """Give the least of MemAvailable and the room in every cgroup above us; `root` is for tests."""
    return min([_meminfo_available(root), *_cgroup_rooms(root)])


def _meminfo_available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * KIB
    return 0


def _cgroup_rooms(root: Path) -> Iterator[int]:
    memberships = _read(root / "proc/self/cgroup")
    for line in (memberships or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                yield from _rooms(root / mount, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            yield from _rooms(
                root / "sys/fs/cgroup/memory",
                path,
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )


def _rooms(mount: Path, path: str, limit_file: str, usage_file: str, reclaimable_key: str) -> Iterator[int]:
    """Give the room in each group from `path` up to the mount.

    In a container the path may name groups outside of its mount; those that are not there are skipped.
    """
    group = Path(path.lstrip("/"))
    for relative in (group, *group.parents):
        folder = mount / relative
        limit, usage = _number(folder / limit_file), _number(folder / usage_file)
        if limit is None or usage is None or limit >= UNLIMITED_V1:
            continue
        yield max(0, limit - usage + _stat(folder / "memory.stat", reclaimable_key))


def _number(file: Path) -> int | None:
    text = (_read(file) or "").strip()
    return int(text) if text.isdigit() else None


def _stat(file: Path, key: str) -> int:
    for line in (_read(file) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return int(value)
    return 0


def _read(file: Path) -> str | None:
    try:
        return file.read_text()
    except OSError:
        return None
