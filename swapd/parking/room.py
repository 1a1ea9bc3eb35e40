"""Where parked KV lies: an arena of the park's own, and a folder for what the memory has no room for.

The arena is sealed, reserved at start and kept out of core dumps like that of the moves; no worker has it.
Bytes come from a move's lease and go to one, checked both times against the checksums that the first worker
made (B21). Memory that is given up is fenced and overwritten before it is lent again (H97).

What is copied is locked, entry by entry, so that an end at any moment waits for one copy at most.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import trio

from swapd.errors import Code, SwapdError
from swapd.messages.generation import BlockEntry, Lease
from swapd.parking import files
from swapd.parking.kept import Kept, KeptHeader
from swapd.parking.ledger import ParkLedger, disk_room, whole_pages
from swapd.store.ballast import look_at_disk
from swapd.transport.arena import Arena
from swapd.transport.leases import LeaseBook

log = logging.getLogger("swapd.parking")

SPILL_ALL_S: Final = 20.0
"""For writing everything to disk at a clean stop; what is not written by then is lost with the memory."""


class ParkRoom:
    """All parked sessions, oldest first. `run` owns the clean-up; lives on the Trio thread."""

    def __init__(self, arena: Arena, leases: LeaseBook, folder: Path | None, folder_bytes: int = 0) -> None:
        """`arena` stays the caller's. `folder_bytes` limits what is on disk; 0: the disk alone does."""
        self.ledger = ParkLedger(leases.capacity_bytes, spills=folder is not None)
        self._arena = arena
        self._leases = leases
        self._folder = folder
        self._folder_bytes = folder_bytes
        self._kept: dict[str, Kept] = {}
        self._freed = trio.lowlevel.ParkingLot()
        self._leaving = 0
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Find what the last run spilled, then clean up behind those that leave, until cancelled."""
        if self._folder is not None:
            for path, header in await trio.to_thread.run_sync(files.scan, self._folder):
                self._kept[header.session] = Kept(header, file=path)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def __iter__(self) -> Iterator[Kept]:
        return iter(list(self._kept.values()))

    def get(self, session: str) -> Kept | None:
        return self._kept.get(session)

    def park_bytes(self) -> dict[str, int]:
        """Bytes: what the memory has, what of it is in use, and what is on disk."""
        memory = self.ledger
        return {"total": memory.capacity_bytes, "memory": memory.resident_bytes, "disk": self._on_disk}

    @property
    def _on_disk(self) -> int:
        return sum(kept.header.size for kept in self._kept.values() if kept.file is not None)

    def look_at_disk(self) -> None:
        """Find out what the folder may still take, before anything is promised or written."""
        if self._folder is None:
            return
        try:
            disk = look_at_disk(self._folder)
        except OSError:
            self.ledger.disk_room_bytes = 0
            return
        self.ledger.disk_room_bytes = disk_room(
            self._folder_bytes, self._on_disk, disk.total_bytes, disk.free_bytes
        )

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def at_rest(self) -> bool:
        """Whether nothing that left is still being overwritten or removed."""
        return self._leaving == 0

    def check_integrity(self) -> None:
        """Raise AssertionError unless, at rest, exactly what is parked in memory has memory (H49, H97)."""
        in_memory = {kept.header.session for kept in self if kept.lease is not None}
        assert self._leases.active == len(in_memory)
        assert self.ledger.sessions == in_memory
        self.ledger.check_integrity()
        self._leases.check_integrity()

    # Coming ----------------------------------------------------------------------------------

    async def keep(
        self, header: KeptHeader, source: Arena, lease: Lease, blocks: Sequence[BlockEntry]
    ) -> Kept:
        """Copy a session's blocks out of a move's lease; `blocks` are all of them, in order.

        Raises `park_full`, `checksum_mismatch`, `lease_stale`. Cancelled: nothing is kept.
        """
        place = await self._place(header.size)
        kept = Kept(header, lease=place)
        try:
            await trio.to_thread.run_sync(_copy_in, source, lease, blocks, self._arena, place, header)
        except BaseException:
            self._clear(kept)
            raise
        self._kept[header.session] = kept
        self.ledger.keep(header.session, whole_pages(header.size))
        return kept

    async def _place(self, size: int) -> Lease:
        while (lease := self._leases.grant(size)) is None:
            victim = self.ledger.oldest({k.header.session for k in self if not k.lock.locked()})
            if self._leaving:
                await self._freed.park()  # no deadline: memory to overwrite, and one copy at most before it
            elif victim is None or self._folder is None:
                raise SwapdError(Code.PARK_FULL, f"{size} bytes wanted, {self._leases.free_bytes} free")
            else:
                await self.spill(self._kept[victim])
        self._arena.publish(lease)
        return lease

    async def spill(self, kept: Kept) -> None:
        """Move a session from memory to its file. Raises `park_full` when the disk does not take it."""
        assert self._folder is not None
        async with kept.lock:
            if kept.gone or kept.lease is None:
                return
            self.look_at_disk()
            if kept.header.size > (self.ledger.disk_room_bytes or 0):
                raise SwapdError(Code.PARK_FULL, "the folder of parked sessions has no room")
            try:
                with self._arena.region(kept.lease) as view:
                    # Not abandoned on cancellation: the file is whole, or not there.
                    kept.file = await trio.to_thread.run_sync(files.write, self._folder, kept.header, view)
            except OSError as error:
                log.error("parked session not written", extra={"errno": error.errno})
                raise SwapdError(Code.PARK_FULL, "the folder of parked sessions takes no more") from None
            lease, kept.lease = kept.lease, None
            self.ledger.remove(kept.header.session)
            await self._release(lease)

    async def spill_all(self) -> None:
        """Before a clean stop: what is in memory alone goes to disk, the oldest first, in bounded time."""
        if self._folder is None:
            return
        with trio.move_on_after(SPILL_ALL_S):
            for kept in self:
                try:
                    await self.spill(kept)
                except SwapdError:
                    return

    # Going -----------------------------------------------------------------------------------

    async def read(
        self, kept: Kept, first: int, end: int, target: Arena, lease: Lease
    ) -> tuple[BlockEntry, ...]:
        """Copy blocks [first, end) into a move's lease, checked; KV that does not check is given up.

        Raises `session_unknown` for KV that is gone or damaged, `lease_stale`.
        """
        async with kept.lock:
            if kept.gone:
                raise SwapdError(Code.SESSION_UNKNOWN)
            try:
                return await trio.to_thread.run_sync(self._copy_out, kept, first, end, target, lease)
            except (SwapdError, OSError) as error:
                if isinstance(error, SwapdError) and error.code is not Code.CHECKSUM_MISMATCH:
                    raise
                log.error("parked session damaged", extra={"session": kept.header.session})
        self.free(kept)
        raise SwapdError(Code.SESSION_UNKNOWN, "its parked KV is damaged")

    def free(self, kept: Kept) -> None:
        """A session needs its place no more. Returns at once; the bytes go off this thread. Idempotent."""
        if kept.gone:
            return
        kept.gone = True
        if self._kept.get(kept.header.session) is kept:
            del self._kept[kept.header.session]
        self.ledger.remove(kept.header.session)
        self._clear(kept)

    def _clear(self, kept: Kept) -> None:
        if self._nursery is None:
            return  # the service ends: memory goes with it, and the next start judges what is on disk
        self._leaving += 1
        self._nursery.start_soon(self._leave, kept)

    async def _leave(self, kept: Kept) -> None:
        try:
            async with kept.lock:
                if kept.lease is not None:
                    await self._release(kept.lease)
                if kept.file is not None:
                    await trio.to_thread.run_sync(files.remove, kept.file)
        finally:
            self._leaving -= 1
            self._freed.unpark_all()

    async def _release(self, lease: Lease) -> None:
        self._arena.retire(lease)
        with trio.CancelScope(shield=True):  # bounded: memory to overwrite
            await trio.to_thread.run_sync(self._arena.wipe, lease)
        self._leases.release(lease)
        self._freed.unpark_all()

    def _copy_out(
        self, kept: Kept, first: int, end: int, target: Arena, lease: Lease
    ) -> tuple[BlockEntry, ...]:
        header, size = kept.header, kept.header.block_bytes
        entries: list[BlockEntry] = []
        capacity = lease.size // size
        for index in range(first, end):
            at = (index % capacity) * size
            with target.region(lease) as region, region[at : at + size] as slot:
                if kept.lease is not None:
                    with self._arena.region(kept.lease) as mine:
                        slot[:] = mine[index * size : (index + 1) * size]
                else:
                    assert kept.file is not None
                    files.read_blocks(kept.file, header, index, [slot])
                valid, crc = header.blocks[index]
                if zlib.crc32(slot) != crc:
                    raise SwapdError(Code.CHECKSUM_MISMATCH, f"block {index}")
            entries.append(BlockEntry(index, at, valid, crc))
        return tuple(entries)


def _copy_in(
    source: Arena,
    lease: Lease,
    blocks: Sequence[BlockEntry],
    target: Arena,
    place: Lease,
    header: KeptHeader,
) -> None:
    size = header.block_bytes
    for number, entry in enumerate(blocks):
        if not 0 <= entry.offset <= lease.size - size:
            raise SwapdError(Code.MANIFEST_MISMATCH, "a block lies outside of the lease")
        with target.region(place) as mine, mine[number * size : (number + 1) * size] as slot:
            with source.region(lease) as region:
                slot[:] = region[entry.offset : entry.offset + size]
            # What is checked is what is kept (B21).
            if zlib.crc32(slot) != entry.crc:
                raise SwapdError(Code.CHECKSUM_MISMATCH, f"block {entry.index}")
        source.check(lease)
