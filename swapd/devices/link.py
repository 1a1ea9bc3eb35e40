"""The coordinator's end of one sampler process: start it, ask at every tick, do without it when it is lost.

    starting → asking ⇄ (answer) … → lost (no answer, or the process ended) → back-off → starting …

Every tick gives every device one measurement: the sampler's, or `failed` with the reason. A sampler that
does not answer in time is killed; one that cannot even die (its driver holds it in the kernel) is left behind
and counted, and while `MAX_ABANDONED` of them are left no more are started. Nothing else waits for any of it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import trio
import zmq

from swapd.config import Config, DeviceConfig
from swapd.devices.cpu import boottime_s
from swapd.devices.sampler_process import SamplerProcess
from swapd.errors import SwapdError
from swapd.messages.sampler import (
    MAX_SAMPLER_FRAME_BYTES,
    SAMPLER_VERSION,
    Measured,
    Measurement,
    Sample,
    SampledDevice,
    SamplerSettings,
    decode_measured,
    encode_sampling,
)
from swapd.transport.paths import ensure_private_dir, ipc_endpoint, socket_path
from swapd.transport.sockets import Context, TrioSocket, open_socket

log = logging.getLogger("swapd.devices.link")

Kind = Literal["nvml", "cpu"]

DEADLINE_S: Final = 2.0
"""For an answer, or one poll if that is longer."""
START_DEADLINE_S: Final = 15.0
"""For the first answer of a process: Python starts, and a driver without persistence wakes its card."""
BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 30.0
MAX_ABANDONED: Final = 3

NO_ANSWER: Final[dict[Kind, str]] = {
    "nvml": "GPU driver not answering",
    "cpu": "the sampler does not answer",
}
ENDED: Final = "the sampler process ended"
NOT_STARTED: Final = "the sampler process cannot be started"


class SamplerStatistics(msgspec.Struct, frozen=True):
    """Since the service started. `pid` is that of the process that runs now."""

    pid: int | None
    ticks: int
    answers: int
    starts: int
    ended: int
    """Processes that ended by themselves."""
    unanswered: int
    """Questions without an answer in time; each ended its process."""
    abandoned: int
    """Killed processes that have not ended yet."""
    refused: int
    """Frames that were no answer to the question that was open."""
    took_ms: float | None
    """Of the latest measurement, in the sampler."""


class SamplerLink:
    """All devices of one kind. `run` is its actor; `on_measured` is called on the Trio thread, at every tick.

    `lenders` gives root pids when a question is asked; this process is one of them in any case.
    """

    def __init__(
        self,
        config: Config,
        kind: Kind,
        devices: Sequence[DeviceConfig],
        context: Context,
        lenders: Callable[[], Iterable[int]],
        on_measured: Callable[[Measurement], None],
        *,
        boottime: Callable[[], float] = boottime_s,
        deadline_s: float | None = None,
        start_deadline_s: float = START_DEADLINE_S,
    ) -> None:
        self.kind: Kind = kind
        self._config = config
        self._devices = tuple(devices)
        self._context = context
        self._lenders = lenders
        self._on_measured = on_measured
        self._boottime = boottime
        self._poll_s = config.owner.gpu_pressure.poll_ms / 1000
        self._deadline_s = deadline_s if deadline_s is not None else max(DEADLINE_S, self._poll_s)
        self._start_deadline_s = start_deadline_s
        self._folder = Path(config.socket_dir)
        self._endpoint = ipc_endpoint(config.socket_dir, f"sampler-{kind}.sock")
        self._settings_path = socket_path(config.socket_dir, f"sampler-{kind}.settings.json")
        self._log_path = self._folder / f"sampler-{kind}.log"
        self._process: SamplerProcess | None = None
        self._abandoned: list[SamplerProcess] = []
        self._tick_at = 0.0
        self._waiting = trio.CancelScope()
        self._asked = False
        self._number = 0
        self._ticks = self._answers = self._starts = self._ended = self._unanswered = self._refused = 0
        self._took_ms: float | None = None

    def statistics(self) -> SamplerStatistics:
        return SamplerStatistics(
            pid=self._process.pid if self._process is not None else None,
            ticks=self._ticks,
            answers=self._answers,
            starts=self._starts,
            ended=self._ended,
            unanswered=self._unanswered,
            abandoned=len(self._abandoned),
            refused=self._refused,
            took_ms=self._took_ms,
        )

    def ask_soon(self) -> None:
        """Measure before the next tick, once; the pace stays as it is (D38).

        While a question is open, or nobody can be asked, it is kept: that answer may be older than the wish.
        """
        self._asked = True
        self._waiting.cancel()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Measure at every tick, for ever. Cancelled: ends its process (bounded) and removes its files.

        Raises what `on_measured` raises; otherwise nothing.
        """
        ensure_private_dir(self._folder)
        task_status.started()
        self._tick_at = trio.current_time()
        backoff_s = BACKOFF_FIRST_S
        try:
            while True:
                began = trio.current_time()
                reason = await self._one_process()
                if trio.current_time() - began > BACKOFF_MAX_S:
                    backoff_s = BACKOFF_FIRST_S
                log.warning(
                    "sampler is not available",
                    extra={"kind": self.kind, "reason": reason, "delay_s": backoff_s},
                )
                self._fail(reason)
                await self._fail_until(trio.current_time() + backoff_s, reason)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
        finally:
            for process in self._abandoned:
                process.close()
            self._abandoned.clear()
            self._remove_files()

    def _remove_files(self) -> None:
        """What a killed sampler leaves, too."""
        for path in (self._endpoint.removeprefix("ipc://"), self._settings_path):
            Path(path).unlink(missing_ok=True)

    # One process -----------------------------------------------------------------------------

    async def _one_process(self) -> str:
        """Start it and ask it until it is lost; says why it was. Leaves none behind that can be ended."""
        self._collect_abandoned()
        if len(self._abandoned) >= MAX_ABANDONED:
            return NO_ANSWER[self.kind]
        try:
            process = self._process = self._start()
        except OSError as error:
            log.error("sampler cannot be started", extra={"kind": self.kind, "errno": error.errno})
            return NOT_STARTED
        self._starts += 1
        log.info("sampler started", extra={"kind": self.kind, "pid": process.pid})
        lost = ENDED
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, process, nursery.cancel_scope)
                async with open_socket(
                    self._context,
                    zmq.DEALER,
                    connect=self._endpoint,
                    max_message_bytes=MAX_SAMPLER_FRAME_BYTES,
                    linger_ms=0,
                ) as socket:
                    await self._ask(socket)
                    lost = NO_ANSWER[self.kind]
                    self._unanswered += 1
                nursery.cancel_scope.cancel()
        finally:
            self._process = None
            with trio.CancelScope(shield=True):
                await self._end(process, ask=lost == ENDED)
        return lost

    async def _watch(self, process: SamplerProcess, scope: trio.CancelScope) -> None:
        await process.wait()
        self._ended += 1
        scope.cancel()

    def _start(self) -> SamplerProcess:
        settings = SamplerSettings(
            kind=self.kind,
            endpoint=self._endpoint,
            devices=tuple(SampledDevice(each.name, each.selector, each.cores) for each in self._devices),
            ignore=self._config.owner.ignore,
            always=self._config.owner.always,
            parent_pid=os.getpid(),
        )
        return SamplerProcess.start(settings, self._settings_path, self._log_path)

    async def _end(self, process: SamplerProcess, *, ask: bool) -> None:
        """Ask (SIGTERM) where that has a point, wait, kill, wait; then leave it behind. Bounded."""
        if await process.end(ask=ask):
            process.close()
            return
        log.error("sampler cannot be ended, leaving it", extra={"kind": self.kind, "pid": process.pid})
        self._abandoned.append(process)

    def _collect_abandoned(self) -> None:
        for process in self._abandoned.copy():
            if process.is_gone():
                process.close()
                self._abandoned.remove(process)

    # Questions and answers -------------------------------------------------------------------

    async def _ask(self, socket: TrioSocket) -> None:
        """Ask at every tick; returns when an answer did not come in time."""
        deadline_s = max(self._deadline_s, self._start_deadline_s)
        while True:
            if not self._asked:
                with trio.CancelScope() as self._waiting:
                    await trio.sleep_until(self._next_tick())
                if self._waiting.cancelled_caught:
                    self._tick_at -= self._poll_s  # the tick that was waited for is still to come
            self._asked = False
            self._number += 1
            sample = Sample(
                SAMPLER_VERSION,
                self._number,
                lenders=(os.getpid(), *self._lenders()),
                ports=self._config.owner.borrower_ports,
            )
            measured: Measured | None = None
            with trio.move_on_after(deadline_s):
                await socket.send_multipart([encode_sampling(sample)])
                measured = await self._answer(socket)
            self._ticks += 1
            if measured is None:
                return
            self._answers += 1
            self._took_ms = measured.took_ms
            self._deliver(measured)
            deadline_s = self._deadline_s

    async def _answer(self, socket: TrioSocket) -> Measured:
        """The answer to the question that is open; anything else is counted and thrown away."""
        while True:
            frames = await socket.recv_multipart()
            try:
                measured = decode_measured(frames[0] if len(frames) == 1 else b"")
            except SwapdError as error:
                self._refused += 1
                log.warning("answer refused", extra={"kind": self.kind, "code": error.code})
                continue
            if measured.number == self._number:
                return measured
            self._refused += 1

    def _next_tick(self) -> float:
        """The next tick of an even pace; those that have passed meanwhile are skipped (D4)."""
        at = self._tick_at
        now = trio.current_time()
        self._tick_at += self._poll_s
        if self._tick_at <= now:
            self._tick_at += self._poll_s * (1 + (now - self._tick_at) // self._poll_s)
        return max(at, now)

    def _deliver(self, measured: Measured) -> None:
        by_name = {each.device: each for each in measured.devices}
        for device in self._devices:
            measurement = by_name.get(device.name)
            if measurement is None:
                self._on_measured(self._failed(device, "the sampler did not measure it"))
            else:
                self._on_measured(_checked(measurement))

    async def _fail_until(self, until: float, reason: str) -> None:
        """Wait; the ticks that pass meanwhile are failed readings."""
        while True:
            at = self._next_tick()
            if at >= until:
                self._tick_at = at
                await trio.sleep_until(until)
                return
            await trio.sleep_until(at)
            self._ticks += 1
            self._fail(reason)

    def _fail(self, reason: str) -> None:
        for device in self._devices:
            self._on_measured(self._failed(device, reason))

    def _failed(self, device: DeviceConfig, reason: str) -> Measurement:
        return Measurement(device=device.name, result="failed", at_s=self._boottime(), reason=reason)


def _checked(measurement: Measurement) -> Measurement:
    """A reading that is none cannot be trusted, whoever told it (R22)."""
    reading = measurement.reading_pct
    if measurement.result == "ok" and (reading is None or not 0.0 <= reading <= 100.0):
        return msgspec.structs.replace(
            measurement, result="invalid", reading_pct=None, reason="the reading is out of range"
        )
    return measurement
