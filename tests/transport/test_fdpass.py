from __future__ import annotations

import array
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from swapd.errors import Code, SwapdError
from swapd.messages.generation import Lease
from swapd.transport import fdpass
from swapd.transport.arena import Arena
from swapd.transport.arena_header import HEADER_BYTES, REGIONS
from swapd.transport.fdpass import ArenaAnswer, ArenaHeader, OnArena, send_arena, serve_arena_socket
from swapd.transport.leases import LeaseBook

SIZE = HEADER_BYTES + (1 << 16)
TIMEOUT_S = 20.0

pytestmark = pytest.mark.usefixtures("no_fd_leak")


@pytest.fixture
def owner() -> Iterator[Arena]:
    arena = Arena.create(SIZE)
    yield arena
    arena.close()


@pytest.fixture
def path(short_dir: str) -> str:
    return os.path.join(short_dir, "arena")


def exists(path: str) -> bool:
    return os.path.lexists(path)


def start_child(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@asynccontextmanager
async def serving(path: str, on_arena: OnArena) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_arena_socket, path, on_arena)
        yield
        nursery.cancel_scope.cancel()


class Received:
    """Keeps what arrives, as a worker would, and closes it at the end."""

    def __init__(self) -> None:
        self.arenas: list[tuple[Arena, int]] = []

    def __call__(self, arena: Arena, generation: int) -> None:
        assert not os.get_inheritable(arena.fd)
        self.arenas.append((arena, generation))

    def close(self) -> None:
        for arena, _ in self.arenas:
            arena.close()


@pytest.fixture
def received() -> Iterator[Received]:
    made = Received()
    yield made
    made.close()


async def test_an_arena_arrives_with_its_generation(owner: Arena, path: str, received: Received) -> None:
    """B28"""
    async with serving(path, received):
        for generation in (3, 4):
            await send_arena(path, owner.fd, generation, timeout_s=TIMEOUT_S)
    assert [(arena.size_bytes, generation) for arena, generation in received.arenas] == [(SIZE, 3), (SIZE, 4)]
    os.fstat(owner.fd)


async def test_a_process_started_meanwhile_does_not_inherit_it(
    owner: Arena, path: str, received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B28: close-on-exec from the moment of its arrival, before it is attached."""
    inheritable: list[bool] = []
    attach = Arena.attach

    def look(fd: int) -> Arena:
        inheritable.append(os.get_inheritable(fd))
        return attach(fd)

    monkeypatch.setattr(Arena, "attach", look)
    async with serving(path, received):
        await send_arena(path, owner.fd, 1, timeout_s=TIMEOUT_S)
    assert inheritable == [False]


async def test_an_asynchronous_receiver_is_awaited_before_the_sender_goes_on(owner: Arena, path: str) -> None:
    done: list[int] = []

    async def on_arena(arena: Arena, generation: int) -> None:
        await trio.lowlevel.checkpoint()
        arena.close()
        done.append(generation)

    async with serving(path, on_arena):
        await send_arena(path, owner.fd, 7, timeout_s=TIMEOUT_S)
        assert done == [7]


CHILD = """
import sys, trio
from swapd.messages.generation import Lease
from swapd.transport.arena import Arena
from swapd.transport.fdpass import serve_arena_socket

lease = Lease(*map(int, sys.argv[2:6]))

async def main() -> None:
    async with trio.open_nursery() as nursery:
        def on_arena(arena: Arena, generation: int) -> None:
            with arena.region(lease) as view:
                view[:] = bytes(view[:])[::-1]
            arena.close()
        await nursery.start(serve_arena_socket, sys.argv[1], on_arena)
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()

trio.run(main)
"""


async def test_a_real_worker_process_attaches_and_both_see_the_same_bytes(owner: Arena, path: str) -> None:
    """B28, H98: the child's socket file is gone after its exit."""
    lease = LeaseBook(owner.data_bytes, base_offset=HEADER_BYTES, regions=REGIONS).grant(6)
    assert lease is not None
    owner.publish(lease)
    with owner.region(lease) as view:
        view[:] = b"abcdef"
    numbers = map(str, (lease.region, lease.generation, lease.offset, lease.size))
    command = [sys.executable, "-c", CHILD, path, *numbers]
    with start_child(command) as child:
        assert child.stdout is not None
        assert await trio.to_thread.run_sync(child.stdout.readline) == "ready\n"
        await send_arena(path, owner.fd, 1, timeout_s=TIMEOUT_S)
        with owner.region(lease) as view:
            assert bytes(view) == b"fedcba"
        assert child.stdin is not None
        child.stdin.close()
        assert await trio.to_thread.run_sync(child.wait) == 0
    assert not exists(path)


async def test_the_socket_belongs_to_its_user_alone_and_goes_on_exit(path: str, received: Received) -> None:
    """H107, H98"""
    async with serving(path, received):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert not exists(path)


async def test_a_socket_file_left_by_a_killed_worker_is_replaced(
    owner: Arena, path: str, received: Received
) -> None:
    """H115"""
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)
    async with serving(path, received):
        await send_arena(path, owner.fd, 1, timeout_s=TIMEOUT_S)


