"""Scripted workers that carry real bytes: a block's KV is a function of the tokens it stands for.

So a target that took other bytes, or those of another transcript, fails the test by itself.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.messages.generation import BlockEntry, Lease, Manifest
from swapd.messages.snapshot import bind, check_manifest, check_state
from tests.migration.world import BLOCK_BYTES, BLOCK_TOKENS, ScriptedLink, World


def block(world: World, session: str, index: int, computed: int) -> bytes:
    """What a worker that computed `computed` positions has in a block."""
    live = world.table.get(session)
    assert live is not None
    tokens = [*live.record.prompt, *live.received][: min((index + 1) * BLOCK_TOKENS, computed)]
    seed = hashlib.sha256(repr(tokens).encode()).digest()
    return (seed * (BLOCK_BYTES // len(seed)))[:BLOCK_BYTES]


class KvLink(ScriptedLink):
    """A worker whose exports fill the lease, and whose imports check what they find there."""

    def __init__(self, world: World, name: str, *args: Any) -> None:
        super().__init__(world, name, *args)
        self.leases: dict[str, Lease] = {}
        self.taken: dict[str, dict[int, int]] = {}
        """Valid tokens of the blocks that were taken in, by move."""

    async def work(self, body: Any) -> object:
        match body:
            case into.Reserve(move=move, lease=lease):
                self.leases[move] = lease
                self.taken[move] = {}
            case into.Import(move=move, manifest=manifest):
                self._take_in(move, manifest)
            case into.Prepare(items=items):
                for item in items:
                    self._take_in(item.move, item.manifest)
                    live = self.world.table.get(item.session)
                    assert live is not None
                    check_state(item.manifest.state, live.record.spec(), item.outputs)
                    assert sum(self.taken[item.move].values()) == (
                        len(live.record.prompt) + len(item.outputs) - 1
                    ), "positions are missing: they would be recomputed"
        return await super().work(body)

    def _manifest(self, item: into.Export | into.FreezeItem, first: int, end: int, computed: int) -> Manifest:
        arena = self.world.arena
        assert arena is not None
        blocks = []
        for index in range(first, end):
            data, at = block(self.world, item.session, index, computed), index * BLOCK_BYTES
            with arena.region(item.lease) as view:
                view[at : at + BLOCK_BYTES] = data
            valid = min(BLOCK_TOKENS, computed - index * BLOCK_TOKENS)
            blocks.append(BlockEntry(index, at, valid, zlib.crc32(data)))
        return bind(item.session, item.epoch + 1, item.lease, "fp", blocks)

    def _take_in(self, move: str, manifest: Manifest) -> None:
        arena, lease = self.world.arena, self.leases[move]
        assert arena is not None
        live = self.world.table.get(manifest.session)
        assert live is not None
        epoch = live.record.epoch + 1
        check_manifest(manifest, session=live.id, epoch=epoch, lease=lease, fingerprint="fp")
        for entry in manifest.blocks:
            with arena.region(lease) as view:
                data = bytes(view[entry.offset : entry.offset + BLOCK_BYTES])
            computed = entry.index * BLOCK_TOKENS + entry.valid
            assert data == block(self.world, manifest.session, entry.index, computed)
            assert zlib.crc32(data) == entry.crc
            self.taken[move][entry.index] = entry.valid


class KvWorld(World):
    """A world whose workers have KV."""

    def add_worker(self, name: str, info: out.EngineInfo | None = None) -> ScriptedLink:
        made = super().add_worker(name) if info is None else super().add_worker(name, info)
        link = KvLink(self, made.name)
        self.links[name] = link
        return link
