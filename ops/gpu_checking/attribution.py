"""Whether this machine's NVML tells what swapd needs: read through swapd's own backend."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ops.gpu_checking.load import NO_TORCH
from ops.gpu_checking.report import Check, Json, NoCard, judged
from swapd.devices.nvml import NvmlBackend, cannot_attribute
from swapd.devices.nvml_library import Handle, NvmlLibrary, untold
from swapd.devices.nvml_raw import NvmlFailure
from swapd.devices.processes import ProcessTable, name_matches
from swapd.messages.sampler import (
    SAMPLER_VERSION,
    Measurement,
    Sample,
    SampledDevice,
    SamplerSettings,
)

PROC: Final = Path("/proc")
IDLE_POLLS: Final = 4
LOAD_POLLS: Final = 10
BUSY_PCT: Final = 50.0
SLACK_PCT: Final = 15.0
"""What may remain of a lender's load: the device's figure and the processes' cover different spans."""
LOAD_START_S: Final = 120.0
LOAD_STOP_S: Final = 20.0
MAX_OFFSET_S: Final = 60.0
"""µs, ms and ns of the wall clock are further apart than that."""
US: Final = 1_000_000


class LoadMissing(Exception):
    """No load could be started; the text says why."""


class CardCheck:
    """Checks of one card. `poll_s` is the time between two polls."""

    def __init__(
        self, selector: str, load_command: Sequence[str], poll_s: float, report: Callable[[str], None]
    ) -> None:
        self._selector = selector
        self._load_command = load_command
        self._poll_s = poll_s
        self._report = report
        self._library = NvmlLibrary()
        self._cannot = cannot_attribute(PROC)
        self._number = 0
        self.card: Json = {}

    def run(self) -> list[Check]:
        """Run all checks. Raises `NoCard` where there is none."""
        try:
            self._library.open()
        except NvmlFailure as failure:
            raise NoCard(failure.sentence) from None
        try:
            self.card = self._describe()
            checks = [self._container(), self._selection()]
            if self._cannot is not None:
                return [*checks, Check("attribution", "skipped", self._cannot)]
            backend = self._backend(str(self.card["uuid"]))
            return [*checks, *self._attribution(backend)]
        finally:
            self._library.close()

    def _describe(self) -> Json:
        library = self._library
        try:
            if not library.count():
                raise NoCard("the driver is loaded, and tells of no card")
            handle = self._handle()
            return {
                "driver": library.driver_version(),
                "cards": library.count(),
                "uuid": library.uuid(handle),
                "product": untold(lambda: library.product(handle)),
                "pci": untold(lambda: library.pci(handle)),
                "mig": library.mig(handle),
            }
        except NvmlFailure as failure:
            raise NoCard(failure.sentence) from None

    def _handle(self) -> Handle:
        if self._selector.isdecimal():
            return self._library.by_index(int(self._selector))
        return self._library.by_uuid(self._selector)

    def _backend(self, selector: str) -> NvmlBackend:
        settings = SamplerSettings("nvml", "ipc://unused", (SampledDevice("card", selector),))
        return NvmlBackend(
            settings, time.monotonic, lender_pids=ProcessTable().lenders_now, name_matches=name_matches
        )

    def _poll(self, backend: NvmlBackend, *lenders: int) -> Measurement:
        self._number += 1
        (told,) = backend.measure(Sample(v=SAMPLER_VERSION, number=self._number, lenders=lenders))
        time.sleep(self._poll_s)
        return told

    def _container(self) -> Check:
        """What is hidden: processes that NVML tells of and that are not to be found here."""
        name = "what a container hides"
        try:
            told = {each.pid for each in self._library.processes(self._handle())}
        except NvmlFailure as failure:
            return Check(name, "seen", f"the list of processes: {failure.sentence}")
        found = {pid for pid in told if (PROC / str(pid)).exists()}
        namespace = "the host's process ids" if self._cannot is None else self._cannot
        detail = f"{namespace}; NVML tells of {len(told)} processes, {len(found)} of them are in /proc"
        return Check(name, "seen", detail, {"told": len(told), "found": len(found)})

    def _selection(self) -> Check:
        """Rightly chosen by UUID: the same card as by its index."""
        uuid = str(self.card["uuid"])
        try:
            by_uuid = self._library.uuid(self._library.by_uuid(uuid))
            indices = range(self._library.count())
            there = [self._library.uuid(self._library.by_index(index)) for index in indices]
        except NvmlFailure as failure:
            return Check("selection by UUID", "fails", failure.sentence)
        holds = by_uuid == uuid and there.count(uuid) == 1
        detail = f"{uuid} is number {there.index(uuid) if uuid in there else '?'} of {len(there)}"
        return judged("selection by UUID", holds, detail)

    def _attribution(self, backend: NvmlBackend) -> Iterator[Check]:
        try:
            idle = [self._poll(backend) for _ in range(IDLE_POLLS)]
            yield _idle(idle)
            quiet_pct = max((each.reading_pct or 0.0 for each in idle), default=0.0)
            if not any(each.result == "ok" for each in idle):
                return
            try:
                with self._load() as pid:
                    yield from self._loaded(backend, pid, quiet_pct)
            except LoadMissing as missing:
                yield Check("attribution", "skipped", str(missing))
                return
            yield self._stale(backend, quiet_pct)
        finally:
            backend.close()

    def _loaded(self, backend: NvmlBackend, pid: int, quiet_pct: float) -> Iterator[Check]:
        self._report("a process of our own uses the card")
        as_owner = [self._poll(backend) for _ in range(LOAD_POLLS)]
        seen_pct = max((each.reading_pct or 0.0 for each in as_owner), default=0.0)
        yield judged(
            "a stranger's work is the owner's",
            seen_pct >= BUSY_PCT,
            f"readings of up to {seen_pct:.0f} %",
            readings=[each.reading_pct for each in as_owner],
        )
        as_lender = [self._poll(backend, pid) for _ in range(LOAD_POLLS)]
        left = [each.reading_pct for each in as_lender if each.reading_pct is not None]
        lent = max((each.lender_pct or 0.0 for each in as_lender), default=0.0)
        yield judged(
            "a lender's work is subtracted",
            bool(left) and lent >= BUSY_PCT and max(left) <= quiet_pct + SLACK_PCT,
            f"lender at up to {lent:.0f} %, readings of up to {max(left, default=0.0):.0f} %"
            f" (idle: {quiet_pct:.0f} %)",
            readings=[each.reading_pct for each in as_lender],
            lender=[each.lender_pct for each in as_lender],
            device=[each.device_pct for each in as_lender],
        )
        last = as_lender[-1]
        held = last.lender_memory_bytes
        yield judged(
            "a lender's memory is told",
            bool(held),
            "not told" if held is None else f"{held >> 20} MiB of {(last.memory_total_bytes or 0) >> 20}",
        )
        yield self._clock()

    def _clock(self) -> Check:
        """Samples carry µs of a clock that is close to the wall clock (units were once mistaken for ms)."""
        name = "times of samples are microseconds"
        try:
            times = [each.at_us for each in self._library.process_uses(self._handle(), 0)]
        except NvmlFailure as failure:
            return Check(name, "fails", failure.sentence)
        if not times:
            return Check(name, "fails", "no samples although the card works")
        offset_s = time.time() - max(times) / US
        return judged(
            name, abs(offset_s) <= MAX_OFFSET_S, f"the newest is {offset_s:+.3f} s old", offset_s=offset_s
        )

    def _stale(self, backend: NvmlBackend, quiet_pct: float) -> Check:
        """When the process has ended, its samples are old news: asked for newer ones there are none of it."""
        name = "stale samples"
        try:
            ring = self._library.process_uses(self._handle(), 0)
            newest_us = max((each.at_us for each in ring), default=0)
            again = self._library.process_uses(self._handle(), newest_us)
        except NvmlFailure as failure:
            return Check(name, "fails", failure.sentence)
        old = sum(each.at_us <= newest_us for each in again)
        after = [self._poll(backend) for _ in range(LOAD_POLLS)]
        last = after[-1].reading_pct
        return judged(
            name,
            last is not None and last <= quiet_pct + SLACK_PCT,
            f"{len(ring)} samples in the ring, {old} old ones told again;"
            f" the reading is {'absent' if last is None else f'{last:.0f} %'} after the process ended",
            readings=[each.reading_pct for each in after],
            told_again=old,
        )

    @contextmanager
    def _load(self) -> Iterator[int]:
        """A child that uses the card; its pid. Raises `LoadMissing`. It ends when its stdin does."""
        child = subprocess.Popen(
            self._load_command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": str(self.card["uuid"])},
        )  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            ready = select.select([child.stdout], [], [], LOAD_START_S)[0]
            if not ready or child.stdout.readline().strip() != b"ready":
                child.kill()
                status = child.wait()
                why = child.stderr.read().decode(errors="replace").strip().splitlines()[-1:]
                raise LoadMissing(
                    "no torch here that sees the card"
                    if status == NO_TORCH
                    else f"the load did not start: {''.join(why) or f'status {status}'}"
                )
            yield child.pid
        finally:
            child.stdin.close()
            try:
                child.wait(LOAD_STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            child.stdout.close()
            child.stderr.close()


def _idle(idle: Sequence[Measurement]) -> Check:
    last = idle[-1]
    if last.result == "unsupported":
        return Check("polls", "seen", f"unsupported: {last.reason}")
    results = [each.result for each in idle]
    readings = [each.reading_pct for each in idle if each.reading_pct is not None]
    reason = next((each.reason for each in idle if each.reason), None)
    detail = f"readings of {min(readings):.0f} to {max(readings):.0f} %" if readings else ", ".join(results)
    holds = results == ["first", *["ok"] * (len(idle) - 1)]
    return judged("polls", holds, detail if reason is None else f"{detail} ({reason})", readings=readings)
