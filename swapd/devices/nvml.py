"""Measures NVIDIA cards, poll by poll; runs in the sampler process.

A poll: is a card asleep (then it stays so) → NVML open → each card by its UUID, with handles of this poll
only → who is a lender → judged by `nvml_rules`. One card's trouble is one card's: the others are read on.
NVML is initialised anew when no card could be read, and now and then while one cannot, for a card that comes
back may be seen only then. The first poll of a card after that is no reading (`first`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from swapd.devices.nvml_library import Handle, NvmlLibrary, untold
from swapd.devices.nvml_raw import NvmlFailure, NvmlFault, RawDevice
from swapd.devices.nvml_rules import (
    MIG,
    NAMESPACE,
    WENT_BACK,
    WSL,
    failed,
    judge,
    pids,
    refused,
    ring_newest_us,
    tell_who,
)
from swapd.devices.pci_power import PciPower
from swapd.messages.sampler import Measurement, Sample, SampledDevice, SamplerSettings

INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"
"""The kernel's own number of it: the driver tells pids of this namespace only (nvidia-docker #1483)."""
REOPEN_AFTER_S: Final = 60.0
FIRST_CARD: Final = "0"
ASLEEP: Final = "the card is powered down and was left so"

LenderPids = Callable[[Iterable[int], Iterable[int]], frozenset[int]]
"""(root pids, ports) → every lender, with its whole tree (D24)."""
NameMatches = Callable[[int, Iterable[str]], bool]
"""(pid, names) → whether the process has one of them, without regard to case (D23)."""


class _Device:
    """What is kept of a device from poll to poll. `last_us` None: nothing since NVML was initialised."""

    def __init__(self, settings: SampledDevice) -> None:
        self.name = settings.name
        self.selector = settings.selector or FIRST_CARD
        self.last_us: int | None = None
        self.pci: str | None = None
        self.told_before = False


