"""A parked session's file that is not what was written: never resumed from, whatever is wrong with it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swapd.errors import Code
from swapd.messages.generation import StateEntry
from swapd.messages.snapshot import SNAPSHOT_SCHEMA
from swapd.parking import files
from swapd.parking.kept import KeptHeader
from swapd.sessions.live import LiveSession
from tests.migration.world import BLOCK_BYTES, PROMPT, World
from tests.parking.test_restarts import find, next_run, on_disk
from tests.parking.world import lend, parked, room, world_with_park

Harm = Callable[[Path], None]
PREFIX = struct.Struct("<8sII")


def flip(at: int) -> Harm:
    """One bit of a byte, counted from the start or from the end."""

    def harm(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        raw[at] ^= 0x10
        path.write_bytes(raw)

    return harm


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def blocks_exchanged(path: Path) -> None:
    raw = path.read_bytes()
    one, two = raw[-2 * BLOCK_BYTES : -BLOCK_BYTES], raw[-BLOCK_BYTES:]
    path.write_bytes(raw[: -2 * BLOCK_BYTES] + two + one)


def header_says(**changes: Any) -> Harm:
    """Another header, with a checksum that fits: as a build with another opinion would have written it."""

    def harm(path: Path) -> None:
        raw = path.read_bytes()
        _, length, _ = PREFIX.unpack(raw[: PREFIX.size])
        header = files.read_header(path)
        encoded = msgspec.msgpack.encode(msgspec.structs.replace(header, **_of(header, changes)))
        data = raw[PREFIX.size + length :]
        path.write_bytes(PREFIX.pack(files.MAGIC, len(encoded), zlib.crc32(encoded)) + encoded + data)

    return harm


def _of(header: KeptHeader, changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value(header) if callable(value) else value for name, value in changes.items()}


def another(item: str) -> Callable[[KeptHeader], tuple[StateEntry, ...]]:
    return lambda header: tuple(
        StateEntry(each.name, "0" * 32) if each.name == item else each for each in header.state
    )


HARMS: dict[str, Harm] = {
    "another kind of file": flip(0),
    "another length of the header": flip(9),
    "a bad checksum of the header": flip(13),
    "a changed header": flip(40),
    "a changed block": flip(-2 * BLOCK_BYTES),
    "a changed tail": flip(-1),
    "cut short": cut,
    "empty": empty,
    "exchanged blocks": blocks_exchanged,
    "another schema": header_says(schema=SNAPSHOT_SCHEMA + 1),
    "another session": header_says(session="other"),
    "an epoch to come": header_says(epoch=9),
    "an earlier position": header_says(position=8),
    "a later position": header_says(position=10),
    "another frontier": header_says(computed=lambda header: header.computed - 1),
    "another block size": header_says(block_bytes=BLOCK_BYTES // 2),
    "another transcript": header_says(state=another("transcript")),
    "another generator": header_says(state=another("generator")),
    "no state": header_says(state=()),
}


async def settled(world: World, session: LiveSession, tokens: int, permitted: bool) -> None:
    """It was rebuilt from its transcript where its client permits that, else ended with the stable code."""
    await world.until(lambda: session.ended or session.durable > tokens)
    await world.until(lambda: not session.recovering and session.move is None)
    if permitted:
        assert session.view().state == "running"
        assert world.recovery.replayed_tokens == len(PROMPT) + tokens - 1
    else:
        assert (session.record.state, session.record.code) == ("failed", Code.RECOVERY_UNAVAILABLE)
        assert (session.durable, world.recovery.replayed_tokens) == (tokens, 0)
    assert world.supervisor.quarantine.workers() == []  # no worker did anything wrong


@pytest.mark.parametrize("permitted", [True, False], ids=["replay permitted", "no replay"])
@pytest.mark.parametrize("harm", HARMS)
async def test_a_file_that_is_not_what_was_written_is_refused_after_a_restart(
    tmp_path: Path, harm: str, permitted: bool
) -> None:
    """H78, H89, B3, B21, H145: its session is replayed if permitted, else ends with its cursor."""
    folder = tmp_path / "parked"
    folder.mkdir(mode=0o700)
    async with world_with_park(tmp_path, park_dir=str(folder)) as world:
        before = list((await parked(world, allow_replay_fallback=permitted)).received)
        await room(world).spill_all()
    (path,) = folder.iterdir()
    HARMS[harm](path)
    async with next_run(tmp_path, "s", park_dir=str(folder)) as (world, session):
        await find(world)
        lend(world)
        await settled(world, session, len(before), permitted)
        assert session.received[: len(before)] == before
        await world.until(lambda: room(world).at_rest)
        assert on_disk(folder) == []


@pytest.mark.parametrize("permitted", [True, False], ids=["replay permitted", "no replay"])
@pytest.mark.parametrize("harm", ["a changed header", "a changed block", "cut short", "exchanged blocks"])
async def test_a_file_that_changes_while_the_service_runs_is_refused(
    tmp_path: Path, harm: str, permitted: bool
) -> None:
    """H78, B3, B21: what was read at the start is checked again when it is used."""
    folder = tmp_path / "parked"
    folder.mkdir(mode=0o700)
    async with world_with_park(tmp_path, park_dir=str(folder)) as world:
        session = await parked(world, allow_replay_fallback=permitted)
        tokens = session.durable
        await room(world).spill_all()
        (path,) = folder.iterdir()
        HARMS[harm](path)
        lend(world)
        await settled(world, session, tokens, permitted)
        await world.until(lambda: room(world).at_rest)
        assert on_disk(folder) == []


async def test_kv_in_memory_that_is_not_of_the_transcript_is_given_up(tmp_path: Path) -> None:
    """H89: the transcript is the truth; what does not fit it is never resumed from."""
    async with world_with_park(tmp_path) as world:
        session = await parked(world, allow_replay_fallback=True)
        tokens = session.durable
        kept = room(world).get("s")
        assert kept is not None
        kept.header = msgspec.structs.replace(kept.header, state=another("detokeniser")(kept.header))
        lend(world)
        await settled(world, session, tokens, permitted=True)
        assert len(room(world)) == 0
