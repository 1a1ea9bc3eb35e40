"""Runs a worker whose engine misbehaves: `python -m tests.worker.faulty FAULT SETTINGS`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from swapd.config import SimConfig
from swapd.engines import sim
from swapd.engines.sim import SimEngine
from swapd.worker.__main__ import main


def fail_in_step(engine: SimEngine) -> None:
    def step() -> NoReturn:
        raise ZeroDivisionError

    engine.step = step  # type: ignore[method-assign]  # the fault


def print_while_opening(engine: SimEngine) -> None:
    print("from python", flush=True)  # noqa: T201  # what libraries do
    os.write(1, b"from c\n")


FAULTS: dict[str, Callable[[SimEngine], None]] = {"step": fail_in_step, "print": print_while_opening}

if __name__ == "__main__":
    fault = FAULTS[sys.argv.pop(1)]
    real = sim.open_sim

    def open_faulty(config: SimConfig) -> SimEngine:
        engine = real(config)
        fault(engine)
        return engine

    sim.open_sim = open_faulty
    sys.exit(main())
