"""`swapd serve` as a child process: started, watched, and ended so that nothing of it stays."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio

from swapd.config import Config
from swapd.config_file import read_config
from swapd.errors import Code, SwapdError
from swapd.worker import spawn

STOP_WAIT_S: Final = 30.0
PR_SET_PDEATHSIG: Final = 1
LOG_TAIL_LINES: Final = 3
SERVE_COMMAND: Final = (sys.executable, "-m", "swapd", "serve")


class ServeProcess:
    """One running `swapd serve` whose output goes to a log file."""

    def __init__(self, process: subprocess.Popen[bytes], config: Config, log_path: Path) -> None:
        self._process = process
        self._config = config
        self._log_path = log_path

    @classmethod
    def start(cls, config_path: Path, log_path: Path, command: Sequence[str] = SERVE_COMMAND) -> ServeProcess:
        """Start it from the main thread: it is told to stop when that thread dies, by SIGKILL too."""
        config = read_config(config_path)
        libc = ctypes.CDLL(None)

        def stop_with_parent() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

        fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                [*command, "--config", str(config_path)],
                stdin=subprocess.DEVNULL,
                stdout=fd,
                stderr=fd,
                # A Ctrl-C of the terminal is for us; we end the child in our own order.
                start_new_session=True,
                preexec_fn=stop_with_parent,
            )
        finally:
            os.close(fd)
        return cls(process, config, log_path)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    async def wait(self) -> int:
        """Return its exit status when it has ended."""
        if self.running:
            pidfd = os.pidfd_open(self._process.pid)
            try:
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                os.close(pidfd)
        return self._process.wait()

    def failure(self) -> SwapdError:
        """Why it ended by itself, as far as its log says."""
        return SwapdError(
            Code.INTERNAL, f"`swapd serve` ended with {self._process.returncode}: {self._last_words()}"
        )

    def _last_words(self) -> str:
        try:
            lines = self._log_path.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        # A refusal at start is a plain sentence; log lines are JSON.
        plain = [line for line in lines if line.startswith("swapd: ")]
        if plain:
            return plain[-1].removeprefix("swapd: ")
        errors = [line for line in lines if '"level":"error"' in line or '"level":"critical"' in line]
        told = [_message(line) for line in errors[-LOG_TAIL_LINES:]]
        return "; ".join([*told, f"see {self._log_path}"])

    async def stop(self) -> None:
        """Ask (SIGTERM), wait `STOP_WAIT_S`, kill; then end workers that it left. Safe to run shielded."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
            with trio.move_on_after(STOP_WAIT_S):
                await self.wait()
        if self.running:
            self._process.kill()
            with trio.move_on_after(STOP_WAIT_S):
                await self.wait()
        await self._stop_workers()

    async def _stop_workers(self) -> None:
        """Workers that hold sessions outlive a coordinator on purpose (H230); here nobody comes back."""
        async with trio.open_nursery() as nursery:
            for entry in self._config.workers:
                left = spawn.find(self._config, entry)
                if left is not None:
                    nursery.start_soon(left.stop)


def _message(line: str) -> str:
    with contextlib.suppress(ValueError, AttributeError):
        fields = json.loads(line)
        parts = [
            fields.get("message"),
            fields.get("error_type"),
            fields.get("error_code"),
            fields.get("reason"),
        ]
        return " ".join(str(part) for part in parts if part)
    return ""
