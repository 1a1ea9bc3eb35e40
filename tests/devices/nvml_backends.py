"""A backend over the fake NVML, with lenders and names as a test says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from swapd.devices import nvml as nvml_module
from swapd.devices.nvml import NvmlBackend
from swapd.messages.sampler import Measurement, Sample, SampledDevice, SamplerSettings

SAMPLE: Final = Sample(v=1, number=1, lenders=(1,))
T0_US: Final = 1_700_000_000_000_000
"""Where the driver's clock stands in tests."""
LENDER: Final = 4242
OWNER: Final = 5151


class Machine:
    """A host: its lenders, its process names, its clock, and a `/proc` and `/sys` of its own."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.sysfs = folder / "sys"
        (self.proc / "self/ns").mkdir(parents=True)
        self.namespace = self.proc / "self/ns/pid"
        os.symlink(nvml_module.INITIAL_PID_NAMESPACE, self.namespace)
        (self.proc / "sys/kernel").mkdir(parents=True)
        self.kernel("6.8.0-generic")
        self.now_s = 1000.0
        self.lenders = {LENDER}
        self.names: dict[int, str] = {}
        for pid in (LENDER, OWNER):
            self.process(pid)

    def kernel(self, release: str) -> None:
        (self.proc / "sys/kernel/osrelease").write_text(release)

    def process(self, pid: int) -> None:
        (self.proc / str(pid)).mkdir()

    def ends(self, pid: int) -> None:
        (self.proc / str(pid)).rmdir()

    def lender_pids(self, roots: Iterable[int], ports: Iterable[int]) -> frozenset[int]:
        return frozenset(self.lenders)

    def name_matches(self, pid: int, names: Iterable[str]) -> bool:
        return self.names.get(pid, "").lower() in {name.lower() for name in names}

    def card(self, pci: str, status: str) -> Path:
        """Add an NVIDIA card to sysfs, and return its folder."""
        folder = self.sysfs / "bus/pci/devices" / pci
        (folder / "power").mkdir(parents=True)
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030000\n")
        (folder / "power/runtime_status").write_text(f"{status}\n")
        return folder

    def status(self, pci: str, status: str) -> None:
        (self.sysfs / "bus/pci/devices" / pci / "power/runtime_status").write_text(f"{status}\n")

    def backend(
        self, *selectors: str, ignore: tuple[str, ...] = (), always: tuple[str, ...] = ()
    ) -> NvmlBackend:
        devices = tuple(
            SampledDevice(name=f"gpu{index}", selector=selector)
            for index, selector in enumerate(selectors or ("0",))
        )
        settings = SamplerSettings("nvml", "ipc://unused", devices, ignore, always)
        return NvmlBackend(
            settings,
            lambda: self.now_s,
            lender_pids=self.lender_pids,
            name_matches=self.name_matches,
            proc=self.proc,
            sysfs=self.sysfs,
        )


def measure(backend: NvmlBackend) -> Measurement:
    """One poll of a backend with one device."""
    (measurement,) = backend.measure(SAMPLE)
    return measurement
