"""The only door to `pynvml`: the calls that are needed, typed, with NVML's errors as `NvmlFailure`.

The binding finds `libnvidia-ml.so.1` as the dynamic linker does. Every call may block for ever or end the
process (a hung driver, a handle of a lost card), so only the sampler process calls here. A handle is good for
one poll: it is asked for anew by UUID each time, and never used again after a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NewType, TypeVar

import pynvml  # type: ignore[import-untyped]  # nvidia-ml-py ships no types; nothing untyped leaves this module

from swapd.devices.nvml_raw import DeviceMemory, NvmlFailure, NvmlFault, ProcessMemory, ProcessUse

SUCCESS: Final = 0
INSUFFICIENT_SIZE: Final = 7
SIZE_ATTEMPTS: Final = 3
"""Between asking how much there is and asking for it, there may be more."""
UNTOLD: Final = frozenset(
    {
        NvmlFault.NOT_SUPPORTED,
        NvmlFault.NO_FUNCTION,
        NvmlFault.NO_PERMISSION,
        NvmlFault.ARGUMENT_VERSION,
        NvmlFault.NO_DATA,
        NvmlFault.OTHER,
    }
)
"""Faults of a call that is nice to have, after which the device is asked on."""

Handle = NewType("Handle", object)
T = TypeVar("T")


def untold(call: Callable[[], T]) -> T | None:
    """What a call gives, or None where the device merely does not tell (`UNTOLD`)."""
    try:
        return call()
    except NvmlFailure as failure:
        if failure.fault in UNTOLD:
            return None
        raise


class NvmlLibrary:
    """NVML, one thread at a time. Every method raises `NvmlFailure`."""

    def open(self) -> None:
        """Load the library if need be and initialise it. It wakes every card of the machine."""
        _call("nvmlInit", pynvml.nvmlInit)

    def close(self) -> None:
        """Shut NVML down: handles of before are worthless, and cards may sleep again."""
        _call("nvmlShutdown", pynvml.nvmlShutdown)

    def driver_version(self) -> str:
        return str(_call("nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion))

    def count(self) -> int:
        return int(_call("nvmlDeviceGetCount", pynvml.nvmlDeviceGetCount))

    def by_uuid(self, uuid: str) -> Handle:
        return Handle(_call("nvmlDeviceGetHandleByUUID", pynvml.nvmlDeviceGetHandleByUUID, uuid))

    def by_index(self, index: int) -> Handle:
        return Handle(_call("nvmlDeviceGetHandleByIndex", pynvml.nvmlDeviceGetHandleByIndex, index))

    def uuid(self, device: Handle) -> str:
        return str(_call("nvmlDeviceGetUUID", pynvml.nvmlDeviceGetUUID, device))

    def product(self, device: Handle) -> str:
        return str(_call("nvmlDeviceGetName", pynvml.nvmlDeviceGetName, device))

    def pci(self, device: Handle) -> str:
        """The bus address, with a domain of eight digits."""
        bus_id = _call("nvmlDeviceGetPciInfo", pynvml.nvmlDeviceGetPciInfo, device).busId
        return bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else str(bus_id)

    def mig(self, device: Handle) -> bool:
        """Whether the card is cut in slices now; False where it cannot be."""
        try:
            current, _ = _call("nvmlDeviceGetMigMode", pynvml.nvmlDeviceGetMigMode, device)
        except NvmlFailure as failure:
            if failure.fault in (NvmlFault.NOT_SUPPORTED, NvmlFault.NO_FUNCTION):
                return False
            raise
        return bool(current)

    def device_pct(self, device: Handle) -> int:
        rates = _call("nvmlDeviceGetUtilizationRates", pynvml.nvmlDeviceGetUtilizationRates, device)
        return int(rates.gpu)

    def encoder_pct(self, device: Handle) -> int:
        told = _call("nvmlDeviceGetEncoderUtilization", pynvml.nvmlDeviceGetEncoderUtilization, device)
        return int(told[0])

    def decoder_pct(self, device: Handle) -> int:
        told = _call("nvmlDeviceGetDecoderUtilization", pynvml.nvmlDeviceGetDecoderUtilization, device)
        return int(told[0])

    def process_uses(self, device: Handle, since_us: int) -> tuple[ProcessUse, ...]:
        """Samples newer than `since_us` (0: all that the driver keeps), as told; none is no failure.

        NOT_FOUND means that no process used the device (nvml-wrapper #56), and the binding turns success
        without an entry into an error of code 0.
        """
        name = "nvmlDeviceGetProcessUtilization"
        for attempt in range(SIZE_ATTEMPTS):
            try:
                told = _call(name, pynvml.nvmlDeviceGetProcessUtilization, device, since_us)
            except NvmlFailure as failure:
                if failure.fault is NvmlFault.NOT_FOUND or failure.code == SUCCESS:
                    return ()
                if failure.code != INSUFFICIENT_SIZE or attempt + 1 == SIZE_ATTEMPTS:
                    raise
            else:
                break
        return tuple(
            ProcessUse(
                int(each.pid), int(each.timeStamp), int(each.smUtil), int(each.encUtil), int(each.decUtil)
            )
            for each in told
        )

    def processes(self, device: Handle) -> tuple[ProcessMemory, ...]:
        """All three lists: compute, graphics, and MPS clients where the driver knows such a list."""
        return (
            *_processes("nvmlDeviceGetComputeRunningProcesses_v3", device),
            *_processes("nvmlDeviceGetGraphicsRunningProcesses_v3", device),
            *(untold(lambda: _processes("nvmlDeviceGetMPSComputeRunningProcesses_v3", device)) or ()),
        )

    def memory(self, device: Handle) -> DeviceMemory:
        """What the driver keeps for itself counts as neither free nor used where it tells them apart."""
        name = "nvmlDeviceGetMemoryInfo"
        try:
            told = _call(name, pynvml.nvmlDeviceGetMemoryInfo, device, pynvml.nvmlMemory_v2)
        except NvmlFailure as failure:
            if failure.fault not in (NvmlFault.NO_FUNCTION, NvmlFault.ARGUMENT_VERSION):
                raise
            told = _call(name, pynvml.nvmlDeviceGetMemoryInfo, device)
        return DeviceMemory(int(told.total), int(told.free), int(told.used))

    def sm_clock_mhz(self, device: Handle) -> int:
        return int(
            _call("nvmlDeviceGetClockInfo", pynvml.nvmlDeviceGetClockInfo, device, pynvml.NVML_CLOCK_SM)
        )

    def power_state(self, device: Handle) -> str:
        """P0 (busy) to P15."""
        state = _call("nvmlDeviceGetPerformanceState", pynvml.nvmlDeviceGetPerformanceState, device)
        return f"P{int(state)}"


def _processes(name: str, device: Handle) -> tuple[ProcessMemory, ...]:
    for attempt in range(SIZE_ATTEMPTS):
        try:
            told = _call(name, getattr(pynvml, name), device)
        except NvmlFailure as failure:
            if failure.code != INSUFFICIENT_SIZE or attempt + 1 == SIZE_ATTEMPTS:
                raise
        else:
            break
    return tuple(
        ProcessMemory(int(each.pid), None if each.usedGpuMemory is None else int(each.usedGpuMemory))
        for each in told
    )


# The binding is untyped: what comes out of it is made into our own types by every caller above.
def _call(name: str, function: Callable[..., T], *arguments: object) -> T:
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise NvmlFailure(name, int(error.value)) from None
    except pynvml.NVMLLibraryMismatchError:
        raise NvmlFailure(name, NvmlFault.NO_FUNCTION.value) from None
