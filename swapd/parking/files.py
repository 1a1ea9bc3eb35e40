"""Parked sessions on disk: one file each, whole or not there at all.

    magic · header length (u32) · header CRC-32 (u32) · header (msgpack) · the blocks, one after another

A file is written under another name, made durable, then renamed, and its folder made durable: a crash leaves
no half file under a name that counts. Blocks keep the checksums that their worker made.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import struct
import zlib
from pathlib import Path
from typing import Final

import msgspec

from swapd.errors import Code, SwapdError
from swapd.parking.kept import KeptHeader

MAGIC: Final = b"swapdPK2"
SUFFIX: Final = ".parked"
UNFINISHED: Final = ".parking"
MAX_HEADER_BYTES: Final = 64 << 20
_PREFIX: Final = struct.Struct("<8sII")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")

log = logging.getLogger("swapd.parking")

_headers = msgspec.msgpack.Decoder(KeptHeader)


def write(folder: Path, header: KeptHeader, data: memoryview) -> Path:
    """Write a session's file durably and return its path. Raises `OSError`, having left nothing."""
    # The epoch keeps a session's last stay, which may be on its way out, from the next.
    path = folder / f"{_checked(header.session)}.{header.epoch}{SUFFIX}"
    unfinished = path.with_suffix(UNFINISHED)
    encoded = msgspec.msgpack.encode(header)
    try:
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb", buffering=0) as file:
            for part in (_PREFIX.pack(MAGIC, len(encoded), zlib.crc32(encoded)), encoded, data):
                _write_all(file.fileno(), memoryview(part))
            os.fsync(file.fileno())
        unfinished.rename(path)
        _sync(folder)
    except BaseException:
        for left in (unfinished, path):
            left.unlink(missing_ok=True)
        raise
    return path


def read_header(path: Path) -> KeptHeader:
    """Read whose KV a file has. Raises `checksum_mismatch` for one that is damaged, and `OSError`."""
    with path.open("rb") as file:
        header, _ = _header(file.fileno(), path)
    return header


def read_blocks(path: Path, header: KeptHeader, first: int, into: list[memoryview]) -> None:
    """Fill `into` with the blocks from `first` on. Raises `checksum_mismatch` for a file cut short."""
    with path.open("rb") as file:
        _, start = _header(file.fileno(), path)
        for number, view in enumerate(into):
            at, done = start + (first + number) * header.block_bytes, 0
            while done < len(view):
                count = os.preadv(file.fileno(), [view[done:]], at + done)
                if count == 0:
                    raise SwapdError(Code.CHECKSUM_MISMATCH, "a parked session's file is cut short")
                done += count


def remove(path: Path) -> None:
    """Remove a file; one that is gone already is no matter."""
    with contextlib.suppress(OSError):
        path.unlink()


def scan(folder: Path) -> list[tuple[Path, KeptHeader]]:
    """What the last run left, a session's latest stay, oldest first. Everything else of ours is removed."""
    found: dict[str, tuple[Path, KeptHeader]] = {}
    for path in sorted(folder.iterdir(), key=lambda path: path.lstat().st_mtime_ns):
        if path.suffix == UNFINISHED:
            remove(path)
        elif path.suffix == SUFFIX:
            try:
                header = read_header(path)
                whole = path.stat().st_size
                if path.stem.partition(".")[0] != header.session or whole < header.size:
                    raise SwapdError(Code.CHECKSUM_MISMATCH, "the file is another session's, or cut short")
            except (SwapdError, OSError) as error:
                log.error("parked session unreadable", extra={"error_type": type(error).__name__})
                remove(path)
                continue
            before = found.pop(header.session, (path, header))
            latest = max(before, (path, header), key=lambda each: each[1].epoch)
            for left, _ in {before[0]: before, path: (path, header)}.values():
                if left != latest[0]:
                    remove(left)
            found[header.session] = latest
    return list(found.values())


def _header(fd: int, path: Path) -> tuple[KeptHeader, int]:
    prefix = os.pread(fd, _PREFIX.size, 0)
    if len(prefix) != _PREFIX.size:
        raise SwapdError(Code.CHECKSUM_MISMATCH, "a parked session's file is cut short")
    magic, length, crc = _PREFIX.unpack(prefix)
    encoded = os.pread(fd, min(length, MAX_HEADER_BYTES), _PREFIX.size)
    if magic != MAGIC or len(encoded) != length or zlib.crc32(encoded) != crc:
        raise SwapdError(Code.CHECKSUM_MISMATCH, f"{path.name} is not a parked session")
    try:
        header = _headers.decode(encoded)
    except msgspec.DecodeError:
        raise SwapdError(Code.CHECKSUM_MISMATCH, f"{path.name} was written by another swapd") from None
    if not header.is_sound:
        raise SwapdError(Code.CHECKSUM_MISMATCH, f"{path.name} is of another schema, or contradicts itself")
    return header, _PREFIX.size + length


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _checked(session: str) -> str:
    # Ids are ours; a name that could leave the folder is a defect.
    if not _NAME.fullmatch(session):
        raise SwapdError(Code.INTERNAL, "a session's id cannot be a file's name")
    return session
