"""The sampler process: measures the devices of one kind when it is asked, and nothing else.

It is a process of its own because a driver may hang or crash. The main thread does nothing but receive,
measure and answer; while it hangs in the driver, the watchdog thread still ends the process, when its parent
is gone or it gets SIGTERM. No device is left in another state than before.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time
from pathlib import Path
from typing import Final, Protocol

import msgspec
import zmq

from swapd.devices.cpu import CpuBackend, boottime_s
from swapd.devices.processes import ProcessTable, name_matches
from swapd.errors import Code, SwapdError
from swapd.messages.sampler import (
    MAX_SAMPLER_FRAME_BYTES,
    SAMPLER_VERSION,
    Measured,
    Measurement,
    Sample,
    SamplerSettings,
    decode_sample,
    encode_sampling,
)
from swapd.transport.paths import (
    FileIdentity,
    ensure_private_dir,
    file_identity,
    ipc_path,
    private_umask,
    unlink_if_ours,
)

NICENESS: Final = 5
HANDSHAKE_MS: Final = 3000
QUEUE: Final = 8
"""Questions that wait; the one who asks waits for each answer, so more are nobody's."""

log = logging.getLogger("swapd.devices.sampler")


class Backend(Protocol):
    """What measures the devices of one kind. It may hang or end the process, with its driver."""

    def measure(self, sample: Sample) -> tuple[Measurement, ...]: ...
    def close(self) -> None: ...


def load_sampler_settings(path: str) -> SamplerSettings:
    """Read a settings file. Raises `config_invalid` with the file and what is wrong in it."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=SamplerSettings)
    except OSError as error:
        raise SwapdError(Code.CONFIG_INVALID, f"{path}: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise SwapdError(Code.CONFIG_INVALID, f"{path}: {error}") from None
    except msgspec.DecodeError:
        raise SwapdError(Code.CONFIG_INVALID, f"{path} is not JSON") from None


def run_sampler(settings: SamplerSettings) -> None:
    """Answer questions until the process is ended; it never returns on its own.

    Raises `socket_path_too_long` or `config_invalid` when it cannot start.
    """
    path = ipc_path(settings.endpoint)
    if path is None:
        raise SwapdError(Code.CONFIG_INVALID, f"{settings.endpoint} is no ipc:// endpoint")
    ensure_private_dir(Path(path).parent)
    os.nice(NICENESS)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_SAMPLER_FRAME_BYTES)
    socket.setsockopt(zmq.RCVHWM, QUEUE)
    socket.setsockopt(zmq.SNDHWM, QUEUE)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    try:
        with private_umask():
            socket.bind(settings.endpoint)
    except zmq.ZMQError as error:
        raise SwapdError(Code.CONFIG_INVALID, f"{settings.endpoint}: {error.strerror}") from None
    ours = file_identity(path)
    try:
        _watch(settings.parent_pid, path, ours)
    except SwapdError:
        unlink_if_ours(path, ours)
        raise
    _serve(socket, open_backend(settings))


def open_backend(settings: SamplerSettings) -> Backend:
    """The backend of a kind. NVML is imported only where it is measured."""
    if settings.kind == "cpu":
        return CpuBackend(settings)
    from swapd.devices.nvml import NvmlBackend

    table = ProcessTable()
    return NvmlBackend(settings, boottime_s, lender_pids=table.lenders_now, name_matches=name_matches)


def _serve(socket: zmq.Socket[bytes], backend: Backend) -> None:
    refused = 0
    while True:
        peer, *frames = socket.recv_multipart()
        try:
            sample = decode_sample(frames[0] if len(frames) == 1 else b"")
        except SwapdError as error:
            refused += 1
            log.warning("question refused", extra={"code": error.code, "refused": refused})
            continue
        began = time.perf_counter()
        devices = backend.measure(sample)
        took_ms = (time.perf_counter() - began) * 1000
        answer = encode_sampling(Measured(SAMPLER_VERSION, sample.number, took_ms, devices))
        # Nobody may be there to take it any more, or not fast enough: then nobody waits for it.
        with contextlib.suppress(zmq.Again):
            socket.send_multipart((peer, answer), zmq.NOBLOCK)


def _watch(parent_pid: int, path: str, ours: FileIdentity | None) -> None:
    """End the process at SIGTERM or SIGINT, or with its parent. Raises `config_invalid` without that parent.

    The signals wake a thread through a pipe, written by C code: a Python handler would wait for the driver.
    """
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    poller = select.poll()
    poller.register(woken, select.POLLIN)
    if parent_pid:
        try:
            poller.register(os.pidfd_open(parent_pid), select.POLLIN)
        except OSError:
            raise SwapdError(Code.CONFIG_INVALID, "the parent is gone") from None
        # Asked after the descriptor is open, so that it cannot be that of a later process.
        if os.getppid() != parent_pid:
            raise SwapdError(Code.CONFIG_INVALID, "the parent is gone")
    threading.Thread(target=_end_when_told, args=(poller, path, ours), name="watchdog", daemon=True).start()


def _end_when_told(poller: select.poll, path: str, ours: FileIdentity | None) -> None:
    poller.poll()
    with contextlib.suppress(OSError):
        unlink_if_ours(path, ours)
    os._exit(0)
