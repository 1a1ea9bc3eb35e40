"""Copies between the card and a page-locked arena: `python -m ops.gpu_checking.copies MIB`.

Prints one JSON object. A process of its own: what CUDA does to it is then no one else's. It ends with status
3 without a torch that sees a card. The arena's pages are locked by the host (`mlock`); only memory that CUDA
has registered is copied without a detour, so both are measured.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ops.gpu_checking.load import NO_TORCH
from ops.gpu_checking.report import Check, Json, judged
from swapd.transport.arena import Arena
from swapd.transport.arena_header import HEADER_BYTES
from swapd.transport.leases import LeaseBook

ROOT: Final = Path(__file__).resolve().parents[2]
REPEATS: Final = 5
TIMEOUT_S: Final = 180.0
MIB: Final = 1 << 20
GB: Final = 1e9
PATTERN_PERIOD: Final = 251
"""A prime: a block in a wrong place does not look right."""
NAME: Final = "page-locked copies through the arena"
COMMAND: Final = (sys.executable, "-m", "ops.gpu_checking.copies")


def check_copies(arena_mib: int, uuid: str, command: Sequence[str] = COMMAND) -> Check:
    """Run the copies in a process of their own."""
    try:
        done = subprocess.run(
            [*command, str(arena_mib)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            cwd=ROOT,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": uuid},
        )
    except subprocess.TimeoutExpired:
        return Check(NAME, "fails", f"not done after {TIMEOUT_S:g} s")
    if done.returncode == NO_TORCH:
        return Check(NAME, "skipped", "no torch here that sees the card")
    if done.returncode:
        why = "".join(done.stderr.strip().splitlines()[-1:])
        return Check(NAME, "fails", why or f"status {done.returncode}")
    return told(json.loads(done.stdout.splitlines()[-1]))


def told(figures: Json) -> Check:
    """Judge what the process measured: bytes must come back whole, and CUDA must take the arena."""
    rates = "; ".join(
        f"{'registered' if each['registered'] else 'not registered'}: {each['to_card_gb_s']:.1f} GB/s to the"
        f" card, {each['to_host_gb_s']:.1f} GB/s back"
        for each in figures["copies"]
    )
    locked = (
        "page-locked by the host" if figures["page_locked"] else "not page-locked by the host (ulimit -l)"
    )
    intact = all(each["intact"] for each in figures["copies"])
    holds = intact and figures["register_error"] is None
    trouble = "" if intact else "; BYTES DIFFER"
    if figures["register_error"] is not None:
        trouble += f"; CUDA does not register it: {figures['register_error']}"
    return judged(NAME, holds, f"{locked}; {rates}{trouble}", **figures)


def main() -> int:
    try:
        import torch
    except ImportError:
        return NO_TORCH
    if not torch.cuda.is_available():
        return NO_TORCH
    arena = Arena.create(int(sys.argv[1]) * MIB)
    try:
        print(json.dumps(_measure(torch, arena)))
    finally:
        arena.close()
    return 0


def _measure(torch: Any, arena: Arena) -> Json:
    lease = LeaseBook(arena.data_bytes, base_offset=HEADER_BYTES, regions=1).grant(arena.data_bytes)
    if lease is None:
        raise RuntimeError("an arena without room")
    arena.publish(lease)
    with arena.region(lease) as region:
        host = torch.frombuffer(region, dtype=torch.uint8)
        address = ctypes.addressof(ctypes.c_char.from_buffer(region))
        copies = [_copy(torch, host, registered=False)]
        # It returns an enum of its own; 0 is success.
        code = int(torch.cuda.cudart().cudaHostRegister(address, len(region), 0))
        if code == 0:
            copies.append(_copy(torch, host, registered=True))
            torch.cuda.cudart().cudaHostUnregister(address)
        size = len(region)
        del host
    return {
        "bytes": size,
        "page_locked": arena.page_locked,
        "register_error": None if code == 0 else f"CUDA error {code}",
        "copies": copies,
    }


def _copy(torch: Any, host: Any, *, registered: bool) -> Json:
    """There and back on a stream of their own, as `CudaBlocks` copies."""
    size = host.numel()
    pattern = (torch.arange(size, device="cuda") % PATTERN_PERIOD).to(torch.uint8)
    card = torch.zeros_like(pattern)
    stream = torch.cuda.Stream()

    def rate(copy: Callable[[], object]) -> float:
        best_s = float("inf")
        for _ in range(REPEATS):
            torch.cuda.synchronize()
            began_s = time.perf_counter()
            with torch.cuda.stream(stream):
                copy()
                stream.synchronize()
            best_s = min(best_s, time.perf_counter() - began_s)
        return float(size / best_s / GB)

    host.zero_()
    to_host = rate(lambda: host.copy_(pattern, non_blocking=True))
    to_card = rate(lambda: card.copy_(host, non_blocking=True))
    return {
        "registered": registered,
        "to_card_gb_s": to_card,
        "to_host_gb_s": to_host,
        "intact": bool(torch.equal(card, pattern)),
    }


if __name__ == "__main__":
    sys.exit(main())
