"""The shared memory through which KV bytes cross between the processes of one host.

A sealed memfd: it has no name, so nothing is left behind by any exit (H98, B28); it needs no /dev/shm quota;
no peer can cut it short under us. Its space is reserved, not promised (H94): the first touch can never raise
SIGBUS.

The owner (coordinator) creates it, grants leases (`LeaseBook`) and publishes them in the header. A worker
attaches, and gets at bytes only through a lease that is in force. The end of a lease is always: `retire`
(fence), `wipe` (off the critical path, any thread), and only then `LeaseBook.release`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from typing import Final

from swapd.errors import Code, SwapdError
from swapd.messages.generation import Lease
from swapd.transport.arena_header import HEADER_BYTES, RegionTable, preamble, read_preamble
from swapd.transport.memory import available_bytes

KEEP_FREE_BYTES: Final = 64 << 20
"""Left to everyone else when the arena is reserved."""
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
WIPE_STEP_BYTES: Final = 4 << 20
"""Bytes overwritten a call, so that a wipe can be interrupted by `close` and a stop."""
STAT_BLOCK_BYTES: Final = 512

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mlock.argtypes = _libc.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_libc.memset.restype = ctypes.c_void_p


def lock_pages(address: int, length: int) -> bool:
    """Lock mapped pages in memory; False where the host does not allow it (H91)."""
    return bool(_libc.mlock(address, length) == 0)


class Arena:
    """One process's mapping of the arena. Sizes and offsets are bytes, counted from the arena's start."""

    def __init__(self, fd: int, size_bytes: int, *, owner: bool, page_locked: bool) -> None:
        """Map `fd`, which this object then owns. Use `create` or `attach`."""
        self.fd = fd
        self.size_bytes = size_bytes
        self.page_locked = page_locked
        self._closed = False
        self._locked_here = False
        # Prefaulted: no page fault in a copy. Read-only header: a worker's bug cannot revive a lease.
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        access = mmap.PROT_READ | (mmap.PROT_WRITE if owner else 0)
        self._header = mmap.mmap(fd, HEADER_BYTES, flags=flags, prot=access)
        self._data = mmap.mmap(fd, self.data_bytes, flags=flags, offset=HEADER_BYTES)
        # KV is content: it stays out of core dumps.
        self._data.madvise(mmap.MADV_DONTDUMP)
        self._view = memoryview(self._data)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._view))
        self._table = RegionTable(memoryview(self._header), size_bytes)

    @classmethod
    def create(
        cls,
        size_bytes: int,
        *,
        available: Callable[[], int] = available_bytes,
        lock: Callable[[int, int], bool] = lock_pages,
    ) -> Arena:
        """Reserve, seal, map, prefault and, where the host allows, page-lock an arena of whole pages.

        `page_locked` tells whether locking worked. Raises `arena_too_small` when `size_bytes` has no room for
        data, and `arena_unavailable` with both sizes when the memory is not there: asked first, because
        taking it could wake the OOM killer.
        """
        size = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if size <= HEADER_BYTES:
            raise SwapdError(Code.ARENA_TOO_SMALL, f"{size_bytes} bytes, the header alone has {HEADER_BYTES}")
        room = available() - KEEP_FREE_BYTES
        if size > room:
            raise _unavailable(size, f"{max(0, room)} available; lower arena_bytes or free memory")
        fd = os.memfd_create("swapd-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            arena = cls(fd, size, owner=True, page_locked=False)
        except OSError as error:
            os.close(fd)
            raise _unavailable(size, f"{max(0, room)} available; {error.strerror}") from None
        except BaseException:
            os.close(fd)
            raise
        arena._locked_here = arena.page_locked = lock(arena._address, arena.data_bytes)
        os.pwrite(fd, preamble(size, page_locked=arena.page_locked), 0)
        return arena

    @classmethod
    def attach(cls, fd: int) -> Arena:
        """Map an arena that another process created. `fd` stays the caller's.

        Seals and reservation are verified before anything is mapped, so that no touch can raise SIGBUS.
        Raises `arena_unavailable` or `version_unsupported`.
        """
        try:
            own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)
        except OSError as error:
            raise SwapdError(Code.ARENA_UNAVAILABLE, f"descriptor {fd}: {error.strerror}") from None
        try:
            size, page_locked = _verify(own)
            return cls(own, size, owner=False, page_locked=page_locked)
        except OSError as error:
            os.close(own)
            raise SwapdError(Code.ARENA_UNAVAILABLE, f"not an arena: {error.strerror}") from None
        except BaseException:
            os.close(own)
            raise

    @property
    def data_bytes(self) -> int:
        """Bytes that leases can have; `LeaseBook(data_bytes, base_offset=HEADER_BYTES)`."""
        return self.size_bytes - HEADER_BYTES

    def region(self, lease: Lease) -> memoryview:
        """Give a writable view of exactly the lease. Raises `lease_stale` (H96).

        Keep it only for one copy, and `check` again before the next.
        """
        self.check(lease)
        return self._slice(lease)

    def check(self, lease: Lease) -> None:
        """Raise `lease_stale` unless the lease is in force; cheap, used between blocks (H96)."""
        self._require_open()
        self._table.check(lease)

    def publish(self, lease: Lease) -> None:
        """Put a granted lease in force (owner only). Raises `lease_stale` for an old generation."""
        self._require_open()
        self._table.publish(lease)

    def retire(self, lease: Lease) -> None:
        """Fence a lease off: every later `region` and `check` of it is refused (owner only). Idempotent."""
        self._require_open()
        self._table.retire(lease)

    def wipe(self, lease: Lease) -> None:
        """Overwrite a retired lease's bytes with zeros (H97); any thread. Raises `lease_stale` otherwise."""
        self._require_open()
        self._table.check_retired(lease)
        with self._slice(lease) as view:
            start = self._address + lease.offset - HEADER_BYTES
            # memset through ctypes lets other threads run; a slice assignment would not.
            for at in range(0, len(view), WIPE_STEP_BYTES):
                _libc.memset(start + at, 0, min(WIPE_STEP_BYTES, len(view) - at))

    def close(self) -> None:
        """Unlock, unmap and close the descriptor. Idempotent; a `wipe` in a thread has ended before.

        Memory under a view that someone still holds is unmapped when the view goes.
        """
        if self._closed:
            return
        self._closed = True
        if self._locked_here:
            _libc.munlock(self._address, self.data_bytes)
        self._table.close()
        self._view.release()
        self._header.close()
        # Dropping the last reference but the views' is what unmaps it if `close` cannot yet.
        data = self._data
        del self._data
        with contextlib.suppress(BufferError):
            data.close()
        os.close(self.fd)

    def _slice(self, lease: Lease) -> memoryview:
        start = lease.offset - HEADER_BYTES
        return self._view[start : start + lease.size]

    def _require_open(self) -> None:
        if self._closed:
            raise SwapdError(Code.ARENA_UNAVAILABLE, "the arena was closed")


def _verify(fd: int) -> tuple[int, bool]:
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise SwapdError(Code.ARENA_UNAVAILABLE, "the descriptor is not a memfd") from None
    if seals & SEALS != SEALS:
        raise SwapdError(Code.ARENA_UNAVAILABLE, "the descriptor is not sealed against a change of its size")
    found = os.fstat(fd)
    if found.st_size <= HEADER_BYTES or found.st_size % mmap.PAGESIZE:
        raise SwapdError(Code.ARENA_UNAVAILABLE, f"{found.st_size} bytes cannot be an arena")
    if found.st_blocks * STAT_BLOCK_BYTES < found.st_size:
        raise SwapdError(Code.ARENA_UNAVAILABLE, "the arena's space is not reserved")
    return found.st_size, read_preamble(os.pread(fd, HEADER_BYTES, 0), found.st_size)


def _unavailable(needed: int, why: str) -> SwapdError:
    return SwapdError(Code.ARENA_UNAVAILABLE, f"needs {needed} bytes, {why}")
