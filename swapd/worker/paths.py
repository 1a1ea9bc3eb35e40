"""The files of one worker in its socket directory, checked before anything is created."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from swapd.messages.from_worker import Ready
from swapd.transport.paths import ensure_private_dir, ipc_endpoint, socket_path


class WorkerPaths(msgspec.Struct, frozen=True):
    """`control` is an `ipc://` endpoint, the rest are file paths."""

    control: str
    control_file: str
    arena: str
    ready: str
    lock: str

    @classmethod
    def claim(cls, socket_dir: str, worker_id: str) -> WorkerPaths:
        """Name the files and make the directory (H107).

        Raises `socket_path_too_long` (H105) or `config_invalid`; nothing exists then.
        """
        paths = cls(
            control=ipc_endpoint(socket_dir, f"{worker_id}.sock"),
            control_file=socket_path(socket_dir, f"{worker_id}.sock"),
            arena=socket_path(socket_dir, f"{worker_id}.arena.sock"),
            ready=os.path.join(socket_dir, f"{worker_id}.ready.json"),
            lock=os.path.join(socket_dir, f"{worker_id}.lock"),
        )
        ensure_private_dir(socket_dir)
        return paths

    def publish(self, ready: Ready) -> bytes:
        """Write the ready file, mode 0600, whole or not at all (B31); returns its line."""
        line = msgspec.json.encode(ready) + b"\n"
        fresh = Path(f"{self.ready}.new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(line)
        fresh.rename(self.ready)
        return line

    def remove(self) -> None:
        """Remove what this or a killed predecessor left (H115). The caller holds the lock."""
        for path in (self.control_file, self.arena, self.ready, f"{self.ready}.new"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
