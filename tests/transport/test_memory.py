"""Available memory, read from made-up /proc and /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from swapd.transport.memory import available_bytes

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path, "proc/meminfo", f"MemTotal: 99999 kB\nMemAvailable:   {8 * GIB // 1024} kB\n")
    return tmp_path


def put(root: Path, name: str, text: object) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(f"{text}")


def test_without_cgroups_it_is_what_the_kernel_says(root: Path) -> None:
    assert available_bytes(root) == 8 * GIB


@pytest.mark.parametrize("mount", ["sys/fs/cgroup", "sys/fs/cgroup/unified"])
def test_the_tightest_cgroup_above_us_decides(root: Path, mount: str) -> None:
    """H93: a container's limit counts, whichever ancestor has it; its page cache can be given up."""
    put(root, "proc/self/cgroup", "0::/a/b\n")
    for group, limit, current in (("a/b", "max", GIB), ("a", 3 * GIB, 2 * GIB), ("", 6 * GIB, GIB)):
        put(root, f"{mount}/{group}/memory.max", limit)
        put(root, f"{mount}/{group}/memory.current", current)
    put(root, f"{mount}/a/memory.stat", f"anon 5\ninactive_file {GIB // 2}\n")
    assert available_bytes(root) == GIB + GIB // 2


def test_version_one_cgroups_count_too(root: Path) -> None:
    put(root, "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/box/in\n0::/\n")
    memory = "sys/fs/cgroup/memory"
    put(root, f"{memory}/memory.limit_in_bytes", 9223372036854771712)
    put(root, f"{memory}/memory.usage_in_bytes", 3 * GIB)
    put(root, f"{memory}/box/memory.limit_in_bytes", 2 * GIB)
    put(root, f"{memory}/box/memory.usage_in_bytes", 3 * GIB)
    assert available_bytes(root) == 0
    put(root, f"{memory}/box/memory.stat", f"total_inactive_file {2 * GIB}\n")
    assert available_bytes(root) == GIB


def test_a_cgroup_path_from_outside_the_container_is_skipped(root: Path) -> None:
    put(root, "proc/self/cgroup", "0::/not/mounted/here\n")
    put(root, "sys/fs/cgroup/memory.max", GIB)
    put(root, "sys/fs/cgroup/memory.current", 0)
    assert available_bytes(root) == GIB


def test_a_kernel_that_says_nothing_has_nothing(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", "MemTotal: 5 kB\n")
    assert available_bytes(tmp_path) == 0
