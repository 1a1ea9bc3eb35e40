from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator

import pytest

from swapd.errors import Code, SwapdError
from swapd.messages.generation import Lease
from swapd.transport import arena as arena_module
from swapd.transport.arena import KEEP_FREE_BYTES, SEALS, Arena
from swapd.transport.arena_header import HEADER_BYTES, REGIONS, preamble
from swapd.transport.leases import LeaseBook

PAGE = mmap.PAGESIZE
SIZE = HEADER_BYTES + 16 * PAGE

pytestmark = pytest.mark.usefixtures("no_fd_leak")


@pytest.fixture
def owner() -> Iterator[Arena]:
    arena = Arena.create(SIZE)
    yield arena
    arena.close()


@pytest.fixture
def worker(owner: Arena) -> Iterator[Arena]:
    arena = Arena.attach(owner.fd)
    yield arena
    arena.close()


@pytest.fixture
def book(owner: Arena) -> LeaseBook:
    return LeaseBook(owner.data_bytes, base_offset=HEADER_BYTES, regions=REGIONS)


def lend(owner: Arena, book: LeaseBook, size: int) -> Lease:
    lease = book.grant(size)
    assert lease is not None
    owner.publish(lease)
    return lease


def write(arena: Arena, lease: Lease, data: bytes) -> None:
    with arena.region(lease) as view:
        view[: len(data)] = data


def read(arena: Arena, lease: Lease) -> bytes:
    with arena.region(lease) as view:
        return bytes(view)


def refusal(code: Code, call: object, *arguments: object) -> SwapdError:
    assert callable(call)
    with pytest.raises(SwapdError) as caught:
        call(*arguments)
    assert caught.value.code is code
    return caught.value


def test_bytes_written_by_one_process_mapping_are_read_by_the_other(
    owner: Arena, worker: Arena, book: LeaseBook
) -> None:
    first, second = lend(owner, book, 5000), lend(owner, book, 3)
    write(worker, first, b"a" * 5000)
    write(owner, second, b"xyz")
    assert read(owner, first) == b"a" * 5000
    assert read(worker, second) == b"xyz"


def test_a_retired_lease_is_refused_for_reading_and_writing(
    owner: Arena, worker: Arena, book: LeaseBook
) -> None:
    """H96"""
    lease = lend(owner, book, PAGE)
    write(worker, lease, b"x")
    owner.retire(lease)
    owner.retire(lease)
    for arena in (owner, worker):
        refusal(Code.LEASE_STALE, arena.region, lease)
        refusal(Code.LEASE_STALE, arena.check, lease)


def test_a_regions_next_lease_does_not_open_it_for_the_last_one(
    owner: Arena, worker: Arena, book: LeaseBook
) -> None:
    """H96: a late writer of an old move never reaches the new one's bytes."""
    old = lend(owner, book, PAGE)
    owner.retire(old)
    owner.wipe(old)
    book.release(old)
    new = lend(owner, book, PAGE)
    assert (new.region, new.offset, new.generation) == (old.region, old.offset, old.generation + 1)
    worker.check(new)
    refusal(Code.LEASE_STALE, worker.region, old)
    refusal(Code.LEASE_STALE, owner.publish, old)
    owner.retire(old)
    worker.check(new)
    refusal(Code.LEASE_STALE, owner.wipe, old)


def test_a_lease_that_was_never_published_is_refused(owner: Arena, worker: Arena, book: LeaseBook) -> None:
    """H96"""
    lease = book.grant(PAGE)
    assert lease is not None
    refusal(Code.LEASE_STALE, worker.region, lease)
    owner.retire(lease)
    refusal(Code.LEASE_STALE, owner.wipe, lease)


@pytest.mark.parametrize(
    "change",
    [{"region": -1}, {"region": REGIONS}, {"offset": 0}, {"offset": HEADER_BYTES + PAGE}, {"size": PAGE + 1}],
)
def test_a_lease_with_a_changed_field_is_refused(
    owner: Arena, worker: Arena, book: LeaseBook, change: dict[str, int]
) -> None:
    """H96: a lease is the place that was published, not only its number."""
    lease = lend(owner, book, PAGE)
    fields = {"region": lease.region, "generation": 1, "offset": lease.offset, "size": lease.size} | change
    refusal(Code.LEASE_STALE, worker.region, Lease(**fields))


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (0, PAGE),
        (HEADER_BYTES - 1, 2),
        (HEADER_BYTES, 0),
        (HEADER_BYTES, SIZE),
        (SIZE, 1),
        (HEADER_BYTES, -1),
    ],
)
def test_a_place_outside_of_the_data_cannot_be_published(owner: Arena, offset: int, size: int) -> None:
    refusal(Code.LEASE_STALE, owner.publish, Lease(0, 1, offset, size))


