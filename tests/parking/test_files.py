"""Parked sessions on disk: whole, checked, private, or not there."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swapd.errors import Code, SwapdError
from swapd.messages.generation import StateEntry
from swapd.messages.snapshot import SNAPSHOT_SCHEMA
from swapd.parking import files
from swapd.parking.kept import KeptHeader

BLOCK = 64
DATA = bytes(range(BLOCK)) + bytes(reversed(range(BLOCK)))
HEADER = KeptHeader(
    schema=SNAPSHOT_SCHEMA,
    session="ses_1",
    epoch=3,
    position=5,
    computed=7,
    fingerprint="fp",
    block_tokens=4,
    block_bytes=BLOCK,
    blocks=((4, zlib.crc32(DATA[:BLOCK])), (3, zlib.crc32(DATA[BLOCK:]))),
    state=(StateEntry("transcript", "of it"),),
)


def block(path: Path, index: int) -> bytes:
    into = bytearray(BLOCK)
    files.read_blocks(path, HEADER, index, [memoryview(into)])
    return bytes(into)


def test_what_is_written_is_read_again_and_only_by_us(tmp_path: Path) -> None:
    """B3: the header says whose KV it is; mode 0600."""
    path = files.write(tmp_path, HEADER, memoryview(DATA))
    assert files.read_header(path) == HEADER
    assert block(path, 0) + block(path, 1) == DATA
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert files.scan(tmp_path) == [(path, HEADER)]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, or one that does not answer fsync with success."""

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write(tmp_path, HEADER, memoryview(DATA))
    assert list(tmp_path.iterdir()) == []


def test_what_a_crash_left_half_is_removed_and_strangers_are_left(tmp_path: Path) -> None:
    path = files.write(tmp_path, HEADER, memoryview(DATA))
    cut = msgspec.structs.replace(HEADER, session="ses_2")
    torn = files.write(tmp_path, cut, memoryview(DATA))
    os.truncate(torn, 40)
    (tmp_path / f"ses_3.1{files.UNFINISHED}").write_bytes(b"half")
    (tmp_path / f"ses_4.1{files.SUFFIX}").write_bytes(path.read_bytes())
    (tmp_path / "notes.txt").write_text("somebody's")
    assert files.scan(tmp_path) == [(path, HEADER)]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([path.name, "notes.txt"])


def test_of_two_stays_of_a_session_the_later_counts(tmp_path: Path) -> None:
    """It left and came back, and the first file was not removed before the end of the process."""
    later = msgspec.structs.replace(HEADER, epoch=12, position=6)
    paths = [files.write(tmp_path, header, memoryview(DATA)) for header in (HEADER, later)]
    os.utime(paths[0])  # the order of writing does not matter
    assert files.scan(tmp_path) == [(paths[1], later)]
    assert list(tmp_path.iterdir()) == [paths[1]]


@pytest.mark.parametrize("at", [0, 9, 13, 40])
def test_a_damaged_header_is_refused(tmp_path: Path, at: int) -> None:
    path = files.write(tmp_path, HEADER, memoryview(DATA))
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(SwapdError) as caught:
        files.read_header(path)
    assert caught.value.code is Code.CHECKSUM_MISMATCH
    assert files.scan(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": SNAPSHOT_SCHEMA + 1},
        {"computed": 8},
        {"computed": 9},
        {"block_tokens": 3},
        {"block_tokens": 0},
        {"block_bytes": -BLOCK},
        {"position": 0},
        {"blocks": HEADER.blocks[:1]},
        {"blocks": ((4, 0), (4, 0))},
    ],
    ids=str,
)
def test_a_header_of_another_schema_or_that_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """H78: though its checksum fits; a build that would misread it does not try."""
    path = files.write(tmp_path, msgspec.structs.replace(HEADER, **changes), memoryview(DATA))
    with pytest.raises(SwapdError) as caught:
        files.read_header(path)
    assert caught.value.code is Code.CHECKSUM_MISMATCH
    assert files.scan(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_leaves_the_folder_is_no_session(tmp_path: Path) -> None:
    with pytest.raises(SwapdError) as caught:
        files.write(tmp_path, msgspec.structs.replace(HEADER, session="../x"), memoryview(DATA))
    assert caught.value.code is Code.INTERNAL


def test_a_file_cut_short_is_not_read_past_its_end(tmp_path: Path) -> None:
    path = files.write(tmp_path, HEADER, memoryview(DATA))
    os.truncate(path, path.stat().st_size - 1)
    assert block(path, 0) == DATA[:BLOCK]
    with pytest.raises(SwapdError) as caught:
        block(path, 1)
    assert caught.value.code is Code.CHECKSUM_MISMATCH
