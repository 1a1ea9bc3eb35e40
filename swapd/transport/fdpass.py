"""How a worker that swapd did not spawn gets the arena: its descriptor, over a Unix socket.

The worker listens, the coordinator connects and sends one packet: a small header and exactly one descriptor.
The worker attaches, hands the arena on and acknowledges. Both sides ask the kernel who the peer is and speak
only to their own user. A bad peer costs its own connection and nothing else: every received descriptor is
closed whatever happens, and every connection ends in `CONNECTION_TIMEOUT_S`.
"""

from __future__ import annotations

import array
import errno
import inspect
import logging
import os
import socket as stdlib_socket
import stat
import struct
from collections.abc import Awaitable, Callable
from typing import Final, Never

import msgspec
import trio

from swapd.errors import Code, SwapdError
from swapd.transport.arena import Arena
from swapd.transport.paths import check_socket_path, file_identity, private_umask, unlink_if_ours

CONNECTION_TIMEOUT_S: Final = 5.0
"""For one connection in the worker, from accept to acknowledgement."""
MAX_CONNECTIONS: Final = 4
"""Handled at once; others wait in the kernel's backlog."""
BACKLOG: Final = 8
MAX_PACKET_BYTES: Final = 256
ROOM_FOR_FDS: Final = 4
"""Descriptors we can take over, in order to close them; the kernel drops more."""
ACCEPT_PAUSE_S: Final = 0.1
"""After an accept that found no descriptor left."""

OnArena = Callable[[Arena, int], Awaitable[None] | None]

_log = logging.getLogger("swapd.transport")
_UCRED: Final = struct.Struct("3i")


class ArenaHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Travels with the descriptor: who sends it (coordinator generation) and how large it must be."""

    generation: int
    size_bytes: int


class ArenaAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`code` is a `swapd.errors.Code`, None for success."""

    code: str | None = None
    detail: str = ""


_headers = msgspec.msgpack.Decoder(ArenaHeader)
_answers = msgspec.msgpack.Decoder(ArenaAnswer)


async def send_arena(path: str, fd: int, generation: int, *, timeout_s: float) -> None:
    """Give the arena behind `fd` to the worker that listens at `path`; returns once it is attached.

    `fd` stays the caller's. Raises `socket_path_too_long`, `timeout`, `arena_unavailable` when nobody of our
    own user listens there, or the code with which the worker refused.
    """
    check_socket_path(path)
    header = msgspec.msgpack.encode(ArenaHeader(generation, os.fstat(fd).st_size))
    ancillary = [(stdlib_socket.SOL_SOCKET, stdlib_socket.SCM_RIGHTS, array.array("i", [fd]).tobytes())]
    try:
        with trio.fail_after(timeout_s), _socket() as peer:
            await peer.connect(path)
            if not _is_ours(peer):
                raise SwapdError(Code.ARENA_UNAVAILABLE, f"{path} belongs to another user")
            await peer.sendmsg([header], ancillary)
            answer = _answers.decode(await peer.recv(MAX_PACKET_BYTES))
    except trio.TooSlowError:
        raise SwapdError(Code.TIMEOUT, f"{path} did not take the arena in {timeout_s} s") from None
    except OSError as error:
        raise SwapdError(Code.ARENA_UNAVAILABLE, f"{path}: {error.strerror}") from None
    except msgspec.DecodeError:
        raise SwapdError(Code.ARENA_UNAVAILABLE, f"{path} closed without an answer") from None
    if answer.code is not None:
        code = Code(answer.code) if answer.code in set(Code) else Code.ARENA_UNAVAILABLE
        raise SwapdError(code, answer.detail)


