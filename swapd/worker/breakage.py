"""Damage on purpose: the bench's proof that its comparison would notice (`WorkerSettings.break_copy`).

It acts on the target's blocks when all of a session are in, with checksums off.

- flip: the top exponent bit of one value of the first block.
- swap: the first and the last block. Attention does not mind the order of two full blocks, for positions are
  in the keys already, so the last one, which is shorter, must be one of the two.
- stale: the last full block has an older block's content.
"""

from __future__ import annotations

from typing import Final, Protocol

from swapd.messages.from_worker import EngineInfo
from swapd.worker.settings import BreakCopy
from swapd.worker.staging import Reservation

FLIPPED_BYTE: Final = 1
"""The high byte of the first little-endian bfloat16."""
FLIPPED_BIT: Final = 0x40


class _Blocks(Protocol):
    def read_block(self, block: int, into: memoryview) -> None: ...

    def write_block(self, block: int, data: memoryview) -> None: ...


def damage(mode: BreakCopy, blocks: _Blocks, into: Reservation, computed: int, info: EngineInfo) -> None:
    """Damage one imported session of `computed` positions as `mode` says."""
    first, last = into.blocks[0], into.blocks[-(-computed // info.block_tokens) - 1]
    head = memoryview(bytearray(info.block_bytes))
    tail = memoryview(bytearray(info.block_bytes))
    blocks.read_block(first, head)
    blocks.read_block(last, tail)
    if mode == "flip":
        head[FLIPPED_BYTE] ^= FLIPPED_BIT
        blocks.write_block(first, head)
    elif mode == "swap":
        blocks.write_block(first, tail)
        blocks.write_block(last, head)
    elif mode == "stale":
        last_full = max(computed // info.block_tokens - 1, 0)
        if last_full == 0:
            head = memoryview(bytes(info.block_bytes))
        blocks.write_block(into.blocks[last_full], head)
