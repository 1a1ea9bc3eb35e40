from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from swapd.errors import Code, SwapdError
from swapd.transport.lock import FileLock
from swapd.transport.paths import ipc_endpoint
from swapd.transport.sockets import Context, open_socket

FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
"""Python 3.12 and later warn of forks beside threads; these children touch nothing but the lock."""

HOLD = """
import sys
from swapd.errors import Code
from swapd.transport.lock import FileLock
lock = FileLock.acquire(sys.argv[1], Code.COORDINATOR_LOCK_HELD)
print("held", flush=True)
sys.stdin.read()
"""


def is_held(path: Path) -> bool:
    try:
        FileLock.acquire(path, Code.COORDINATOR_LOCK_HELD).release()
    except SwapdError as error:
        return error.code is Code.COORDINATOR_LOCK_HELD
    return False


@pytest.mark.usefixtures("no_fd_leak")
def test_a_second_holder_fails_at_once_and_learns_who_it_is(tmp_path: Path) -> None:
    """H122: `coordinator_lock_held`, across processes; SIGKILL gives the lock back."""
    path = tmp_path / "coordinator.lock"
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(SwapdError) as caught:
            FileLock.acquire(path, Code.COORDINATOR_LOCK_HELD)
        assert caught.value.code is Code.COORDINATOR_LOCK_HELD
        assert f"process {child.pid}" in caught.value.detail
        child.kill()
    assert not is_held(path)


@pytest.mark.usefixtures("no_fd_leak")
def test_release_is_idempotent_and_leaves_no_file(tmp_path: Path) -> None:
    """H122"""
    lock = FileLock.acquire(tmp_path / "l", Code.WORKER_LOCK_HELD)
    assert (tmp_path / "l").read_text() == f"{os.getpid()}\n"
    assert stat.S_IMODE((tmp_path / "l").stat().st_mode) == 0o600
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_longer_pid_of_a_dead_holder_leaves_no_digits(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("99999999999\n")
    lock = FileLock.acquire(tmp_path / "l", Code.WORKER_LOCK_HELD)
    assert (tmp_path / "l").read_text() == f"{os.getpid()}\n"
    lock.release()


@FORKS
def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """H123: a child that forks and never execs outlives the holder, and the lock is free."""
    path = tmp_path / "l"
    lock = FileLock.acquire(path, Code.COORDINATOR_LOCK_HELD)
    fd = lock._fd
    assert fd is not None
    running, child_end = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        os.write(child_end, b"!")
        signal.pause()
        os._exit(0)
    os.read(running, 1)
    try:
        # The holder dies: its descriptors close, without LOCK_UN.
        lock._forget_in_child()
        assert not is_held(path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(running)
        os.close(child_end)


@FORKS
def test_a_forked_child_does_not_take_the_lock_from_its_parent(tmp_path: Path) -> None:
    """H123: the child's copy is closed, not unlocked."""
    path = tmp_path / "l"
    lock = FileLock.acquire(path, Code.COORDINATOR_LOCK_HELD)
    child = os.fork()
    if child == 0:  # pragma: no cover
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert is_held(path)
    lock.release()


def test_an_executed_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    """H123: close-on-exec."""
    lock = FileLock.acquire(tmp_path / "l", Code.COORDINATOR_LOCK_HELD)
    assert lock._fd is not None
    assert not os.get_inheritable(lock._fd)
    lock.release()


def test_a_lock_file_replaced_after_open_is_locked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H123: between our open and our lock the holder removes its file and another process makes a new one."""
    path = tmp_path / "l"
    opened = os.open
    replaced: list[FileLock] = []

    def open_then_replace(name: str, flags: int, mode: int = 0o777) -> int:
        fd = opened(name, flags, mode)
        if not replaced:
            os.unlink(path)
            monkeypatch.setattr(os, "open", opened)
            replaced.append(FileLock.acquire(path, Code.WORKER_LOCK_HELD))
        return fd

    monkeypatch.setattr(os, "open", open_then_replace)
    with pytest.raises(SwapdError) as caught:
        FileLock.acquire(path, Code.WORKER_LOCK_HELD)
    assert caught.value.code is Code.WORKER_LOCK_HELD
    replaced[0].release()


def test_a_file_that_somebody_put_in_our_place_is_not_removed(tmp_path: Path) -> None:
    """H123"""
    lock = FileLock.acquire(tmp_path / "l", Code.WORKER_LOCK_HELD)
    (tmp_path / "l").unlink()
    (tmp_path / "l").write_text("theirs")
    lock.release()
    assert (tmp_path / "l").read_text() == "theirs"


@pytest.mark.parametrize("name", ["link", "missing/l"])
def test_a_lock_that_cannot_be_opened_names_its_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SwapdError) as caught:
        FileLock.acquire(tmp_path / name, Code.WORKER_LOCK_HELD)
    assert caught.value.code is Code.CONFIG_INVALID
    assert name in caught.value.detail
    assert not (tmp_path / "elsewhere").exists()


async def test_libzmq_lets_a_second_bind_steal_a_live_path_and_the_lock_prevents_it(
    short_dir: str, context: Context
) -> None:
    """H106: why a lock must come before the bind; this fails if a libzmq ever refuses by itself."""
    endpoint = ipc_endpoint(short_dir, "w")
    lock = FileLock.acquire(os.path.join(short_dir, "w.lock"), Code.WORKER_LOCK_HELD)
    async with (
        open_socket(context, zmq.PULL, bind=endpoint) as robbed,
        open_socket(context, zmq.PULL, bind=endpoint) as thief,
        open_socket(context, zmq.PUSH, connect=endpoint) as sender,
    ):
        await sender.send_multipart([b"for the first"])
        assert await thief.recv_multipart() == [b"for the first"]
        assert robbed.statistics().received == 0
        with pytest.raises(SwapdError) as caught:
            FileLock.acquire(os.path.join(short_dir, "w.lock"), Code.WORKER_LOCK_HELD)
        assert caught.value.code is Code.WORKER_LOCK_HELD
    lock.release()
