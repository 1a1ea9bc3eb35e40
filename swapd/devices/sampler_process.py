"""Starting and ending one sampler process."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec
import trio

from swapd.messages.sampler import SamplerSettings
from swapd.worker.spawn import launch, reap, wait_gone, write_private

STOP_WAIT_S: Final = 2.0
KILL_WAIT_S: Final = 1.0


class SamplerProcess:
    """A child that measures; owns a pidfd, so that the pid cannot come to mean another process."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd

    @classmethod
    def start(cls, settings: SamplerSettings, settings_path: str, log_path: Path) -> SamplerProcess:
        """Write its settings, for our eyes only, and start it. Raises `OSError`; then nothing runs."""
        write_private(Path(settings_path), msgspec.json.encode(settings))
        command = [sys.executable, "-m", "swapd", "sampler", "--settings", settings_path]
        return cls(*launch(command, log_path))

    async def wait(self) -> None:
        """Return when the process is gone."""
        await trio.lowlevel.wait_readable(self._pidfd)
        reap(self.pid)

    def is_gone(self) -> bool:
        """Whether it is gone by now."""
        if not wait_gone(self._pidfd, 0.0):
            return False
        reap(self.pid)
        return True

    async def end(self, *, ask: bool) -> bool:
        """Ask (SIGTERM) where that has a point, wait, kill, wait. Bounded; False: it lives on.

        What a driver holds in the kernel dies when the driver lets go of it, and not before.
        """
        if ask:
            self._signal(signal.SIGTERM)
            if await self._gone_within(STOP_WAIT_S):
                return True
        self._signal(signal.SIGKILL)
        return await self._gone_within(KILL_WAIT_S)

    def close(self) -> None:
        """Forget the process."""
        os.close(self._pidfd)

    def _signal(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    async def _gone_within(self, wait_s: float) -> bool:
        with trio.move_on_after(wait_s):
            await self.wait()
            return True
        return False
