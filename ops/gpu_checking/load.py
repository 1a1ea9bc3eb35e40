"""A process that uses the card until its stdin ends: `python -m ops.gpu_checking.load`.

It says `ready` once it computes. Without a torch that sees a card it ends with status 3.
"""

from __future__ import annotations

import select
import sys
from typing import Final

NO_TORCH: Final = 3
SIDE: Final = 4096
BATCH: Final = 20


def main() -> int:
    try:
        import torch
    except ImportError:
        return NO_TORCH
    if not torch.cuda.is_available():
        return NO_TORCH
    matrix = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(BATCH):
            torch.matmul(matrix, matrix)
        torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
