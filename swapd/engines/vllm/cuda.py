"""KV blocks in GPU memory. Not run yet: written from the facts, on a machine without a GPU.

What it rests on, and what has to be checked on a card before it may be trusted:
- `async_scheduling=False`: between two steps nothing is in flight, so a full block is final.
- A copy runs on a stream of its own, so it does not wait behind the step's kernels. Before a read it waits
  for an event recorded on the compute stream when the last step ended; a write is complete (the copying
  thread waits for it) before its session is activated.
- Host memory handed in is pageable unless the arena is page-locked; then the driver stages the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from swapd.engines.vllm.blocks import KvLayout


class CudaBlocks:
    """Blocks on a device, copied on a side stream."""

    def __init__(self, kv_caches: Sequence[torch.Tensor], layout: KvLayout) -> None:
        device = kv_caches[0].device
        raw = torch.empty(0, dtype=torch.uint8, device=device).set_(kv_caches[0].untyped_storage())
        self._view = raw.as_strided(
            (layout.layers, layout.blocks, layout.layer_block_bytes),
            (layout.layer_stride, layout.block_stride, 1),
            layout.offset,
        )
        self._shape = (layout.layers, layout.layer_block_bytes)
        self._stream: Any = torch.cuda.Stream(device=device)
        self._step_ended: Any = torch.cuda.Event()

    def step_ended(self) -> None:
        """Mark the end of a step on the compute stream (engine thread)."""
        self._step_ended.record()

    def read(self, block: int, into: memoryview) -> None:
        host = torch.frombuffer(into, dtype=torch.uint8).view(self._shape)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._step_ended)
            host.copy_(self._view[:, block], non_blocking=True)
            self._stream.synchronize()

    def write(self, block: int, data: memoryview) -> None:
        host = torch.frombuffer(data, dtype=torch.uint8).view(self._shape)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._step_ended)
            self._view[:, block].copy_(host, non_blocking=True)
            self._stream.synchronize()