def test_a_wiped_lease_leaves_no_byte_and_its_neighbour_untouched(owner: Arena, book: LeaseBook) -> None:
    """H97; from another thread."""
    lease, neighbour = lend(owner, book, 3 * PAGE), lend(owner, book, PAGE)
    write(owner, lease, b"s" * 3 * PAGE)
    write(owner, neighbour, b"n" * PAGE)
    owner.retire(lease)
    thread = threading.Thread(target=owner.wipe, args=(lease,))
    thread.start()
    thread.join()
    assert os.pread(owner.fd, 3 * PAGE, lease.offset) == bytes(3 * PAGE)
    assert read(owner, neighbour) == b"n" * PAGE


def test_a_wipe_is_whole_whatever_its_step(
    owner: Arena, book: LeaseBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H97"""
    monkeypatch.setattr(arena_module, "WIPE_STEP_BYTES", 1000)
    size = 2 * PAGE
    lease, neighbour = lend(owner, book, size), lend(owner, book, 1)
    write(owner, lease, b"s" * size)
    write(owner, neighbour, b"n")
    owner.retire(lease)
    owner.wipe(lease)
    assert os.pread(owner.fd, size, lease.offset) == bytes(size)
    assert read(owner, neighbour) == b"n"


def test_a_lease_in_force_cannot_be_wiped(owner: Arena, book: LeaseBook) -> None:
    lease = lend(owner, book, PAGE)
    refusal(Code.LEASE_STALE, owner.wipe, lease)


def test_a_worker_cannot_revive_a_lease(owner: Arena, worker: Arena, book: LeaseBook) -> None:
    """H96: the header is read-only in an attached process."""
    lease = lend(owner, book, PAGE)
    for call in (worker.retire, worker.publish):
        with pytest.raises(TypeError):
            call(Lease(lease.region, lease.generation + (call == worker.publish), lease.offset, lease.size))
    worker.check(lease)


def test_nobody_can_change_the_size(owner: Arena) -> None:
    """B28: a peer that cut it short would kill the other with SIGBUS."""
    for size in (0, SIZE - PAGE, SIZE + PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(owner.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(owner.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_the_space_is_reserved_and_has_no_name(owner: Arena) -> None:
    """H94, H98, B28"""
    found = os.fstat(owner.fd)
    assert found.st_size == owner.size_bytes == SIZE
    assert found.st_blocks * 512 >= SIZE
    assert found.st_nlink == 0
    assert not os.get_inheritable(owner.fd)


def test_sizes_are_whole_pages_and_add_up() -> None:
    arena = Arena.create(SIZE - 1)
    assert (arena.size_bytes, arena.data_bytes) == (SIZE, SIZE - HEADER_BYTES)
    arena.close()


def test_an_arena_without_room_for_data_is_refused() -> None:
    assert str(HEADER_BYTES) in refusal(Code.ARENA_TOO_SMALL, Arena.create, HEADER_BYTES).detail


def test_an_arena_over_all_memory_is_refused_with_both_sizes() -> None:
    """H93, H94: for real: nothing is allocated, so nothing can be killed."""
    refused = refusal(Code.ARENA_UNAVAILABLE, Arena.create, 1 << 50)
    assert f"needs {1 << 50} bytes" in refused.detail
    assert "available" in refused.detail


@pytest.mark.parametrize(
    ("free", "fits"), [(SIZE + KEEP_FREE_BYTES, True), (SIZE + KEEP_FREE_BYTES - 1, False)]
)
def test_memory_is_asked_for_before_it_is_taken(
    free: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H94: low MemAvailable, at its boundary."""
    if fits:
        Arena.create(SIZE, available=lambda: free).close()
        return

    def never(*arguments: object) -> int:
        raise AssertionError("memory was taken")

    monkeypatch.setattr(os, "memfd_create", never)
    with pytest.raises(SwapdError) as caught:
        Arena.create(SIZE, available=lambda: free)
    assert caught.value.code is Code.ARENA_UNAVAILABLE
    assert f"needs {SIZE} bytes, {free - KEEP_FREE_BYTES} available" in caught.value.detail


def test_a_reservation_that_fails_is_an_answer_and_leaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """H94"""

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert "No space left" in refusal(Code.ARENA_UNAVAILABLE, Arena.create, SIZE).detail


def test_pages_that_could_not_be_locked_are_reported_so_and_the_arena_works(book: LeaseBook) -> None:
    """H91: failure does not stop the start."""
    arena = Arena.create(SIZE, lock=lambda address, length: False)
    attached = Arena.attach(arena.fd)
    assert not arena.page_locked
    assert not attached.page_locked
    lease = lend(arena, book, PAGE)
    write(attached, lease, b"works")
    assert read(arena, lease)[:5] == b"works"
    attached.close()
    arena.close()


def locked_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmLck:"))


def test_page_locked_tells_the_truth() -> None:
    """H91: as the kernel counts it, and `close` gives it back."""
    before = locked_kib()
    arena = Arena.create(SIZE)
    attached = Arena.attach(arena.fd)
    gained = locked_kib() - before
    assert arena.page_locked == attached.page_locked
    assert gained == (arena.data_bytes // 1024 if arena.page_locked else 0)
    attached.close()
    arena.close()
    assert locked_kib() == before


UNPRIVILEGED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
from swapd.transport.arena import Arena
arena = Arena.create(int(sys.argv[1]))
print(arena.page_locked)
arena.close()
"""


def test_without_the_right_to_lock_the_kernels_refusal_is_the_answer() -> None:
    """H91: RLIMIT_MEMLOCK 0 and no capability."""
    # Imported before the change of user: the source tree may not be readable to nobody.
    code = "import swapd.transport.arena\n" + UNPRIVILEGED
    done = subprocess.run(
        [sys.executable, "-c", code, str(SIZE)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_an_unlimited_file_size_is_not_assumed() -> None:
    """H94: RLIMIT_FSIZE counts for a memfd too; it must be an answer, not a signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, hard))
    try:
        refusal(Code.ARENA_UNAVAILABLE, Arena.create, SIZE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def memfd(*, size: int = SIZE, seals: int = SEALS, head: bytes | None = None, reserve: bool = True) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if reserve:
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)
    os.pwrite(fd, preamble(size, page_locked=False) if head is None else head, 0)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"seals": 0}, Code.ARENA_UNAVAILABLE),
        ({"seals": SEALS & ~fcntl.F_SEAL_SHRINK}, Code.ARENA_UNAVAILABLE),
        ({"reserve": False}, Code.ARENA_UNAVAILABLE),
        ({"size": HEADER_BYTES}, Code.ARENA_UNAVAILABLE),
        ({"size": SIZE + 1}, Code.ARENA_UNAVAILABLE),
        ({"head": bytes(64)}, Code.ARENA_UNAVAILABLE),
        ({"head": preamble(SIZE + PAGE, page_locked=False)}, Code.ARENA_UNAVAILABLE),
        (
            {"head": preamble(SIZE, page_locked=False).replace(b"\x01\0\0\0", b"\x02\0\0\0", 1)},
            Code.VERSION_UNSUPPORTED,
        ),
    ],
)
def test_a_descriptor_that_is_not_a_safe_arena_is_not_mapped(options: dict[str, object], code: Code) -> None:
    """B28, H94: unsealed, unreserved, of another size, magic or version."""
    fd = memfd(**options)  # type: ignore[arg-type]  # a table of keyword arguments
    refusal(code, Arena.attach, fd)
    os.close(fd)


