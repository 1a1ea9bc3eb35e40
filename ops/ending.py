"""How a command of this folder ends: whatever signal ends it, it ends first what it has started.

A signal becomes a KeyboardInterrupt in the main thread, in Trio as outside of it, so that every `finally` on
the way out runs. Those end the service, its workers and its folder: asked, waited for, killed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAID_BY_SIGNAL: Final = 128
"""A command that a signal has ended has this and the signal's number as its status."""


def run_command(main: Callable[[], int]) -> int:
    """Run a drill or a bench and return its exit status. Main thread only; once a process."""
    heard: list[int] = []

    def hear(number: int, _: FrameType | None) -> None:
        # One is enough: the end is bounded, and a second one would break it off.
        if not heard:
            heard.append(number)
            signal.raise_signal(signal.SIGINT)

    # Trio delivers this one only where it does no harm; a shell may have started us without it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ENDING[1:]:
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:  # as by nohup
            signal.signal(number, hear)
    status = SAID_BY_SIGNAL + signal.SIGINT
    try:
        status = main()
    except* KeyboardInterrupt:
        pass
    finally:
        # What is left to do is done at exit.
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
    return SAID_BY_SIGNAL + heard[0] if heard else status
