"""The owner of the workers' devices: two cards of a driver library without a card, and a load on them.

The service measures them as it measures real ones: its sampler asks the library through the real bindings,
and its tracker decides by itself that the owner needs a card.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from tests.devices.fake_nvml import FakeCard, FakeNvml, FakeUse, compiler

LOAD_PCT: Final = 80
DEVICES: Final = {"a": "card-a", "b": "card-b"}
"""The device that each worker runs on."""
CARDS: Final = {
    worker: FakeCard(uuid=f"GPU-00000000-0000-0000-0000-00000000000{worker}", pci=f"00000000:0{at}:00.0")
    for at, worker in enumerate(DEVICES, 1)
}
TOML: Final = (
    "".join(
        f'\n[[devices]]\nname = "{name}"\nkind = "nvml"\nselector = "{CARDS[worker].uuid}"\n'
        for worker, name in DEVICES.items()
    )
    + """
[owner]
consent = true
presence = "headless"
gamemode = false
resume_after_s = 0.3
finish_s = 60.0

[owner.gpu_pressure]
mode = "fixed"
threshold_pct = 50.0
poll_ms = 100
sustain_s = 0.3
release_s = 0.3
"""
)


class Owner:
    """Whoever the cards belong to. Raises AssertionError where there is no C compiler for the library."""

    def __init__(self, folder: Path) -> None:
        assert compiler() is not None, "the cells of the owner need a C compiler, for a driver without a card"
        self._nvml = FakeNvml(folder)
        self._busy: set[str] = set()
        self._show()

    def env(self) -> dict[str, str]:
        """For the service whose driver this is."""
        return self._nvml.env()

    def begin(self, worker: str) -> None:
        """Load a worker's card: this process is nobody whom the service lends to."""
        self._busy.add(worker)
        self._show()

    def end(self) -> None:
        """Leave all cards alone."""
        self._busy.clear()
        self._show()

    def _show(self) -> None:
        load = [FakeUse(os.getpid(), sm=LOAD_PCT)]
        self._nvml.set(
            devices=[
                msgspec.structs.replace(card, util=LOAD_PCT, uses=load) if worker in self._busy else card
                for worker, card in CARDS.items()
            ]
        )
