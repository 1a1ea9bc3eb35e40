"""What NVML tells of one device, in plain shapes, and how it fails. Pure: no binding is imported here."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class NvmlFault(Enum):
    """Return codes of NVML that mean something to us; every other one is `OTHER`."""

    UNINITIALIZED = 1
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    NO_DRIVER = 9
    TIMEOUT = 10
    NO_LIBRARY = 12
    NO_FUNCTION = 13
    LOST = 15
    RESET_REQUIRED = 16
    VERSION_MISMATCH = 18
    NO_DATA = 21
    ARGUMENT_VERSION = 25
    GPU_NOT_FOUND = 28
    UNKNOWN = 999
    OTHER = -1


CODES: Final = {fault.value: fault for fault in NvmlFault}

SENTENCES: Final = {
    NvmlFault.UNINITIALIZED: "the NVIDIA driver library lost its connection to the driver",
    NvmlFault.NOT_SUPPORTED: "the card or its driver does not tell the use of each process",
    NvmlFault.NO_PERMISSION: "the NVIDIA driver does not allow this user to see all processes",
    NvmlFault.NOT_FOUND: "the card is not there",
    NvmlFault.GPU_NOT_FOUND: "the card is not there",
    NvmlFault.NO_DRIVER: "no NVIDIA driver is loaded",
    NvmlFault.TIMEOUT: "the NVIDIA driver took too long",
    NvmlFault.NO_LIBRARY: "the NVIDIA driver library (libnvidia-ml.so.1) is not installed",
    NvmlFault.NO_FUNCTION: "the NVIDIA driver is too old: it lacks a function that is needed",
    NvmlFault.LOST: "the card is lost: it fell off the bus or was unplugged",
    NvmlFault.RESET_REQUIRED: "the card needs a reset",
    NvmlFault.VERSION_MISMATCH: "the NVIDIA driver was updated, reboot needed",
    NvmlFault.NO_DATA: "the NVIDIA driver has no data of the card",
    NvmlFault.UNKNOWN: "the NVIDIA driver reports an unknown error (after a resume, or when a container lost"
    " its devices, it may need to be reloaded)",
}


class NvmlFailure(Exception):
    """A call of NVML that gave nothing. `code` is NVML's own."""

    def __init__(self, call: str, code: int) -> None:
        self.call = call
        self.code = code
        self.fault = CODES.get(code, NvmlFault.OTHER)
        super().__init__(f"{call}: {code}")

    @property
    def sentence(self) -> str:
        """For people."""
        return SENTENCES.get(self.fault, f"the NVIDIA driver answered {self.code} to {self.call}")


class ProcessUse(NamedTuple):
    """One sample of one process, as told: percent of the device (it may be nonsense), µs of NVML's clock."""

    pid: int
    at_us: int
    sm_pct: int
    encoder_pct: int
    decoder_pct: int


class ProcessMemory(NamedTuple):
    """An entry of the list of running processes; `used_bytes` is None where the driver does not tell."""

    pid: int
    used_bytes: int | None


class DeviceMemory(NamedTuple):
    total_bytes: int
    free_bytes: int
    used_bytes: int


class RawDevice(NamedTuple):
    """All that one device told in one poll. None: it does not tell that at all."""

    uuid: str
    device_pct: int
    uses: tuple[ProcessUse, ...]
    processes: tuple[ProcessMemory, ...]
    encoder_pct: int | None = None
    decoder_pct: int | None = None
    memory: DeviceMemory | None = None
    pci: str | None = None
    product: str | None = None
    sm_clock_mhz: int | None = None
    power_state: str | None = None