async def test_a_file_in_the_way_is_not_removed(path: str, received: Received) -> None:
    await trio.Path(path).write_text("someone's")
    with pytest.raises(SwapdError) as caught:
        await serve_arena_socket(path, received)
    assert caught.value.code is Code.CONFIG_INVALID
    assert await trio.Path(path).read_text() == "someone's"


async def test_a_path_over_the_limit_is_refused_on_both_sides(short_dir: str, received: Received) -> None:
    """H105"""
    path = os.path.join(short_dir, "x" * 108)
    with pytest.raises(SwapdError) as caught:
        await serve_arena_socket(path, received)
    assert caught.value.code is Code.SOCKET_PATH_TOO_LONG
    with pytest.raises(SwapdError) as caught:
        await send_arena(path, 0, 1, timeout_s=TIMEOUT_S)
    assert caught.value.code is Code.SOCKET_PATH_TOO_LONG


async def test_nobody_listening_is_an_answer(owner: Arena, path: str) -> None:
    with pytest.raises(SwapdError) as caught:
        await send_arena(path, owner.fd, 1, timeout_s=TIMEOUT_S)
    assert caught.value.code is Code.ARENA_UNAVAILABLE
    assert path in caught.value.detail


async def test_a_worker_that_does_not_answer_costs_only_the_deadline(owner: Arena, path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(path)
        silent.listen()
        with pytest.raises(SwapdError) as caught:
            await send_arena(path, owner.fd, 1, timeout_s=0.05)
    assert caught.value.code is Code.TIMEOUT


@pytest.mark.parametrize("answer", [b"", b"\xc1", b"x" * 200])
async def test_an_answer_that_is_none_does_not_count_as_success(
    owner: Arena, path: str, answer: bytes
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()

        def reply() -> None:
            peer, _ = listener.accept()
            with peer:
                _, ancillary, _, _ = peer.recvmsg(256, socket.CMSG_SPACE(4))
                os.close(array.array("i", ancillary[0][2])[0])
                if answer:
                    peer.send(answer)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, reply)
            with pytest.raises(SwapdError) as caught:
                await send_arena(path, owner.fd, 1, timeout_s=TIMEOUT_S)
    assert caught.value.code is Code.ARENA_UNAVAILABLE


async def test_the_receivers_refusal_reaches_the_sender_and_the_arena_is_closed(
    owner: Arena, path: str
) -> None:
    seen: list[Arena] = []

    def refuse(arena: Arena, generation: int) -> None:
        seen.append(arena)
        raise SwapdError(Code.FENCED, "generation 1, newest is 2")

    async with serving(path, refuse):
        with pytest.raises(SwapdError) as caught:
            await send_arena(path, owner.fd, 1, timeout_s=TIMEOUT_S)
    assert caught.value.code is Code.FENCED
    assert caught.value.detail == "generation 1, newest is 2"
    with pytest.raises(SwapdError):
        seen[0].check(Lease(0, 1, HEADER_BYTES, 1))


async def raw_exchange(path: str, data: bytes, fds: list[int]) -> ArenaAnswer:
    """Send any packet and any descriptors; give the answer."""
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        await peer.connect(path)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []
        with trio.fail_after(TIMEOUT_S):
            await peer.sendmsg([data], rights)
            return msgspec.msgpack.decode(await peer.recv(1000), type=ArenaAnswer)


GOOD = msgspec.msgpack.encode(ArenaHeader(1, SIZE))


@pytest.mark.parametrize(
    ("data", "copies", "code"),
    [
        (GOOD, 0, Code.FRAME_MALFORMED),
        (GOOD, 2, Code.FRAME_MALFORMED),
        (GOOD, 4, Code.FRAME_MALFORMED),
        (GOOD, 30, Code.FRAME_TOO_LARGE),
        (b"\xc1", 1, Code.FRAME_MALFORMED),
        (b"{}", 1, Code.FRAME_MALFORMED),
        (GOOD + b"\0", 1, Code.FRAME_MALFORMED),
        (GOOD.ljust(257, b"\0"), 1, Code.FRAME_TOO_LARGE),
        (msgspec.msgpack.encode({"generation": 1, "size_bytes": SIZE, "more": 1}), 1, Code.FRAME_MALFORMED),
        (msgspec.msgpack.encode(ArenaHeader(1, SIZE + 1)), 1, Code.FRAME_MALFORMED),
    ],
    ids=[
        "no descriptor",
        "two descriptors",
        "four descriptors",
        "more descriptors than can be taken",
        "no msgpack",
        "another type",
        "trailing byte",
        "too long",
        "unknown field",
        "another size",
    ],
)
async def test_a_malformed_packet_is_refused_and_the_next_peer_served(
    owner: Arena, path: str, received: Received, data: bytes, copies: int, code: Code
) -> None:
    """H98: every descriptor that came along is closed (the fixture counts)."""
    async with serving(path, received):
        assert (await raw_exchange(path, data, [owner.fd] * copies)).code == code
        assert received.arenas == []
        await send_arena(path, owner.fd, 1, timeout_s=TIMEOUT_S)
    assert len(received.arenas) == 1


async def test_a_descriptor_that_is_not_an_arena_is_refused(path: str, received: Received) -> None:
    """B28"""
    with tempfile.TemporaryFile() as file:
        async with serving(path, received):
            answer = await raw_exchange(path, GOOD, [file.fileno()])
    assert answer.code == Code.ARENA_UNAVAILABLE


async def test_peers_that_hang_up_or_say_nothing_cost_only_their_connections(
    owner: Arena, path: str, received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent peers hold every slot until their deadline, then the waiting one is served."""
    monkeypatch.setattr(fdpass, "CONNECTION_TIMEOUT_S", 0.05)
    async with serving(path, received):
        silent = []
        for _ in range(fdpass.MAX_CONNECTIONS + 1):
            peer = trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            await peer.connect(path)
            silent.append(peer)
        gone = trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        await gone.connect(path)
        gone.close()
        await wait_all_tasks_blocked()
        # Those that hold the slots have begun; whoever gets one after them may take its time.
        monkeypatch.setattr(fdpass, "CONNECTION_TIMEOUT_S", TIMEOUT_S)
        await send_arena(path, owner.fd, 1, timeout_s=TIMEOUT_S)
        for peer in silent:
            peer.close()
    assert len(received.arenas) == 1


async def test_a_receiver_past_the_deadline_is_cancelled_and_the_arena_closed(
    owner: Arena, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fdpass, "CONNECTION_TIMEOUT_S", 0.05)

    async def hang(arena: Arena, generation: int) -> None:
        await trio.sleep_forever()

    async with serving(path, hang):
        with pytest.raises(SwapdError) as caught:
            await send_arena(path, owner.fd, 1, timeout_s=TIMEOUT_S)
    assert caught.value.code is Code.ARENA_UNAVAILABLE


async def test_an_accept_without_descriptors_left_is_tried_again(
    owner: Arena, path: str, received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([OSError(24, "Too many open files"), OSError(103, "aborted")])
    with fdpass._socket() as any_socket:
        concrete = type(any_socket)
    accept = concrete.accept

    async def failing(self: trio.socket.SocketType) -> object:
        if (failure := next(failures, None)) is not None:
            raise failure
        return await accept(self)

    monkeypatch.setattr(fdpass, "ACCEPT_PAUSE_S", 0)
    monkeypatch.setattr(concrete, "accept", failing)
    async with serving(path, received):
        await send_arena(path, owner.fd, 1, timeout_s=TIMEOUT_S)
    assert len(received.arenas) == 1


INTRUDER = """
import array, os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
peer.connect(sys.argv[1])
rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))
try:
    peer.sendmsg([bytes.fromhex(sys.argv[2])], [rights])
    while peer.recv(1000):
        pass
