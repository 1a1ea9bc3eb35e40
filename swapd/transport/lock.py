"""One process per store and per worker id, by `flock`.

libzmq unlinks and steals a live ipc path without an error, so this lock, taken before any bind, is what
makes the second process fail (H106).

Two traps (H123). A child that forks and does not exec shares the open file description and would keep the
lock after our death: a fork hook closes it there. And a lock file that was unlinked gives the next process a
fresh file to lock: after locking, the path must still lead to the file that was locked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from typing import Final

from swapd.errors import Code, SwapdError

REPLACED_ATTEMPTS: Final = 16
"""Times the file may be replaced between open and lock before we take it for held."""
PID_BYTES_MAX: Final = 32

_held: weakref.WeakSet[FileLock]


class FileLock:
    """An exclusive lock on a file that holds the owner's pid; gone with the process, however it ends."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd: int | None = fd
        _held.add(self)

    @classmethod
    def acquire(cls, path: str | os.PathLike[str], code: Code) -> FileLock:
        """Take the lock, or raise `SwapdError(code)` at once when another process has it (H122)."""
        name = os.fspath(path)
        for _ in range(REPLACED_ATTEMPTS):
            fd = _open(name)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _still_there(name, fd):
                    os.close(fd)
                    continue
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            except BlockingIOError:
                holder = os.pread(fd, PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
                os.close(fd)
                detail = f"{name} is held by process {holder}" if holder.isdigit() else f"{name} is held"
                raise SwapdError(code, detail) from None
            except OSError as error:
                os.close(fd)
                raise SwapdError(Code.CONFIG_INVALID, f"{name}: {error.strerror}") from None
            return cls(name, fd)
        raise SwapdError(code, f"{name} is being replaced by others")

    def release(self) -> None:
        """Give the lock back and remove the file. Idempotent.

        Removing it is safe only because everyone re-checks the path after locking.
        """
        fd, self._fd = self._fd, None
        if fd is None:
            return
        _held.discard(self)
        try:
            if _still_there(self.path, fd):
                os.unlink(self.path)
            fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)

    def _forget_in_child(self) -> None:
        # Only close: LOCK_UN here would take the lock from the parent.
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _open(name: str) -> int:
    try:
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        why = "is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise SwapdError(Code.CONFIG_INVALID, f"{name}: {why}") from None


def _still_there(name: str, fd: int) -> bool:
    ours = os.fstat(fd)
    try:
        there = os.stat(name, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _forget_all_in_child() -> None:
    for lock in list(_held):
        lock._forget_in_child()
    _held.clear()


_held = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_all_in_child)
