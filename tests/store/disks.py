"""Disks that are small, or that fail: a file system of a test's own, and an fsync that reports an error."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted file system of a few MiB."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "of-somebody-else"

    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Somebody else takes the room that there is now, and nothing that comes free meanwhile."""
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT)
        try:
            taken = (self.free_bytes() - leave_bytes) // 4096 * 4096
            while taken > 0:
                try:
                    os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, taken)
                    return
                except OSError:  # the service wrote something in between
                    taken -= 16 << 10
        finally:
            os.close(descriptor)

    def empty(self) -> None:
        """And gives it back."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount a tmpfs on a new folder; skip the test where that is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700", "tmpfs", str(folder)]
    done = subprocess.run(mount, check=False, capture_output=True)
    if done.returncode:
        folder.rmdir()
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily: a process that a broken test left may still have a file open.
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


FSYNC_FAILS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int failing(void) {
    const char *armed = getenv("TEST_FSYNC_FAILS");
    int before = errno, yes = armed != NULL && access(armed, F_OK) == 0;
    errno = before;
    return yes;
}

static int sync_of(const char *name, int descriptor) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int result = real(descriptor);
    if (!failing()) return result;
    errno = EIO;
    return -1;
}

int fsync(int descriptor) { return sync_of("fsync", descriptor); }
int fdatasync(int descriptor) { return sync_of("fdatasync", descriptor); }
"""


def failing_fsync(folder: Path) -> tuple[Mapping[str, str], Path]:
    """An environment in which fsync and fdatasync report EIO while a file is there, and that file."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the failing fsync is C, and there is no C compiler")
    source, library, armed = folder / "fsync.c", folder / "fsync.so", folder / "fsync-fails"
    source.write_text(FSYNC_FAILS)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return os.environ | {"LD_PRELOAD": str(library), "TEST_FSYNC_FAILS": str(armed)}, armed
