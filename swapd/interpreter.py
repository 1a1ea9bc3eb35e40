"""How the interpreter is set in processes in which somebody waits for a token."""

from __future__ import annotations

import gc
import sys
from typing import Final

SWITCH_INTERVAL_S: Final = 0.0005


def switch_threads_soon() -> None:
    """Have a thread that computes give way ten times as often as by default: others have a token in hand."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def spare_what_is_here() -> None:
    """Keep all that was made so far out of every later garbage collection.

    Called once a process is ready to serve: what it has then, modules above all, lives as long as it does. To
    look through it took 70 ms every few seconds, during which no client of any session got a token.
    """
    gc.collect()
    gc.freeze()