def test_files_pipes_and_closed_descriptors_are_not_arenas() -> None:
    with tempfile.TemporaryFile() as file:
        refusal(Code.ARENA_UNAVAILABLE, Arena.attach, file.fileno())
    read_end, write_end = os.pipe()
    refusal(Code.ARENA_UNAVAILABLE, Arena.attach, read_end)
    os.close(read_end)
    os.close(write_end)
    refusal(Code.ARENA_UNAVAILABLE, Arena.attach, read_end)


def test_attach_leaves_the_callers_descriptor_alone(owner: Arena) -> None:
    fd = os.dup(owner.fd)
    Arena.attach(fd).close()
    os.fstat(fd)
    os.close(fd)


def test_close_is_idempotent_and_ends_all_use(owner: Arena, book: LeaseBook) -> None:
    lease = lend(owner, book, PAGE)
    owner.close()
    owner.close()
    for call in (owner.region, owner.check, owner.publish, owner.retire, owner.wipe):
        refusal(Code.ARENA_UNAVAILABLE, call, lease)


def test_a_view_that_is_still_held_outlives_close(owner: Arena, book: LeaseBook) -> None:
    """The memory goes with the view: no dangling pointer, no error in the shutdown path."""
    lease = lend(owner, book, PAGE)
    view = owner.region(lease)
    view[:2] = b"ok"
    owner.close()
    assert bytes(view[:2]) == b"ok"
    view.release()


CHILD = """
import sys
from swapd.messages.generation import Lease
from swapd.transport.arena import Arena
arena = Arena.attach(int(sys.argv[1]))
lease = Lease(*map(int, sys.argv[2:6]))
with arena.region(lease) as view:
    view[:] = bytes(view[:])[::-1]
arena.close()
"""


def test_a_spawned_process_inherits_it(owner: Arena, book: LeaseBook) -> None:
    """B28"""
    lease = lend(owner, book, 6)
    write(owner, lease, b"abcdef")
    numbers = (owner.fd, lease.region, lease.generation, lease.offset, lease.size)
    subprocess.run([sys.executable, "-c", CHILD, *map(str, numbers)], pass_fds=[owner.fd], check=True)
    assert read(owner, lease) == b"fedcba"


def test_a_hundred_arenas_leave_nothing_behind() -> None:
    """H98"""
    for _ in range(100):
        owner = Arena.create(SIZE)
        Arena.attach(owner.fd).close()
        owner.close()