except (BrokenPipeError, ConnectionResetError):
    pass  # refused before anything was read
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
async def test_another_user_is_refused_even_where_the_modes_would_let_him(
    short_dir: str, path: str, received: Received, caplog: pytest.LogCaptureFixture
) -> None:
    """H107"""
    os.chmod(short_dir, 0o755)
    async with serving(path, received):
        os.chmod(path, 0o666)
        await trio.run_process([sys.executable, "-c", INTRUDER, path, GOOD.hex()])
    assert [vars(record)["code"] for record in caplog.records] == [Code.UNAUTHENTICATED]
    assert received.arenas == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
async def test_the_arena_is_not_given_to_another_users_listener(
    owner: Arena, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H107"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(SwapdError) as caught:
            await send_arena(path, owner.fd, 1, timeout_s=TIMEOUT_S)
        peer, _ = listener.accept()
        with peer:
            assert peer.recvmsg(100, socket.CMSG_SPACE(4))[:2] == (b"", [])
    assert "another user" in caught.value.detail


async def test_cancelling_the_server_while_a_peer_is_served_leaves_nothing(path: str, owner: Arena) -> None:
    """H98"""

    async def hang(arena: Arena, generation: int) -> None:
        await trio.sleep_forever()

    async def send_to_nobody() -> None:
        with pytest.raises(SwapdError):
            await send_arena(path, owner.fd, 1, timeout_s=TIMEOUT_S)

    async with trio.open_nursery() as nursery, serving(path, hang):
        nursery.start_soon(send_to_nobody)
        await wait_all_tasks_blocked(0.05)
    assert not exists(path)
