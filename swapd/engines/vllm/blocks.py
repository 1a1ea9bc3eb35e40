"""KV blocks as opaque bytes.

vLLM 0.32 keeps the caches of all layers in one allocation: layer l of block b starts at
`offset + l * layer_stride + b * block_stride`. Seen as bytes that is one array [layer, block, byte], so a
block is copied by one NumPy call, which lets go of the interpreter lock for the whole copy. CPU attention
packs K and V as its instruction set likes: bytes are moved, never interpreted (LMCache #4463 guessed a
layout and corrupted silently).

One thing is looked at: the CPU's attention multiplies the values of positions that no token owns yet by zero,
and zero times NaN is NaN. A single NaN past the valid length of a tail turns the whole output into
token 0 (seen with 0.32). So a value that is not finite never enters a block: it is written as zero (H84).
In a healthy session there is none; where a valid one was NaN, the session was lost on its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig

from swapd.errors import Code, SwapdError

# bfloat16: sign, 8 bits of exponent, 7 of fraction. All exponent bits set: infinite or NaN.
EXPONENT_BF16: Final = 0x7F80
SIGN_BF16: Final = 0x8000


class KvLayout(NamedTuple):
    """Where blocks lie: strides and sizes in bytes; `shape` is one layer's, for the fingerprint."""

    layers: int
    blocks: int
    layer_stride: int
    block_stride: int
    layer_block_bytes: int
    offset: int
    name: str
    shape: str

    @property
    def block_bytes(self) -> int:
        return self.layers * self.layer_block_bytes


class KvBlocks(Protocol):
    """Reads and writes whole blocks from any thread, beside a step."""

    def step_ended(self) -> None:
        """Say that a step ended: what it computed may be read from now on (engine thread)."""

    def read(self, block: int, into: memoryview) -> None:
        """Copy a block out, layer after layer."""

    def write(self, block: int, data: memoryview) -> None:
        """Copy a block in."""


class HostBlocks:
    """Blocks in host memory: the CPU build."""

    def __init__(self, kv_caches: Sequence[torch.Tensor], layout: KvLayout) -> None:
        raw = torch.empty(0, dtype=torch.uint8).set_(kv_caches[0].untyped_storage())
        self._view: np.ndarray[Any, np.dtype[np.uint8]] = np.lib.stride_tricks.as_strided(
            raw.numpy()[layout.offset :],
            shape=(layout.layers, layout.blocks, layout.layer_block_bytes),
            strides=(layout.layer_stride, layout.block_stride, 1),
        )
        self._shape = (layout.layers, layout.layer_block_bytes)

    def step_ended(self) -> None:
        return

    def read(self, block: int, into: memoryview) -> None:
        np.copyto(np.frombuffer(into, dtype=np.uint8).reshape(self._shape), self._view[:, block])

    def write(self, block: int, data: memoryview) -> None:
        finite = without_non_finite(np.frombuffer(data, dtype=np.uint16))
        np.copyto(self._view[:, block], finite.view(np.uint8).reshape(self._shape))


def without_non_finite(values: np.ndarray[Any, np.dtype[np.uint16]]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Return bfloat16 values with zero in place of NaN and infinity; the array itself when it has none.

    Two maxima find out, in 20 us for 0.7 MB: as signed integers only positive non-finite values reach the
    exponent mask, as unsigned ones only negative ones reach it with the sign.
    """
    positive = int(values.view(np.int16).max()) >= EXPONENT_BF16
    negative = int(values.max()) >= SIGN_BF16 | EXPONENT_BF16
    if not positive and not negative:
        return values
    return np.where(values & EXPONENT_BF16 == EXPONENT_BF16, np.uint16(0), values)


def kv_layout(config: KVCacheConfig, kv_caches: Sequence[torch.Tensor]) -> KvLayout:
    """Read the layout off the engine as it was really built.

    Raises `SwapdError(MODEL_UNSUPPORTED)` unless it is one group of full attention layers, each with its own
    equal share of every block, a block's share contiguous.
    """
    if len(config.kv_cache_groups) != 1:
        raise _unsupported(f"{len(config.kv_cache_groups)} KV cache groups")
    spec = config.kv_cache_groups[0].kv_cache_spec
    # Not isinstance: subclasses are MLA, sinks and windows.
    if type(spec) is not FullAttentionSpec or spec.sliding_window or spec.attention_chunk_size:
        raise _unsupported(f"KV cache of kind {type(spec).__name__}")
    if len(config.kv_cache_tensors) != 1:
        raise _unsupported(f"{len(config.kv_cache_tensors)} KV cache tensors")
    tensor = config.kv_cache_tensors[0]
    if len(tensor.layers) != len(kv_caches) or len(config.kv_cache_groups[0].layer_names) != len(kv_caches):
        raise _unsupported("layers that share a KV cache")
    first = kv_caches[0]
    if first.dtype != torch.bfloat16:
        raise _unsupported(f"KV cache of type {first.dtype}")
    share = first[0].numel() * first.element_size()
    for index, cache in enumerate(kv_caches):
        starts_at = cache.storage_offset() * cache.element_size()
        expected = tensor.offset + index * tensor.layer_stride
        if (
            cache.shape != first.shape
            or cache.shape[0] != config.num_blocks
            or cache.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
            or starts_at != expected
            or cache.stride(0) * cache.element_size() != tensor.block_stride
            or not _is_one_run(cache[0])
        ):
            raise _unsupported(f"KV cache layout {config.kv_cache_layout}")
    return KvLayout(
        layers=len(kv_caches),
        blocks=config.num_blocks,
        layer_stride=tensor.layer_stride,
        block_stride=tensor.block_stride,
        layer_block_bytes=share,
        offset=tensor.offset,
        name=str(config.kv_cache_layout),
        shape=f"{tuple(first.shape[1:])} strides {tuple(first.stride()[1:])} {first.dtype}",
    )


def _is_one_run(block: torch.Tensor) -> bool:
    """Whether a block's elements fill one run of memory without gaps, in whatever order."""
    expected = 1
    for size, stride in sorted(zip(block.shape, block.stride(), strict=True), key=lambda pair: pair[1]):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _unsupported(reason: str) -> SwapdError:
    return SwapdError(Code.MODEL_UNSUPPORTED, reason)
