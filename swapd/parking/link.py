"""The park as a side of a move: it answers a worker's messages, so that waves go to it and come from it.

    to the park      reserve, pre-copy as to a worker; prepare copies all out of the lease; commit makes
                     the park the owner under the next epoch; there is nothing to activate, and the source
                     releases at once
    from the park    export and freeze copy into the move's lease; the park stays pinned until the first token
                     of the new owner is durable (decision 2), and has the session back if that is lost (B22)

No worker needs to know that the other side is no worker. To the store the park is an owner like others, under
a name and an incarnation that never change; it appends nothing. What it holds in memory alone does not
outlive the process, so after a start `holds` says which of its sessions are really there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from swapd.errors import Code, SwapdError
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.messages.generation import PARK, BlockEntry, GenerationSpec, Manifest, Owner, StateEntry
from swapd.messages.snapshot import (
    SNAPSHOT_SCHEMA,
    bind,
    check_manifest,
    check_state,
    decode_state,
    valid_tokens,
)
from swapd.parking.kept import Kept, KeptHeader
from swapd.parking.room import ParkRoom
from swapd.transport.arena import Arena

log = logging.getLogger("swapd.parking")

OWNER: Final = Owner(PARK, PARK)

M = TypeVar("M")

Transcript = Callable[[str], tuple[GenerationSpec, Sequence[int]] | None]
"""A session's parameters and its accepted tokens, as the store has them; None: there is no such session."""


@dataclass
class _Arrival:
    """A move to the park: what its manifests said so far. The bytes lie in its lease until all are there."""

    info: out.EngineInfo
    reserve: into.Reserve | None = None
    blocks: dict[int, BlockEntry] = field(default_factory=dict)
    kept: Kept | None = None


