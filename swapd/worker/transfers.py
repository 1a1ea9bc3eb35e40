"""What copy threads do: export to the arena, import from it, and the two that a moving client waits for.

Block i of a session lies at slot `i mod capacity` of its lease, so a lease of any size works: one export
carries at most `capacity` blocks. The source checks what it wrote by reading the arena; the target copies
out once, checks that copy and writes that copy, so that what was checked is what the engine gets (B21).
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from swapd import failpoints
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import (
    Alarm,
    EngineInfo,
    Exported,
    FromWorker,
    Frozen,
    FrozenItem,
    Imported,
    PreparedItem,
    Refused,
)
from swapd.messages.generation import BlockEntry, GenerationSpec, Lease, Manifest
from swapd.messages.snapshot import bind, check_manifest, check_state, decode_state
from swapd.messages.to_worker import Import, Prepare, PrepareItem
from swapd.worker.breakage import damage
from swapd.worker.copier import Job
from swapd.worker.mailbox import EVENT_TICKET, Checked, Inbox, Ticket
from swapd.worker.settings import BreakCopy
from swapd.worker.staging import Reservation, Staging

_log = logging.getLogger("swapd.worker")


class BlockAccess(Protocol):
    """The engine's two methods that any thread may call."""

    def read_block(self, block: int, into: memoryview) -> None: ...

    def write_block(self, block: int, data: memoryview) -> None: ...


class SharedMemory(Protocol):
    """The arena as copy threads use it. Both raise `lease_stale` for a lease of the past (H96)."""

    def region(self, lease: Lease) -> memoryview: ...

    def check(self, lease: Lease) -> None: ...


class ArenaSlot:
    """The arena that this worker has now; a new one replaces it, jobs under way keep theirs to the end."""

    def __init__(self) -> None:
        self._arena: SharedMemory | None = None

    def put(self, arena: SharedMemory | None) -> None:
        self._arena = arena

    def get(self) -> SharedMemory:
        """Raises `arena_unavailable`."""
        if self._arena is None:
            raise SwapdError(Code.ARENA_UNAVAILABLE)
        return self._arena


class Cargo(NamedTuple):
    """A source's blocks [first, end) of one move, to be copied out; `computed` bounds the last one.

    `spec` and `outputs` are those of a frozen session: its decode state is told with its tail.
    """

    move: str
    session: str
    epoch: int
    lease: Lease
    table: tuple[int, ...]
    first: int
    end: int
    computed: int
    spec: GenerationSpec | None = None
    outputs: tuple[int, ...] = ()


