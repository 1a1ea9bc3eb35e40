"""The pressure cache on disk: which folder, and how it is read and replaced there.

    folder   walked from / by descriptors, each checked before the next is opened; the last one is then
             the only way in, so that nothing can be swapped under us between check and use
    read     the file itself, never what a link leads to, and only if we or root own it
    write    new staging file → fsync → rename over the cache → fsync of the folder

The folder beside the configuration is taken as it is (D25): whoever can write there can change the
configuration as well.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from swapd.config import Config
from swapd.pressure.cache import CACHE_LIMIT_BYTES, CacheError
from swapd.pressure.folder_rules import (
    ROOT_UID,
    WRITABLE_BY_OTHERS,
    Folder,
    cache_folder_problem,
    parent_problem,
    shown,
    writable_by_others,
)

CACHE_NAME: Final = "swapd-pressure.json"
NOT_USED: Final = "pressure cache not used"
STAGING_SUFFIX: Final = ".staging"
PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700

_LOOK: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class FolderRefused(Exception):
    """The cache may not lie there (R97); `reason` is one sentence."""

    def __init__(self, reason: str) -> None:
        self.reason: Final = reason
        super().__init__(reason)


def cache_path(config: Config, config_path: Path) -> Path:
    """Where the cache of a configuration lies (R81); `..` and links in the folder's name are resolved."""
    beside = config_path.resolve().parent
    named = beside / (config.owner.gpu_pressure.state_file or CACHE_NAME)
    return Path(os.path.realpath(named.parent)) / named.name


def is_default_folder(path: Path, config_path: Path) -> bool:
    """Whether a cache lies beside its configuration, where the folder's rules do not refuse it (D25)."""
    return path.parent == config_path.resolve().parent


def state_folder_problem(config: Config, config_path: Path) -> str | None:
    """Say what is wrong with the cache's folder, as `serve` would find it, and change nothing (R98).

    The folder beside the configuration is used whatever its mode; that others can write there is told all
    the same (D25), where there is something to learn.
    """
    path = cache_path(config, config_path)
    if is_default_folder(path, config_path):
        if not config.devices or not path.parent.is_dir():
            return None
        return writable_by_others(_described(str(path.parent), path.parent.stat()))
    try:
        with open_folder(path.parent, is_default=False, create=False):
            return None
    except FolderRefused as refused:
        return f"{NOT_USED}: {refused.reason}"


@contextmanager
def open_folder(folder: Path, *, is_default: bool, create: bool) -> Iterator[int | None]:
    """Give a descriptor of the cache's folder once it is known to be safe.

    None where it does not exist; with `create` it is made, and what is missing above it, for the service
    alone, but only below folders that were found safe (R99). Raises `FolderRefused`.
    """
    try:
        fd = _open_default(folder) if is_default else _walk(folder, create=create)
    except OSError as error:
        raise FolderRefused(f"{shown(str(folder))} cannot be opened: {error.strerror}") from None
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _open_default(folder: Path) -> int | None:
    try:
        return os.open(folder, _OPEN)
    except FileNotFoundError:
        return None


def _walk(folder: Path, *, create: bool) -> int | None:
    """Open a folder from / down, refusing at the first that is not safe (R95, D26)."""
    service_uid = os.geteuid()
    steps = folder.parts[1:]
    fd = os.open("/", _LOOK)
    try:
        for depth, name in enumerate(("", *steps)):
            if name:
                below = _step(fd, name, create=create)
                if below is None:
                    return None
                os.close(fd)
                fd = below
            path = "/" + "/".join(steps[:depth])
            problem = cache_folder_problem if depth == len(steps) else parent_problem
            found = _described(path, os.fstat(fd))
            if (reason := problem(found, service_uid)) is not None:
                raise FolderRefused(reason)
        # A descriptor that only names the folder can be neither listed nor synced.
        return os.open(".", _OPEN, dir_fd=fd)
    finally:
        os.close(fd)


