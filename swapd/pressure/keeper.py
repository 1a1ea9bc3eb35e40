"""Keeps what all devices of one service have learned: one file, read once, written every five minutes."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import trio

from swapd.config import Config, DeviceConfig
from swapd.pressure.cache import CacheError, Entry, decode_cache, encode_cache
from swapd.pressure.cache_file import (
    NOT_USED,
    FolderRefused,
    cache_path,
    is_default_folder,
    open_folder,
    read_file,
    remove_leftovers,
    write_file,
)
from swapd.pressure.calibration import DevicePressure
from swapd.pressure.restoring import (
    NotRestored,
    Restored,
    entries_of,
    entry_for,
    identity,
    merged,
    restore,
)

SAVE_INTERVAL_S: Final = 300.0
"""R80. A crash loses at most this much (D14)."""
FILE_DEADLINE_S: Final = 5.0
"""How long a read or a write may take, at a stop as well: a disk that hangs must not keep us."""

log = logging.getLogger("swapd.pressure")


class KeeperStatistics(msgspec.Struct, frozen=True):
    """How the one cache file fares. `not_used` is why it is left alone in this run."""

    path: str
    saves: int
    failures: int
    not_used: str | None


class CalibrationKeeper:
    """Owns the pressure cache of one coordinator. `run` is its task; all is called on the Trio thread."""

    def __init__(self, config: Config, config_path: Path) -> None:
        self._owner = config.owner
        self._path = cache_path(config, config_path)
        self._is_default = is_default_folder(self._path, config_path)
        self._entries: tuple[Entry, ...] | None = None
        self._broken = False
        self._not_used: str | None = None
        self._watched: list[tuple[DeviceConfig, DevicePressure]] = []
        # A thread that hung in the disk beyond the deadline may still be at it.
        self._at_disk = False
        self._saves = 0
        self._failures = 0

    @property
    def _is_fixed(self) -> bool:
        return self._owner.gpu_pressure.mode == "fixed"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load, then save every `SAVE_INTERVAL_S` until cancelled, and once more then (R80, D14)."""
        await self.load()
        task_status.started()
        if self._is_fixed:
            # R76: the file stays as it is, byte for byte.
            await trio.sleep_forever()
        due = trio.current_time()
        try:
            while True:
                due += SAVE_INTERVAL_S
                await trio.sleep_until(due)
                await self.save()
        finally:
            await self.save()

    async def load(self) -> None:
        """Read the file. Never fails: what cannot be used is told once, and all devices start anew (R107)."""
        self._entries = ()
        try:
            read = await self._in_thread(self._read)
            if read is not None:
                self._entries = decode_cache(read, self._owner.gpu_pressure)
        except FolderRefused as refused:
            self._leave_alone(refused.reason)
        except TimeoutError:
            self._leave_alone("its disk does not answer")
        except CacheError as error:
            self._broken = True
            extra = {"state": error.state, "reason": error.reason, "path": str(self._path)}
            log.warning("pressure cache ignored", extra=extra)

    def _read(self) -> bytes | None:
        with open_folder(self._path.parent, is_default=self._is_default, create=False) as folder:
            if folder is None:
                return None
            if not self._is_fixed:
                remove_leftovers(folder, self._path.name)
            return read_file(folder, self._path.name)

    def needs_address(self, device: DeviceConfig) -> bool:
        """Whether only the card's PCI address can tell which of several saved entries is its own (D15)."""
        uuid = identity(device)
        return uuid is not None and len(entries_of(uuid, self._entries or ())) > 1

    def restore(self, device: DeviceConfig, pci: str | None = None) -> Restored | NotRestored:
        """Say what a device gets back, or why nothing. `load` must have been."""
        if self._entries is None:
            raise RuntimeError("the pressure cache is loaded before anything is restored")
        if self.needs_address(device):
            log.info("several saved calibrations for one GPU", extra={"device": device.name})
        found = restore(device, self._owner, self._entries, pci)
        if self._broken and found is NotRestored.NO_ENTRY:
            # Something was saved, and it cannot be told for whom.
            return NotRestored.FIXED if self._is_fixed else NotRestored.INVALID
        return found

    def watch(self, device: DeviceConfig, pressure: DevicePressure) -> None:
        """From now on save what this device has learned."""
        self._watched.append((device, pressure))

    async def save(self) -> None:
        """Write the file, if there is anything of ours to write. Bounded, and not cancelled half-way.

        A failure is logged and leaves the old file: the next save tries again.
        """
        own = self._own()
        if not own or self._is_fixed or self._not_used is not None or self._at_disk:
            return
        data = encode_cache(merged(own, self._entries or ()))
        try:
            await self._in_thread(partial(self._write, data))
        except FolderRefused as refused:
            self._leave_alone(refused.reason)
        except (OSError, TimeoutError) as error:
            self._failures += 1
            extra = {"errno": getattr(error, "errno", None), "path": str(self._path)}
            log.warning("pressure cache not saved", extra=extra)
        else:
            self._saves += 1

    def _own(self) -> list[Entry]:
        made = [entry_for(device, self._owner, core.completed()) for device, core in self._watched]
        return [entry for entry in made if entry is not None]

    def _write(self, data: bytes) -> None:
        with open_folder(self._path.parent, is_default=self._is_default, create=True) as folder:
            if folder is None:
                raise FileNotFoundError(errno.ENOENT, "the configuration's folder is gone")
            write_file(folder, self._path.name, data)

    def _leave_alone(self, reason: str) -> None:
        """R97: for this run, what is learned stays in memory."""
        self._not_used = reason
        log.warning(NOT_USED, extra={"reason": reason, "path": str(self._path)})

    async def _in_thread(self, work: Callable[[], bytes | None]) -> bytes | None:
        """Do file work off the Trio thread, shielded. Raises what it raised, or `TimeoutError`."""
        self._at_disk = True

        def do() -> bytes | None:
            try:
                return work()
            finally:
                self._at_disk = False

        with trio.CancelScope(shield=True, deadline=trio.current_time() + FILE_DEADLINE_S):
            return await trio.to_thread.run_sync(do, abandon_on_cancel=True)
        raise TimeoutError("the disk does not answer")

    def statistics(self) -> KeeperStatistics:
        return KeeperStatistics(str(self._path), self._saves, self._failures, self._not_used)
