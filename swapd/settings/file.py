"""The configuration file itself: read as it is now, replaced whole or left as it was."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from swapd.config_file import MAX_CONFIG_BYTES
from swapd.errors import Code, SwapdError

ANY_WRITE: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
STAGING_SUFFIX: Final = ".new"


class FileNow(NamedTuple):
    """What the file holds. `locked` says why it cannot be replaced, None where it can."""

    text: str
    digest: str
    locked: str | None


def read_now(path: Path) -> FileNow:
    """Read the file that the service was started with, as it is now. Raises `config_invalid`."""
    try:
        target = path.resolve(strict=True)
        with target.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
            found = os.fstat(file.fileno())
    except OSError as error:
        raise SwapdError(Code.CONFIG_INVALID, f"cannot read {path}: {error.strerror}") from None
    except RuntimeError:
        raise SwapdError(Code.CONFIG_INVALID, f"cannot read {path}: its links go in a circle") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise SwapdError(Code.CONFIG_INVALID, f"{path.name} is over {MAX_CONFIG_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SwapdError(Code.CONFIG_INVALID, f"{path.name}: byte {error.start} is not UTF-8") from None
    return FileNow(text, _digest(data), _locked(target, found))


def replace(path: Path, text: str, digest: str) -> None:
    """Put `text` in place of the file whose digest was seen; after a crash the old or the new one is there.

    A symbolic link stays one: its target is replaced. Mode and owner stay. Raises `settings_changed`, and
    `settings_not_written` with the old file as it was.
    """
    now = read_now(path)
    if now.digest != digest:
        raise SwapdError(Code.SETTINGS_CHANGED)
    if now.locked is not None:
        raise SwapdError(Code.SETTINGS_NOT_WRITTEN, now.locked)
    target = path.resolve()
    try:
        _replace(target, text.encode())
    except OSError as error:
        raise SwapdError(Code.SETTINGS_NOT_WRITTEN, f"{target}: {error.strerror}") from None


def _replace(target: Path, data: bytes) -> None:
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    staging = f".{target.name}.{secrets.token_hex(8)}{STAGING_SUFFIX}"
    try:
        kept = os.stat(target.name, dir_fd=folder, follow_symlinks=False)
        # Private until it is whole: it holds the tokens of the old one.
        fd = os.open(
            staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
        )
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                made = os.fstat(file.fileno())
                if (made.st_uid, made.st_gid) != (kept.st_uid, kept.st_gid):
                    os.fchown(file.fileno(), kept.st_uid, kept.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(kept.st_mode))
                os.fsync(file.fileno())
            os.rename(staging, target.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(OSError):
                os.unlink(staging, dir_fd=folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)


def _locked(target: Path, found: os.stat_result) -> str | None:
    """Why the file is not to be replaced: renaming alone would not ask for its own permissions."""
    if not stat.S_ISREG(found.st_mode):
        return f"{target} is not a regular file"
    if not found.st_mode & ANY_WRITE or not os.access(target, os.W_OK):
        return f"{target} is read-only for this service (mode {stat.S_IMODE(found.st_mode):04o})"
    if not os.access(target.parent, os.W_OK | os.X_OK):
        return f"this service may not write in {target.parent}"
    return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
