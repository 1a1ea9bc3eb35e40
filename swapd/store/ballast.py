"""Room on the database's disk that is given up when the disk is full (B40).

A file of the service's own lies beside the database. The write that finds the disk full is undone, the file
is removed, and the write is made again in the room that it held. So what was on its way is still
written: tokens that workers had computed already, commits and aborts of moves, ends of sessions. From then on
until the file is there again, nothing new is asked for: the store is `full`.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

BALLAST_BYTES: Final = 16 << 20
LOW_PCT: Final = 10.0
"""Less free than this is worth a warning; it is over at `LOW_OVER_PCT`, so that it is told once."""
LOW_OVER_PCT: Final = 12.0


class Room(StrEnum):
    """How much room there is on the disk, as an operator is told."""

    ENOUGH = "enough"
    LOW = "low"
    FULL = "full"


class Disk(msgspec.Struct, frozen=True):
    """A file system as one who is not root may use it."""

    total_bytes: int
    free_bytes: int


def room_of(disk: Disk, before: Room) -> Room:
    """What a disk with its ballast is, after it was `before`. Pure."""
    limit_pct = LOW_PCT if before is Room.ENOUGH else LOW_OVER_PCT
    return Room.LOW if disk.free_bytes * 100.0 < disk.total_bytes * limit_pct else Room.ENOUGH


def look_at_disk(path: Path) -> Disk:
    """The file system that `path` is on, now. Raises OSError."""
    found = os.statvfs(path)
    return Disk(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


class Ballast:
    """The file and whether it holds its room. Any thread may call; one call at a time does anything."""

    def __init__(self, database: Path, size_bytes: int) -> None:
        self._path = database.with_name(f"{database.name}-ballast")
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._held = False

    @property
    def held(self) -> bool:
        """Whether there is room to give up; not so means that the disk is full."""
        return self._held

    def make(self) -> bool:
        """Hold the room, unless that would leave less than as much again; return whether it is held.

        A new file must leave something to work with: else the next write would only take it away again.
        """
        with self._lock:
            self._held = self._lies_there() or self._lay_down()
            return self._held

    def release(self) -> bool:
        """Give the room up; return whether there was any. It is usable when this returns."""
        with self._lock:
            self._held = False
            try:
                self._path.unlink()
            except OSError:
                return False
            with suppress(OSError):
                # Some file systems hand freed blocks out only once the removal itself is written.
                _sync_folder(self._path.parent)
            return True

    def _lies_there(self) -> bool:
        try:
            found = self._path.stat()
        except OSError:
            return False
        return found.st_size == self._size_bytes and found.st_blocks * 512 >= self._size_bytes

    def _lay_down(self) -> bool:
        try:
            self._path.unlink(missing_ok=True)
            if look_at_disk(self._path.parent).free_bytes < 2 * self._size_bytes:
                return False
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._size_bytes)
            finally:
                os.close(descriptor)
        except OSError:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            return False
        return self._lies_there()


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
