"""The park as a side of a move: what it refuses, and that repeats change nothing."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import trio

from swapd.errors import Code, SwapdError
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.messages.generation import BlockEntry, GenerationSpec, Lease, Manifest, Sampling
from swapd.messages.snapshot import bind, decode_state, seal
from swapd.parking.link import ParkLink
from swapd.parking.room import ParkRoom
from swapd.transport.arena import Arena
from swapd.transport.arena_header import HEADER_BYTES
from swapd.transport.leases import LeaseBook
from tests.migration.world import BLOCK_BYTES, BLOCK_TOKENS, INFO

SPEC = GenerationSpec("s", (1, 2, 3), Sampling(seed=1), 10)
OUTPUTS = (7, 8, 9)
"""Five positions: a full block and one position more."""


class Bench:
    """A park, an arena of moves with one lease in it, and two blocks in that."""

    def __init__(self, park: ParkLink, arena: Arena, lease: Lease) -> None:
        self.park = park
        self.arena = arena
        self.lease = lease
        with arena.region(lease) as view:
            view[:] = bytes(range(256)) * (lease.size // 256)
            self.crcs = [zlib.crc32(view[at : at + BLOCK_BYTES]) for at in (0, BLOCK_BYTES)]

    def manifest(self, **changes: Any) -> Manifest:
        blocks = tuple(
            BlockEntry(index, index * BLOCK_BYTES, valid, crc)
            for index, valid, crc in zip((0, 1), (BLOCK_TOKENS, 1), self.crcs, strict=True)
        )
        made = bind("s", 2, self.lease, "fp", blocks, decode_state(SPEC, OUTPUTS))
        return seal(msgspec.structs.replace(made, **changes))

    async def reserve(self) -> None:
        self.park.expect("mov", 5, INFO)
        await self.park.request(into.Reserve("mov", SPEC, 2, self.lease, 10.0), out.Reserved)

    async def prepare(self, manifest: Manifest, outputs: tuple[int, ...] = OUTPUTS) -> str | None:
        item = into.PrepareItem("mov", "s", 2, manifest, outputs, 0)
        answer = await self.park.request(into.Prepare("bat", (item,)), out.Prepared)
        (result,) = answer.items
        assert result.ok is (result.code is None)
        return result.code


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    arena = Arena.create(HEADER_BYTES + (1 << 20))
    memory = Arena.create(HEADER_BYTES + (1 << 20))
    try:
        room = ParkRoom(memory, LeaseBook(memory.data_bytes, base_offset=HEADER_BYTES, regions=4), None)
        lease = LeaseBook(arena.data_bytes, base_offset=HEADER_BYTES, regions=4).grant(4 * BLOCK_BYTES)
        assert lease is not None
        arena.publish(lease)
        async with trio.open_nursery() as nursery:
            await nursery.start(room.run)
            yield Bench(ParkLink(room, arena, lambda session: (SPEC, OUTPUTS)), arena, lease)
            while not room.at_rest:  # noqa: ASYNC110  # its clean-up has no event of its own
                await trio.sleep(0.01)
            room.check_integrity()
            nursery.cancel_scope.cancel()
    finally:
        arena.close()
        memory.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 9},
        {"session": "other"},
        {"epoch": 3},
        {"region": 1},
        {"generation": 9},
        {"fingerprint": "other"},
    ],
)
async def test_right_bytes_of_something_else_are_refused(bench: Bench, changes: dict[str, Any]) -> None:
    """H78, H96: schema, session, epoch, lease and engine must be those of the move."""
    await bench.reserve()
    with pytest.raises(SwapdError) as caught:
        await bench.park.request(into.Import("mov", bench.manifest(**changes)), out.Imported)
    assert caught.value.code is Code.MANIFEST_MISMATCH
    assert await bench.prepare(bench.manifest(**changes)) == Code.MANIFEST_MISMATCH
    bench.park.settle("mov")


async def test_another_decode_state_or_a_manifest_that_changed_is_not_kept(bench: Bench) -> None:
    """H78, H89: the park verifies what a worker would; a refused session leaves nothing behind."""
    honest = bench.manifest()
    for state in ((), honest.state[1:], decode_state(SPEC, (7, 8, 1))):
        await bench.reserve()
        assert await bench.prepare(bench.manifest(state=state)) == Code.MANIFEST_MISMATCH
        bench.park.settle("mov")
    await bench.reserve()
    changed = msgspec.structs.replace(honest, blocks=honest.blocks[::-1])
    assert await bench.prepare(changed) == Code.CHECKSUM_MISMATCH
    bench.park.settle("mov")
    assert not bench.park.holds("s")


async def test_a_position_that_did_not_come_is_noticed(bench: Bench) -> None:
    """H75: nothing may be missing, or it would be computed again."""
    await bench.reserve()
    full, tail = bench.manifest().blocks
    for blocks in ((), (full,), (tail,), (full, BlockEntry(1, BLOCK_BYTES, 2, tail.crc))):
        assert await bench.prepare(bench.manifest(blocks=blocks)) == Code.MANIFEST_MISMATCH
        bench.park.settle("mov")
        await bench.reserve()
    assert await bench.prepare(bench.manifest(), (7, 8, 9, 10)) == Code.MANIFEST_MISMATCH
    bench.park.settle("mov")


async def test_a_block_outside_of_the_lease_is_refused(bench: Bench) -> None:
    await bench.reserve()
    full, tail = bench.manifest().blocks
    outside = BlockEntry(1, 4 * BLOCK_BYTES, 1, tail.crc)
    assert await bench.prepare(bench.manifest(blocks=(full, outside))) == Code.MANIFEST_MISMATCH
    bench.park.settle("mov")


async def test_repeats_change_nothing_and_a_lease_of_the_past_is_refused(bench: Bench) -> None:
    """H96: what came once is kept once; a retired lease is neither read nor written."""
    await bench.reserve()
    assert await bench.prepare(bench.manifest()) is None
    assert await bench.prepare(bench.manifest()) is None
    assert bench.park.holds("s")
    bench.park.settle("mov")
    bench.arena.retire(bench.lease)
    export = into.Export("back", "s", 2, bench.lease, 0)
    with pytest.raises(SwapdError) as caught:
        await bench.park.request(export, out.Exported)
    assert caught.value.code is Code.LEASE_STALE
    for _ in range(2):
        bench.park.tell(into.Release("s", 2))
    assert not bench.park.holds("s")


async def test_another_epoch_touches_nothing(bench: Bench) -> None:
    """H104: a late word of an earlier owner."""
    await bench.reserve()
    assert await bench.prepare(bench.manifest()) is None
    bench.park.settle("mov")
    for late in (into.Release("s", 1), into.Cancel("s", 3), into.Resume("s", 1, 9), into.Resume("s", 2)):
        bench.park.tell(late)
    assert bench.park.inventory().items == (out.InventoryItem("s", 2, "parked", 3, ()),)
    frozen = await bench.park.request(
        into.Freeze("bat", (into.FreezeItem("back", "s", 7, bench.lease, 0),)), out.Frozen
    )
    assert [item.status for item in frozen.items] == ["unknown"]
    bench.park.tell(into.Cancel("s", 2))