async def serve_arena_socket(
    path: str, on_arena: OnArena, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> Never:
    """Listen at `path` and call `on_arena(arena, generation)` for each arena that arrives, until cancelled.

    The caller holds the worker's `FileLock`: a stale socket file is removed (H115), a live one would be too.
    The file has mode 0600 and goes on exit. `on_arena` owns the arena once it returns; if it raises a
    `SwapdError`, the sender gets its code and the arena is closed here. An asynchronous `on_arena` is
    cancelled at the connection's deadline.
    """
    check_socket_path(path)
    _remove_stale(path)
    with _bind(path) as listener:
        bound = file_identity(path)
        try:
            listener.listen(BACKLOG)
            task_status.started()
            await _accept_forever(listener, on_arena)
        finally:
            unlink_if_ours(path, bound)


async def _accept_forever(listener: trio.socket.SocketType, on_arena: OnArena) -> Never:
    slots = trio.Semaphore(MAX_CONNECTIONS)
    async with trio.open_nursery() as nursery:
        while True:
            await slots.acquire()
            try:
                peer, _ = await listener.accept()
            except OSError as error:
                slots.release()
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                    raise
                _log.warning("arena_accept_failed", extra={"errno": error.errno})
                await trio.sleep(ACCEPT_PAUSE_S)
                continue
            nursery.start_soon(_serve_one, peer, on_arena, slots)
    raise AssertionError("the accept loop ends only by an exception")


async def _serve_one(peer: trio.socket.SocketType, on_arena: OnArena, slots: trio.Semaphore) -> None:
    try:
        with peer, trio.move_on_after(CONNECTION_TIMEOUT_S):
            try:
                await _receive(peer, on_arena)
                answer = ArenaAnswer()
            except SwapdError as error:
                _log.warning("arena_refused", extra={"code": error.code.value})
                answer = ArenaAnswer(error.code.value, error.detail[: MAX_PACKET_BYTES // 2])
            await peer.send(msgspec.msgpack.encode(answer))
    except OSError as error:
        _log.warning("arena_connection_failed", extra={"errno": error.errno})
    finally:
        slots.release()


async def _receive(peer: trio.socket.SocketType, on_arena: OnArena) -> None:
    if not _is_ours(peer):
        raise SwapdError(Code.UNAUTHENTICATED, "another user")
    header, fd = await _receive_packet(peer)
    try:
        arena = await trio.to_thread.run_sync(Arena.attach, fd)
    finally:
        os.close(fd)
    try:
        if arena.size_bytes != header.size_bytes:
            raise SwapdError(Code.FRAME_MALFORMED, "the header names another size")
        outcome = on_arena(arena, header.generation)
        if inspect.isawaitable(outcome):
            await outcome
    except BaseException:
        arena.close()
        raise


async def _receive_packet(peer: trio.socket.SocketType) -> tuple[ArenaHeader, int]:
    """Take one packet with exactly one descriptor, which the caller closes; all others are closed here."""
    data, ancillary, flags, _ = await peer.recvmsg(
        MAX_PACKET_BYTES,
        stdlib_socket.CMSG_SPACE(ROOM_FOR_FDS * array.array("i").itemsize),
        stdlib_socket.MSG_CMSG_CLOEXEC,
    )
    fds = _descriptors(ancillary)
    try:
        if flags & (stdlib_socket.MSG_TRUNC | stdlib_socket.MSG_CTRUNC):
            raise SwapdError(
                Code.FRAME_TOO_LARGE, f"over {MAX_PACKET_BYTES} bytes or {ROOM_FOR_FDS} descriptors"
            )
        if len(fds) != 1:
            raise SwapdError(Code.FRAME_MALFORMED, f"{len(fds)} descriptors instead of one")
        try:
            header = _headers.decode(data)
        except msgspec.DecodeError:
            raise SwapdError(Code.FRAME_MALFORMED, "the header cannot be read") from None
        return header, fds.pop()
    finally:
        for fd in fds:
            os.close(fd)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (stdlib_socket.SOL_SOCKET, stdlib_socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return fds.tolist()


def _socket() -> trio.socket.SocketType:
    return trio.socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_SEQPACKET)


def _is_ours(peer: trio.socket.SocketType) -> bool:
    credentials = peer.getsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_PEERCRED, _UCRED.size)
    _, uid, _ = _UCRED.unpack(credentials)
    return bool(uid == os.geteuid())


def _bind(path: str) -> trio.socket.SocketType:
    # The plain socket's bind: Trio's would await with the umask changed.
    plain = stdlib_socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_SEQPACKET)
    try:
        with private_umask():
            plain.bind(path)
        return trio.socket.from_stdlib_socket(plain)
    except OSError as error:
        plain.close()
        raise SwapdError(Code.CONFIG_INVALID, f"{path}: {error.strerror}") from None


def _remove_stale(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SwapdError(Code.CONFIG_INVALID, f"{path}: {error.strerror}") from None
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise SwapdError(Code.CONFIG_INVALID, f"{path} is in the way and is not a socket of ours")
    os.unlink(path)