class Transfers:
    """Makes the jobs of one worker. `post` and `inbox` may be used from any thread."""

    def __init__(
        self,
        info: EngineInfo,
        blocks: BlockAccess,
        arena: ArenaSlot,
        staging: Staging,
        inbox: Inbox,
        post: Callable[[Ticket, FromWorker], None],
        break_copy: BreakCopy = "",
    ) -> None:
        self._info = info
        self._blocks = blocks
        self._arena = arena
        self._staging = staging
        self._inbox = inbox
        self._post = post
        self._break = break_copy

    # source

    def export(self, ticket: Ticket, cargo: Cargo) -> Job:
        """Copy full blocks out and answer `Exported`."""
        began = time.monotonic()
        entries: list[BlockEntry] = []
        try:
            failpoints.reach("C.before")
            yield from self._copy_out(cargo, entries)
            manifest = self._manifest(cargo, entries)
            frontier = cargo.first + len(entries)
            self._post(ticket, Exported(cargo.move, manifest, frontier, _ms_since(began)))
        except Exception as error:  # supervision boundary: a job answers, whatever happens to it
            self._post(ticket, self._refusal(error))

    def export_tails(
        self,
        ticket: Ticket,
        batch: str,
        items: Sequence[FrozenItem],
        tails: Sequence[Cargo],
        boundary_ms: float,
    ) -> Job:
        """Copy the frozen sessions' tails out and answer `Frozen`; a tail that failed has no manifest."""
        began = time.monotonic()
        manifests: dict[str, Manifest] = {}
        codes: dict[str, str] = {}
        for cargo in tails:
            entries: list[BlockEntry] = []
            try:
                failpoints.reach("X.before")
                yield from self._copy_out(cargo, entries)
                failpoints.reach("X.after")
                manifests[cargo.move] = self._manifest(cargo, entries)
            except Exception as error:  # supervision boundary: the other tails go on
                refusal = self._refusal(error)
                codes[cargo.move] = refusal.code
                self._post(EVENT_TICKET, Alarm("copy_failed", f"{cargo.move} {refusal.code}"))
        done = tuple(
            FrozenItem(i.move, i.status, i.position, i.computed, manifests.get(i.move), codes.get(i.move))
            for i in items
        )
        self._post(ticket, Frozen(batch, done, boundary_ms, _ms_since(began)))

    def _copy_out(self, cargo: Cargo, entries: list[BlockEntry]) -> Job:
        arena = self._arena.get()
        size = self._info.block_bytes
        capacity = cargo.lease.size // size
        if capacity == 0 and cargo.end > cargo.first:
            raise SwapdError(Code.ARENA_TOO_SMALL, f"a block has {size} bytes, the lease {cargo.lease.size}")
        for index in range(cargo.first, min(cargo.end, cargo.first + capacity)):
            offset = (index % capacity) * size
            with arena.region(cargo.lease) as region, region[offset : offset + size] as slot:
                self._blocks.read_block(cargo.table[index], slot)
                crc = zlib.crc32(slot)
            arena.check(cargo.lease)
            valid = min(self._info.block_tokens, cargo.computed - index * self._info.block_tokens)
            entries.append(BlockEntry(index, offset, valid, crc))
            yield

    def _manifest(self, cargo: Cargo, entries: Sequence[BlockEntry]) -> Manifest:
        """Bind the blocks to the epoch that the target would own."""
        state = () if cargo.spec is None else decode_state(cargo.spec, cargo.outputs)
        return bind(cargo.session, cargo.epoch + 1, cargo.lease, self._info.fingerprint, entries, state)

    # target

    def take_in(self, ticket: Ticket, message: Import) -> Job:
        """Check and copy a manifest's blocks into the reservation and answer `Imported`."""
        began = time.monotonic()
        try:
            reservation = self._staging.get(message.move)
            self._check(reservation, message.manifest)
            if reservation.sealed_by is None:
                yield from self._copy_in(reservation, message.manifest)
            frontier = max((entry.index + 1 for entry in message.manifest.blocks), default=0)
            self._post(ticket, Imported(message.move, frontier, _ms_since(began)))
        except Exception as error:  # supervision boundary: a job answers, whatever happens to it
            self._post(ticket, self._refusal(error))

    def take_in_tails(self, ticket: Ticket, message: Prepare) -> Job:
        """Import and verify the tails, then hand all of the batch to the engine thread together."""
        began = time.monotonic()
        checked: list[tuple[PrepareItem, PreparedItem]] = []
        for item in message.items:
            try:
                failpoints.reach("I.before")
                yield from self._prepare_one(item)
                checked.append((item, PreparedItem(item.move, True)))
            except Exception as error:  # supervision boundary: the others of the batch go on
                checked.append((item, PreparedItem(item.move, False, self._refusal(error).code)))
        self._inbox.put(Checked(ticket, message.batch, checked, _ms_since(began)))

    def _prepare_one(self, item: PrepareItem) -> Job:
        reservation = self._staging.get(item.move)
        if (reservation.spec.session, reservation.epoch) != (item.session, item.epoch):
            raise SwapdError(Code.MANIFEST_MISMATCH, "the move is another session's")
        self._check(reservation, item.manifest)
        if reservation.sealed_by is not None:
            # A repeat. Writing now could undo what the engine has computed meanwhile.
            if reservation.sealed_by != item.manifest:
                raise SwapdError(Code.MANIFEST_MISMATCH, "the move was prepared from another manifest")
            return
        check_state(item.manifest.state, reservation.spec, item.outputs)
        yield from self._copy_in(reservation, item.manifest)
        computed = len(reservation.spec.prompt) + len(item.outputs) - 1
        if not item.outputs or not reservation.complete(computed, self._info.block_tokens):
            raise SwapdError(Code.MANIFEST_MISMATCH, "blocks below the frontier are missing")
        if self._break:
            damage(self._break, self._blocks, reservation, computed, self._info)
        reservation.seal(item.manifest)

    def _check(self, reservation: Reservation, manifest: Manifest) -> None:
        check_manifest(
            manifest,
            session=reservation.spec.session,
            epoch=reservation.epoch,
            lease=reservation.lease,
            fingerprint=self._info.fingerprint,
        )

    def _copy_in(self, reservation: Reservation, manifest: Manifest) -> Job:
        arena = self._arena.get()
        lease, size = reservation.lease, self._info.block_bytes
        buffer = bytearray(size)
        for entry in manifest.blocks:
            self._check_entry(reservation, entry)
            with arena.region(lease) as region, region[entry.offset : entry.offset + size] as slot:
                buffer[:] = slot
            if not self._break and zlib.crc32(buffer) != entry.crc:
                raise SwapdError(Code.CHECKSUM_MISMATCH, f"block {entry.index}")
            arena.check(lease)
            with reservation.writing():
                self._blocks.write_block(reservation.blocks[entry.index], memoryview(buffer))
                reservation.filled[entry.index] = entry.valid
            yield

    def _check_entry(self, reservation: Reservation, entry: BlockEntry) -> None:
        if not (
            0 <= entry.index < len(reservation.blocks)
            and 0 <= entry.offset <= reservation.lease.size - self._info.block_bytes
            and 0 < entry.valid <= self._info.block_tokens
        ):
            raise SwapdError(Code.MANIFEST_MISMATCH, "a block lies outside of the lease or the budget")

    def _refusal(self, error: Exception) -> Refused:
        if isinstance(error, SwapdError):
            return Refused(error.code, error.detail)
        _log.error("copy failed", extra={"error_type": type(error).__name__})
        self._post(EVENT_TICKET, Alarm("copy_failed", type(error).__name__))
        return Refused(Code.INTERNAL)


def _ms_since(began_s: float) -> float:
    return (time.monotonic() - began_s) * 1000