class ParkLink:
    """Implements `swapd.migration.route.Peer` and `swapd.sessions.table.ParkOwner`."""

    name: Final = PARK
    owner: Final = OWNER
    ready: Final[out.Ready | None] = None
    stats: Final = None

    def __init__(self, room: ParkRoom, arena: Arena, transcript: Transcript) -> None:
        """`arena` is that of the moves."""
        self.room = room
        self.on_credit: Callable[[], None] = lambda: None
        """Somebody reads a parked session, or may: it is to come back when there is room."""
        self._arena = arena
        self._transcript = transcript
        self._arrivals: dict[str, _Arrival] = {}

    def is_owner(self, owner: Owner | None) -> bool:
        return owner == OWNER

    def holds(self, session: str) -> bool:
        """Whether the KV of a session that the park owns is there."""
        return self.room.get(session) is not None

    def inventory(self) -> out.Inventory:
        """What is there after a start, in the words of a worker that attaches."""
        items = (kept.header for kept in self.room)
        return out.Inventory(
            tuple(out.InventoryItem(h.session, h.epoch, "parked", h.position, ()) for h in items)
        )

    def credit(self, session: str) -> None:
        self.room.ledger.touch(session)
        self.on_credit()

    def tell(self, body: into.ToWorker) -> None:
        """Carry out what needs no answer; what is not here any more needs nothing."""
        match body:
            case into.Cancel(session=session, epoch=epoch) | into.Release(session=session, epoch=epoch):
                kept = self._find(session, epoch)
                if kept is not None:
                    self.room.free(kept)
            case into.Resume(session=session, epoch=epoch, new_epoch=int(new_epoch)):
                # A re-home: it is here again, under a new epoch (B22).
                kept = self._find(session, epoch)
                if kept is not None:
                    kept.header = msgspec.structs.replace(kept.header, epoch=new_epoch)
            case into.Discard(move=move):
                self._discard(move)
            case _:
                pass

    async def request(self, body: into.ToWorker, expect: type[M], timeout_s: float | None = None) -> M:
        """Answer as a worker does. No deadline: it waits for memory and disk, for no other process.

        Raises `session_unknown`, `park_full`, `checksum_mismatch`, `manifest_mismatch`, `lease_stale`.
        """
        answer = await self._answer(body)
        assert isinstance(answer, expect), answer
        return answer

    async def _answer(self, body: into.ToWorker) -> out.FromWorker:
        match body:
            case into.Reserve():
                self._arrival(body.move).reserve = body
                return out.Reserved(body.move, 0)
            case into.Import(move=move, manifest=manifest):
                arrival = self._arrival(move)
                self._note(arrival, manifest)
                return out.Imported(move, max(arrival.blocks, default=-1) + 1, 0.0)
            case into.Prepare(batch=batch, items=items):
                done = [await self._prepare(item) for item in items]
                return out.Prepared(batch, tuple(done), 0.0)
            case into.Activate(items=items):
                return self._activate(items)
            case into.Discard(move=move):
                self._discard(move)
                return out.Done()
            case into.Release():
                self.tell(body)
                return out.Done()
            case into.Quiesce(batch=batch):
                return out.Quiesced(batch)
            case into.Export():
                return await self._export(body)
            case into.Freeze(batch=batch, items=items):
                frozen = [await self._freeze(item) for item in items]
                return out.Frozen(batch, tuple(frozen), 0.0, 0.0)
            case _:
                raise SwapdError(Code.FRAME_MALFORMED, "not a command for the park")

    # Coming ----------------------------------------------------------------------------------

    def expect(self, move: str, tokens: int, info: out.EngineInfo) -> None:
        """Promise room to a move of a session that has so many positions now; `settle` ends the promise.

        Raises `park_full`.
        """
        self.room.look_at_disk()
        self.room.ledger.expect(move, tokens, info)
        self._arrivals[move] = _Arrival(info)

    def settle(self, move: str) -> None:
        """The move is over, whatever its end."""
        self._arrivals.pop(move, None)
        self.room.ledger.withdraw(move)

    def _arrival(self, move: str) -> _Arrival:
        found = self._arrivals.get(move)
        if found is None:
            raise SwapdError(Code.LEASE_EXPIRED)
        return found

    def _note(self, arrival: _Arrival, manifest: Manifest) -> into.Reserve:
        reserve = arrival.reserve
        if reserve is None:
            raise SwapdError(Code.LEASE_EXPIRED)
        check_manifest(
            manifest,
            session=reserve.spec.session,
            epoch=reserve.epoch,
            lease=reserve.lease,
            fingerprint=arrival.info.fingerprint,
        )
        arrival.blocks |= {entry.index: entry for entry in manifest.blocks}
        return reserve

    async def _prepare(self, item: into.PrepareItem) -> out.PreparedItem:
        try:
            arrival = self._arrival(item.move)
            if arrival.kept is None:
                reserve = self._note(arrival, item.manifest)
                check_state(item.manifest.state, reserve.spec, item.outputs)
                blocks = tuple(arrival.blocks[index] for index in sorted(arrival.blocks))
                header = _header(arrival.info, reserve, item, blocks)
                arrival.kept = await self.room.keep(header, self._arena, reserve.lease, blocks)
                # Its room is taken now, not promised any more.
                self.room.ledger.withdraw(item.move)
        except SwapdError as error:
            extra = {"session": item.session, "code": error.code, "reason": error.detail}
            log.warning("session not parked", extra=extra)
            return out.PreparedItem(item.move, False, error.code)
        return out.PreparedItem(item.move, True)

    def _activate(self, items: tuple[into.SessionEpoch, ...]) -> out.Activated:
        return out.Activated(tuple(i.session for i in items if self._find(i.session, i.epoch) is None))

    def _discard(self, move: str) -> None:
        arrival = self._arrivals.pop(move, None)
        if arrival is not None and arrival.kept is not None:
            self.room.free(arrival.kept)

    # Going -----------------------------------------------------------------------------------

    def _find(self, session: str, epoch: int) -> Kept | None:
        kept = self.room.get(session)
        return kept if kept is not None and kept.header.epoch == epoch else None

    def _leaver(self, session: str, epoch: int) -> Kept | None:
        """What is kept of a session that goes; KV that is not of its transcript is given up (H78, H89)."""
        kept, told = self._find(session, epoch), self._transcript(session)
        if kept is None:
            return None
        if told is not None and _is_of(kept.header, *told):
            return kept
        log.error("parked session is not of its transcript", extra={"session": session})
        self.room.free(kept)
        return None

    async def _export(self, export: into.Export) -> out.Exported:
        kept = self._leaver(export.session, export.epoch)
        if kept is None:
            raise SwapdError(Code.SESSION_UNKNOWN)
        full = kept.header.computed // kept.header.block_tokens
        manifest = await self._manifest(kept, export, full)
        first = max(export.from_block, 0)
        return out.Exported(export.move, manifest, first + len(manifest.blocks), 0.0)

    async def _freeze(self, item: into.FreezeItem) -> out.FrozenItem:
        kept = self._leaver(item.session, item.epoch)
        if kept is None:
            return out.FrozenItem(item.move, "unknown")
        header = kept.header
        try:
            manifest = await self._manifest(kept, item, len(header.blocks), header.state)
        except SwapdError as error:
            if error.code is Code.SESSION_UNKNOWN:
                return out.FrozenItem(item.move, "unknown")
            log.warning("session not exported", extra={"session": item.session, "code": error.code})
            return out.FrozenItem(item.move, "frozen", header.position, header.computed)
        return out.FrozenItem(item.move, "frozen", header.position, header.computed, manifest)

    async def _manifest(
        self,
        kept: Kept,
        asked: into.Export | into.FreezeItem,
        end: int,
        state: tuple[StateEntry, ...] = (),
    ) -> Manifest:
        first, lease, header = max(asked.from_block, 0), asked.lease, kept.header
        end = min(end, first + lease.size // header.block_bytes)
        blocks = await self.room.read(kept, first, max(first, end), self._arena, lease)
        return bind(asked.session, asked.epoch + 1, lease, header.fingerprint, blocks, state)


def _is_of(header: KeptHeader, spec: GenerationSpec, outputs: Sequence[int]) -> bool:
    """Whether what is kept is the session as it stands: it makes no token while it is parked."""
    frontier = (len(outputs), len(spec.prompt) + len(outputs) - 1)
    return frontier == (header.position, header.computed) and header.state == decode_state(spec, outputs)


def _header(
    info: out.EngineInfo, reserve: into.Reserve, item: into.PrepareItem, blocks: tuple[BlockEntry, ...]
) -> KeptHeader:
    """What is kept. Raises `manifest_mismatch` unless the blocks hold every position below the frontier."""
    computed = len(reserve.spec.prompt) + len(item.outputs) - 1
    needed = valid_tokens(computed, info.block_tokens)
    if not item.outputs or [(b.index, b.valid) for b in blocks] != list(enumerate(needed)):
        raise SwapdError(Code.MANIFEST_MISMATCH, "blocks below the frontier are missing")
    return KeptHeader(
        schema=SNAPSHOT_SCHEMA,
        session=reserve.spec.session,
        epoch=item.epoch,
        position=len(item.outputs),
        computed=computed,
        fingerprint=info.fingerprint,
        block_tokens=info.block_tokens,
        block_bytes=info.block_bytes,
        blocks=tuple((entry.valid, entry.crc) for entry in blocks),
        state=item.manifest.state,
    )
