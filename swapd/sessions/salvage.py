"""What a move had brought to its target when its source was lost (B24). Pure.

The target holds the blocks in a reservation: complete blocks, each checked as it came (B21). The session
itself is lost with its owner and is rebuilt from its transcript, as its client permits; only on that worker
the first positions need not be computed again. That is a replay and is called one (H73).
"""

from __future__ import annotations

from typing import NamedTuple

from swapd.messages.generation import Owner


class Salvage(NamedTuple):
    """An import that nobody completes: it is taken up at once, or its target is told to discard it."""

    move: str
    target: Owner
    blocks: int