class NvmlBackend:
    """All devices of one sampler process; blocking, one thread's. `proc` and `sysfs` are for tests."""

    def __init__(
        self,
        settings: SamplerSettings,
        clock: Callable[[], float],
        *,
        lender_pids: LenderPids,
        name_matches: NameMatches,
        library: NvmlLibrary | None = None,
        proc: Path = Path("/proc"),
        sysfs: Path = Path("/sys"),
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._lender_pids = lender_pids
        self._name_matches = name_matches
        self._library = library or NvmlLibrary()
        self._proc = proc
        self._power = PciPower(sysfs, proc)
        self._devices = [_Device(each) for each in settings.devices]
        self._opened_at_s: float | None = None
        self._lenders: frozenset[int] = frozenset()
        self._cannot = cannot_attribute(proc)

    def measure(self, sample: Sample) -> tuple[Measurement, ...]:
        """Measure every device once, in the order of the settings. Never raises for what a driver does.

        It may hang or end the process, with the driver.
        """
        if self._cannot is not None:
            return self._all(
                lambda each: refused(each.name, self._clock(), "unsupported", self._cannot or "")
            )
        awake = [each for each in self._devices if not self._power.asleep(each.selector, each.pci)]
        if not awake:
            self.close()
            return self._all(self._asleep)
        trouble = self._open()
        if trouble is not None:
            return self._all(
                lambda each: self._failed(each, trouble) if each in awake else self._asleep(each)
            )
        raws = {each.name: self._read(each) for each in awake}
        # After the reading: every process that it tells of has been there before, and so is found.
        lenders = self._who_lends(sample)
        measured = self._all(
            lambda each: self._judge(each, raws[each.name], lenders) if each in awake else self._asleep(each)
        )
        self._reopen_if_needed([each for each in measured if each.result != "asleep"])
        return measured

    def close(self) -> None:
        """Shut NVML down, so that cards may sleep. The next `measure` opens it again."""
        if self._opened_at_s is None:
            return
        self._opened_at_s = None
        for device in self._devices:
            device.last_us = None
        # One that cannot even shut down is as good as closed.
        with contextlib.suppress(NvmlFailure):
            self._library.close()

    def _all(self, measure: Callable[[_Device], Measurement]) -> tuple[Measurement, ...]:
        return tuple(measure(each) for each in self._devices)

    def _open(self) -> NvmlFailure | None:
        if self._opened_at_s is None:
            try:
                self._library.open()
            except NvmlFailure as failure:
                return failure
            self._opened_at_s = self._clock()
        return None

    def _read(self, device: _Device) -> RawDevice | Measurement:
        """All calls of one device, in one poll; no handle outlives it (nvitop #139)."""
        if device.selector.upper().startswith("MIG-"):
            return refused(device.name, self._clock(), "unsupported", MIG)
        try:
            handle = self._find(device.selector)
            if self._library.mig(handle):
                return refused(device.name, self._clock(), "unsupported", MIG)
            return self._ask(device, handle)
        except NvmlFailure as failure:
            return self._failed(device, failure)

    def _find(self, selector: str) -> Handle:
        if selector.isdecimal():
            if int(selector) >= self._library.count():
                raise NvmlFailure("nvmlDeviceGetCount", NvmlFault.GPU_NOT_FOUND.value)
            return self._library.by_index(int(selector))
        return self._library.by_uuid(selector)

    def _ask(self, device: _Device, handle: Handle) -> RawDevice | Measurement:
        library = self._library
        device_pct = library.device_pct(handle)
        uses = library.process_uses(handle, device.last_us or 0)
        raw = RawDevice(
            uuid=library.uuid(handle),
            device_pct=device_pct,
            uses=uses,
            processes=library.processes(handle),
            encoder_pct=untold(lambda: library.encoder_pct(handle)),
            decoder_pct=untold(lambda: library.decoder_pct(handle)),
            memory=untold(lambda: library.memory(handle)),
            pci=untold(lambda: library.pci(handle)),
            product=untold(lambda: library.product(handle)),
            sm_clock_mhz=untold(lambda: library.sm_clock_mhz(handle)),
            power_state=untold(lambda: library.power_state(handle)),
        )
        device.pci = raw.pci or device.pci
        device.told_before = True
        if device_pct and not uses and device.last_us:
            # Nothing new although the device works: is it that its clock was set back, with ours?
            newest_us = ring_newest_us(library.process_uses(handle, 0))
            if newest_us is not None and newest_us < device.last_us:
                device.last_us = newest_us
                return refused(device.name, self._clock(), "first", WENT_BACK, raw)
        return raw

    def _who_lends(self, sample: Sample) -> frozenset[int]:
        """The lenders of now, and those of the last poll that have ended since: samples outlive them."""
        now = self._lender_pids(sample.lenders, sample.ports)
        ended = {pid for pid in self._lenders - now if not (self._proc / str(pid)).exists()}
        self._lenders = now
        return now | ended

    def _judge(self, device: _Device, raw: RawDevice | Measurement, lenders: frozenset[int]) -> Measurement:
        if isinstance(raw, Measurement):
            return raw
        who = tell_who(pids(raw), lenders, self._settings.ignore, self._settings.always, self._name_matches)
        measurement, device.last_us = judge(device.name, self._clock(), raw, device.last_us, who)
        return measurement

    def _failed(self, device: _Device, failure: NvmlFailure) -> Measurement:
        device.last_us = None
        return failed(device.name, self._clock(), failure, told_before=device.told_before)

    def _asleep(self, device: _Device) -> Measurement:
        device.last_us = None
        return refused(device.name, self._clock(), "asleep", ASLEEP)

    def _reopen_if_needed(self, measured: Sequence[Measurement]) -> None:
        troubled = [each for each in measured if each.result == "failed"]
        opened_at_s = self._opened_at_s
        if not troubled or opened_at_s is None:
            return
        if len(troubled) == len(measured) or self._clock() - opened_at_s >= REOPEN_AFTER_S:
            self.close()


def cannot_attribute(proc: Path) -> str | None:
    """Why use cannot be told by process on this host at all; None where it can."""
    try:
        kernel = (proc / "sys/kernel/osrelease").read_text()
    except OSError:
        kernel = ""
    if "microsoft" in kernel.lower():
        return WSL
    try:
        namespace = os.readlink(proc / "self/ns/pid")
    except OSError:
        # Without it (hidepid, an old kernel) nothing says that the host's processes are hidden.
        return None
    return None if namespace == INITIAL_PID_NAMESPACE else NAMESPACE
