"""Devices of kind `cpu`: what the owner does with some cores, from `/proc`; the arithmetic is in `cpu_rules`.

Nothing is asked of other processes. Lenders are the given roots with their trees,
whoever listens on a borrower port, and this process itself. Loads that cannot be told apart (interrupts,
kernel threads, other users' processes that are hidden from us) are the owner's.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from swapd.devices.cpu_rules import (
    MIN_INTERVAL_S,
    Picture,
    Spent,
    share,
    spent_alone,
    spent_by_trees,
)
from swapd.devices.cpu_times import ProcessTimes, read_cores
from swapd.devices.processes import PROC, ProcessTable
from swapd.messages.sampler import Measurement, Sample, SampledDevice, SamplerSettings

Result = Literal["first", "failed", "invalid"]
MACHINE_ID: Final = Path("/etc/machine-id")


def boottime_s() -> float:
    """CLOCK_BOOTTIME in seconds: it runs through suspend (D5)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class CpuBackend:
    """Measures the devices of the settings. One thread's; never blocks for long."""

    def __init__(
        self,
        settings: SamplerSettings,
        *,
        proc: Path = PROC,
        machine_id: Path = MACHINE_ID,
        clock: Callable[[], float] = boottime_s,
        ticks_per_s: int | None = None,
    ) -> None:
        self._devices = settings.devices
        self._ignore = settings.ignore
        self._always = settings.always
        self._proc = proc
        self._clock = clock
        self._ticks_per_s = ticks_per_s or os.sysconf("SC_CLK_TCK")
        self._table = ProcessTable(proc)
        self._lenders = ProcessTimes(proc)
        self._ignored = ProcessTimes(proc)
        self._before: Picture | None = None
        model = _cpu_model(proc)
        machine = _text(machine_id)
        self._constant = {device.name: _identity(device, machine, model) for device in settings.devices}
        self._model = model

    def measure(self, sample: Sample) -> tuple[Measurement, ...]:
        """Measure every device once, over the time since the last measurement."""
        before, now = self._before, self._clock()
        if before is not None and 0 <= now - before.at_s < MIN_INTERVAL_S:
            return self._all("invalid", now, "asked again too early to tell a share")
        after = self._look(now, sample)
        if after is None:
            self._before = None
            return self._all("failed", now, "the CPU statistics of /proc cannot be read")
        self._before = after
        always = self._table.running(self._always)
        if before is None or now < before.at_s:
            return self._all("first", now, None, always)
        lenders = spent_by_trees(before.lenders, after.lenders, before.at_ticks)
        ignored = spent_alone(before.ignored, after.ignored, before.at_ticks)
        return tuple(
            self._measured(device, before, after, (lenders, ignored), always) for device in self._devices
        )

    def close(self) -> None:
        """Close the files that are kept open."""
        self._lenders.close()
        self._ignored.close()

    def _measured(
        self,
        device: SampledDevice,
        before: Picture,
        after: Picture,
        spent: tuple[Spent, Spent],
        always: tuple[str, ...],
    ) -> Measurement:
        lenders, ignored = spent
        shares = share(before, after, device.cores, lenders, ignored)
        if shares.cores == 0:
            return self._one(device, "failed", after.at_s, "none of its CPU cores is online", always)
        if shares.owner_pct is None:
            stolen = "the hypervisor left its CPU cores no time"
            return self._one(device, "invalid", after.at_s, stolen, always)
        reason: str | None = None
        if not lenders.lost.isdisjoint(device.cores):
            reason = "a lender's process ended and its last CPU time is not known"
        elif not lenders.unaccounted.isdisjoint(device.cores):
            reason = "a lender's process is known only now"
        return Measurement(
            device=device.name,
            result="ok" if reason is None else "invalid",
            at_s=after.at_s,
            reading_pct=shares.owner_pct if reason is None else None,
            reason=reason,
            device_pct=shares.busy_pct,
            lender_pct=shares.lender_pct,
            ignored_pct=shares.ignored_pct,
            always_seen=always,
            uuid=self._constant[device.name],
            product=self._model,
        )

    def _all(
        self, result: Result, at_s: float, reason: str | None, always: tuple[str, ...] = ()
    ) -> tuple[Measurement, ...]:
        return tuple(self._one(device, result, at_s, reason, always) for device in self._devices)

    def _one(
        self, device: SampledDevice, result: Result, at_s: float, reason: str | None, always: tuple[str, ...]
    ) -> Measurement:
        return Measurement(
            device=device.name,
            result=result,
            at_s=at_s,
            reason=reason,
            always_seen=always,
            uuid=self._constant[device.name],
            product=self._model,
        )

    def _look(self, now: float, sample: Sample) -> Picture | None:
        cores = read_cores(self._proc)
        if not cores:
            return None
        self._table.refresh()
        # This process too: it is the service's, also where it was started by hand.
        lenders = self._table.lenders((*sample.lenders, os.getpid()), sample.ports)
        passed = {process.pid for process in self._table.named(self._ignore)} - lenders
        before = self._before
        return Picture(
            now,
            int(now * self._ticks_per_s),
            cores,
            self._lenders.read(lenders, before.lenders if before else {}),
            self._ignored.read(passed, before.ignored if before else {}),
        )


def _identity(device: SampledDevice, machine: str, model: str | None) -> str:
    """What learning is kept under (R83): these cores of this machine; says nothing else of the machine."""
    told = f"swapd cpu device\n{machine}\n{model}\n{sorted(device.cores)}"
    return "CPU-" + hashlib.sha256(told.encode()).hexdigest()[:32]


def _cpu_model(proc: Path) -> str | None:
    for line in _text(proc / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip() or None
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