def _step(fd: int, name: str, *, create: bool) -> int | None:
    """Open one folder below `fd`, which was found safe; no link is followed."""
    try:
        return os.open(name, _LOOK | os.O_NOFOLLOW, dir_fd=fd)
    except FileNotFoundError:
        if not create:
            return None
    # Someone else may make it first where the sticky bit allows that: then it is looked at like any other.
    with suppress(FileExistsError):
        os.mkdir(name, PRIVATE_FOLDER, dir_fd=fd)
        # Against a umask that takes from us what is ours.
        os.chmod(name, PRIVATE_FOLDER, dir_fd=fd)
    return os.open(name, _LOOK | os.O_NOFOLLOW, dir_fd=fd)


def _described(path: str, found: os.stat_result) -> Folder:
    return Folder(path, found.st_uid, stat.S_IMODE(found.st_mode))


def read_cache(config: Config, config_path: Path) -> bytes | None:
    """Read a configuration's cache as it is on disk now; None if there is none. Changes nothing.

    Raises `FolderRefused`, `CacheError`.
    """
    path = cache_path(config, config_path)
    is_default = is_default_folder(path, config_path)
    with open_folder(path.parent, is_default=is_default, create=False) as folder:
        return None if folder is None else read_file(folder, path.name)


def read_file(folder: int, name: str) -> bytes | None:
    """Read the cache, None if there is none. Raises `CacheError`, unreadable or too large (R107, D27)."""
    try:
        # A pipe that somebody planted must not make the open wait.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else str(error.strerror)
        raise CacheError("unreadable", why) from None
    try:
        if (reason := _distrusted(os.fstat(fd))) is not None:
            raise CacheError("unreadable", reason)
        data = _read_all(fd)
    except OSError as error:
        raise CacheError("unreadable", str(error.strerror)) from None
    finally:
        os.close(fd)
    if len(data) > CACHE_LIMIT_BYTES:
        raise CacheError("too large", f"it has over {CACHE_LIMIT_BYTES} bytes")
    return data


def _distrusted(found: os.stat_result) -> str | None:
    """Why a file's content may be someone else's (D27)."""
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if found.st_uid not in (os.geteuid(), ROOT_UID):
        return f"it belongs to uid {found.st_uid}, not to uid {os.geteuid()} or root"
    if found.st_mode & WRITABLE_BY_OTHERS:
        return f"it has mode {stat.S_IMODE(found.st_mode):04o}: its group or other accounts may write to it"
    return None


def _read_all(fd: int) -> bytes:
    """Up to one byte over the limit, however the file grows meanwhile."""
    parts: list[bytes] = []
    left = CACHE_LIMIT_BYTES + 1
    while left and (part := os.read(fd, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def write_file(folder: int, name: str, data: bytes) -> None:
    """Replace the cache by `data`; after a crash at any point the old or the new one is there, whole.

    A link planted under the cache's name is replaced, one under the staging file's name is never met: that
    name is new (R100). Raises `OSError`, with the old cache as it was and no staging file left.
    """
    staging = _staging_name(name)
    write_new(folder, staging, data)
    try:
        os.rename(staging, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(staging, dir_fd=folder)
        raise
    os.fsync(folder)


def write_new(folder: int, name: str, data: bytes) -> None:
    """Write a file that must not exist yet, private whatever the umask (R102). Raises `OSError`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, PRIVATE_FILE, dir_fd=folder)
    try:
        os.fchmod(fd, PRIVATE_FILE)
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        os.fsync(fd)
    except OSError:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise
    finally:
        os.close(fd)


def _staging_name(name: str) -> str:
    return f".{name}.{secrets.token_hex(8)}{STAGING_SUFFIX}"


def remove_leftovers(folder: int, name: str) -> None:
    """Remove staging files that a crash has left (R101), where they can be. None is ever read."""
    with suppress(OSError):
        for found in os.listdir(folder):
            if found.startswith(f".{name}.") and found.endswith(STAGING_SUFFIX):
                os.unlink(found, dir_fd=folder)
