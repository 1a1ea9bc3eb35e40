"""Finding, starting and ending worker processes, from the coordinator's side.

A worker outlives its coordinator: it is its own process group, its output goes to a file, and it is found
again by the ready file in the socket directory. What tells that it is gone is a pidfd, which works for
children and for workers started elsewhere alike.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec
import trio

from swapd.config import Config, WorkerConfig
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Ready
from swapd.worker.settings import WorkerSettings

log = logging.getLogger("swapd.worker.spawn")

STOP_WAIT_S: Final = 10.0
POLL_S: Final = 0.1


class WorkerProcess:
    """A running worker, ours or found; holds a pidfd so that the pid cannot come to mean another process."""

    def __init__(self, ready: Ready, pidfd: int) -> None:
        self.ready = ready
        self._pidfd = pidfd

    async def wait(self) -> None:
        """Return when the process is gone."""
        await trio.lowlevel.wait_readable(self._pidfd)
        reap(self.ready.pid)

    def signal(self, number: int) -> None:
        """Send a signal; a process that is gone is no error."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    async def stop(self) -> None:
        """Ask (SIGTERM), wait `STOP_WAIT_S`, kill. Bounded; safe to run shielded."""
        self.signal(signal.SIGTERM)
        with trio.move_on_after(STOP_WAIT_S):
            await self.wait()
            return
        log.warning("worker did not stop, killing it", extra={"worker": self.ready.worker})
        self.kill()
        with trio.move_on_after(STOP_WAIT_S):
            await self.wait()

    def kill(self) -> None:
        """End it at once."""
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Forget the process without touching it."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def reap(pid: int) -> None:
    """Collect an ended child's status; someone else's process is none of ours to collect."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def ready_file(config: Config, worker: str) -> Path:
    """Where a worker writes its ready line (B31)."""
    return Path(config.socket_dir) / f"{worker}.ready.json"


def find(config: Config, worker: WorkerConfig) -> WorkerProcess | None:
    """The live worker of that id, by its ready file; None when there is none."""
    try:
        ready = msgspec.json.decode(ready_file(config, worker.worker_id).read_bytes(), type=Ready)
    except (OSError, msgspec.DecodeError):
        return None
    if ready.worker != worker.worker_id:
        return None
    if worker.incarnation is not None and worker.incarnation != ready.incarnation:
        # H103: a pinned incarnation that differs is refused, not used.
        log.error("worker has another incarnation than the pinned one", extra={"worker": worker.worker_id})
        return None
    try:
        pidfd = os.pidfd_open(ready.pid)
    except OSError:
        return None
    # Asked after the pidfd is open: with the lock held, the pid cannot be a later process's.
    if not _lock_held(Path(config.socket_dir) / f"{worker.worker_id}.lock"):
        os.close(pidfd)
        return None
    return WorkerProcess(ready, pidfd)


def _lock_held(path: Path) -> bool:
    """Whether a live worker holds its lock file (H106); a ready file alone may be a dead one's."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def failpoint_folder(config: Config) -> str:
    """Where a test arms failpoints, where the configuration allows it (A36)."""
    return str(Path(config.socket_dir) / "failpoints")


def settings_for(config: Config, worker: WorkerConfig) -> WorkerSettings:
    """What the worker has to know of the configuration."""
    return WorkerSettings(
        worker_id=worker.worker_id,
        socket_dir=config.socket_dir,
        engine=worker.engine,
        model=config.models[0] if worker.engine == "vllm" else None,
        sim=config.sim,
        cores=worker.cores,
        idle_class=any(each.kind == "cpu" and each.name == worker.device for each in config.devices),
        window=config.window_tokens,
        timers=config.timers,
        precopy_duty=config.precopy_duty,
        record_schedule=config.record_schedule,
        failpoints=failpoint_folder(config) if config.allow_failpoints else "",
    )


async def spawn(config: Config, worker: WorkerConfig) -> WorkerProcess:
    """Start a worker and wait for its ready file. Raises `engine_failed` with where its log lies."""
    folder = Path(config.socket_dir)
    settings_path = folder / f"{worker.worker_id}.settings.json"
    log_path = folder / f"{worker.worker_id}.log"
    command = [worker.python or sys.executable, "-m", "swapd", "worker", "--settings", str(settings_path)]
    try:
        write_private(settings_path, msgspec.json.encode(settings_for(config, worker)))
        pid, pidfd = launch(command, log_path)
    except OSError as error:
        # A full disk or a missing interpreter: this worker's misfortune, not the service's.
        raise SwapdError(
            Code.ENGINE_FAILED,
            f"worker {worker.worker_id} cannot be started: {error.filename or folder}: {error.strerror}",
        ) from None
    try:
        with trio.fail_after(config.timers.worker_start_s):
            while True:
                found = find(config, worker)
                if found is not None:
                    if found.ready.pid == pid:
                        return found
                    found.close()
                if _ended(pidfd):
                    reap(pid)
                    raise SwapdError(
                        Code.ENGINE_FAILED, f"worker {worker.worker_id} ended while starting; see {log_path}"
                    )
                await trio.sleep(POLL_S)
    except trio.TooSlowError:
        _kill(pidfd, pid)
        raise SwapdError(
            Code.TIMEOUT, f"worker {worker.worker_id} was not ready in time; see {log_path}"
        ) from None
    except trio.Cancelled:
        # Cancelled while it starts: nobody would find it later.
        _kill(pidfd, pid)
        raise
    finally:
        os.close(pidfd)


def launch(command: list[str], log_path: Path) -> tuple[int, int]:
    """Start a process in a session of its own, its output in a file; pid and pidfd. No object owns its life.

    Raises `OSError`; then nothing runs.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    pid = os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log_path), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    try:
        return pid, os.pidfd_open(pid)
    except OSError:
        # No descriptor is left. It is our child and not collected yet, so the pid is still its own.
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _ended(pidfd: int) -> bool:
    return wait_gone(pidfd, 0.0)


def _kill(pidfd: int, pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    # SIGKILL is acted on at once; the wait is for the kernel's tear-down only.
    wait_gone(pidfd, 1.0)
    reap(pid)


def wait_gone(pidfd: int, wait_s: float) -> bool:
    poller = select.poll()  # select() refuses descriptors over 1023
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(wait_s * 1000))


def write_private(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
