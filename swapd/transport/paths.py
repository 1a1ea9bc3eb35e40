"""Where sockets may stand: a directory of our own, and a path that the platform can bind."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import zmq

from swapd.errors import Code, SwapdError

IPC_SCHEME: Final = "ipc://"
SOCKET_PATH_LIMIT_BYTES: Final[int] = zmq.IPC_PATH_MAX_LEN
"""Bytes without the closing NUL: 107 on Linux, 103 on macOS."""
PRIVATE_SOCKET_UMASK: Final = 0o177


def ensure_private_dir(path: str | os.PathLike[str]) -> None:
    """Create `path` with mode 0700, or accept it only if it is exactly that already (H107).

    Missing parents are created too. Raises `config_invalid` for a directory of someone else, one that others
    may enter, a symbolic link, or anything that is no directory: a peer in it could replace a socket.
    """
    directory = Path(path)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise SwapdError(Code.CONFIG_INVALID, f"{directory}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise SwapdError(Code.CONFIG_INVALID, f"{directory} must be a directory, not a link or a file")
    if found.st_uid != os.geteuid():
        raise SwapdError(
            Code.CONFIG_INVALID, f"{directory} belongs to uid {found.st_uid}, swapd runs as {os.geteuid()}"
        )
    if (mode := stat.S_IMODE(found.st_mode) & 0o777) != 0o700:
        raise SwapdError(Code.CONFIG_INVALID, f"{directory} has mode {mode:04o}, run: chmod 0700 {directory}")


def socket_path(directory: str | os.PathLike[str], name: str) -> str:
    """Join a socket's path and check its length. `name` is one path component."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise SwapdError(Code.CONFIG_INVALID, f"{name!r} cannot be the name of a socket")
    path = os.path.join(directory, name)
    check_socket_path(path)
    return path


def check_socket_path(path: str) -> None:
    """Refuse, before anything is bound, a path that `sockaddr_un` cannot hold (H105).

    Raises `socket_path_too_long` with path, length and limit.
    """
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_LIMIT_BYTES:
        raise SwapdError(
            Code.SOCKET_PATH_TOO_LONG, f"{path} has {length} bytes, the limit is {SOCKET_PATH_LIMIT_BYTES}"
        )


def ipc_endpoint(directory: str | os.PathLike[str], name: str) -> str:
    """Give the `ipc://` endpoint of a socket in `directory`. Raises `socket_path_too_long` (H105)."""
    return IPC_SCHEME + socket_path(directory, name)


def ipc_path(endpoint: str) -> str | None:
    """Give the checked file path of an `ipc://` endpoint, None for other transports.

    Abstract sockets are refused: they have no owner and no mode (H107).
    """
    if not endpoint.startswith(IPC_SCHEME):
        return None
    path = endpoint.removeprefix(IPC_SCHEME)
    if path[:1] in ("", "@", "*"):
        raise SwapdError(Code.CONFIG_INVALID, f"{endpoint}: an ipc endpoint needs a file path")
    check_socket_path(path)
    return path


@contextmanager
def private_umask() -> Iterator[None]:
    """Let sockets that are bound inside belong to the owner alone (H107).

    The umask is the process's: nothing inside may await, and a file that another thread creates meanwhile
    only comes out stricter.
    """
    before = os.umask(PRIVATE_SOCKET_UMASK)
    try:
        yield
    finally:
        os.umask(before)


FileIdentity = tuple[int, int]


def file_identity(path: str) -> FileIdentity | None:
    """Tell which file stands at `path`: (st_dev, st_ino), None if there is none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def unlink_if_ours(path: str, ours: FileIdentity | None) -> None:
    """Remove a socket file that we bound, unless somebody has put another in its place since."""
    if ours is not None and file_identity(path) == ours:
        os.unlink(path)
