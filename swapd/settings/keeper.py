"""Shows the owner's settings, tries a change out, and saves it to the file that the service was started with.

Nothing in force changes here: what is saved counts from the next start on (R126).
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import trio

from swapd import config_lending
from swapd.config import Config, OwnerConfig
from swapd.config_file import parse_config
from swapd.errors import Code, SwapdError
from swapd.lending.device import LentDevice
from swapd.pressure.cache import CacheError, decode_cache
from swapd.pressure.cache_file import FolderRefused, cache_path, is_default_folder, open_folder, read_file
from swapd.pressure.restoring import Restored, restore, same_ignore_list
from swapd.pressure.settings_rules import RETIRED_KEYS
from swapd.settings.change import NewSettings, in_words, new_settings
from swapd.settings.difference import unified
from swapd.settings.editing import Value, edited
from swapd.settings.fields import FIELDS, PRESSURE, value_of
from swapd.settings.file import FileNow, read_now, replace
from swapd.settings.preview import Given, Learned, compare, notes
from swapd.settings.showing import blank_view, settings_view
from swapd.settings.views import (
    Changed,
    DevicePreview,
    ReplayState,
    SettingsChange,
    SettingsPreview,
    SettingsView,
)
from swapd.store.devices import SAMPLES_KEPT_S
from swapd.store.devices import samples as load_samples
from swapd.store.writer import Store

FILE_DEADLINE_S: Final = 5.0
"""How long a read or a write may take before the page says so: a disk that hangs must not hold a visitor."""
REPLAY_DEADLINE_S: Final = 4.0
"""For all devices together; five seconds between readings take a tenth of a second a device."""
MAX_SAMPLES: Final = 50_000
"""Of one device; at a faster cadence the replay covers less than six hours."""

log = logging.getLogger("swapd.settings")
T = TypeVar("T")


class SettingsKeeper:
    """Owns nothing but the right to write the file: one save at a time, one replay at a time."""

    def __init__(
        self,
        config: Config,
        config_path: Path,
        store: Store,
        devices: Mapping[str, LentDevice],
        *,
        wall: Callable[[], float] = time.time,
        replay_deadline_s: float = REPLAY_DEADLINE_S,
    ) -> None:
        self._config = config
        self._path = config_path
        self._store = store
        self._devices = devices
        self._wall = wall
        self._replay_deadline_s = replay_deadline_s
        self._saving = trio.Lock()
        self._replays = trio.CapacityLimiter(1)
        self._disk = trio.CapacityLimiter(2)
        """A thread that hangs in the disk keeps its place, so that no more than these ever do."""
        self._writing = False

    async def view(self) -> SettingsView:
        """The file as it is now beside what is in force. A file that cannot be read is told in `problem`."""
        try:
            now = await self._at_disk(partial(read_now, self._path))
            saved = self._parsed(now.text)
        except SwapdError as error:
            return blank_view(self._config, str(self._path), error.sentence)
        return settings_view(self._config, saved, now, str(self._path))

    async def preview(self, change: SettingsChange) -> SettingsPreview:
        """Say what a save would do, and what the last six hours would have been.

        Raises as `save`; nothing is written.
        """
        now, saved, new, text = await self._judged(change)
        state, previews = await self._replayed(new.config.owner)
        running = self._config.owner
        differing = frozenset(
            key
            for key, field in FIELDS.items()
            if value_of(running, field) != value_of(new.config.owner, field)
        )
        return SettingsPreview(
            changes=tuple(
                Changed(
                    FIELDS[key].label,
                    in_words(FIELDS[key], value_of(saved.owner, FIELDS[key])),
                    in_words(FIELDS[key], value),
                )
                for key, value in new.changes.items()
            ),
            removed=_retired(saved.owner),
            diff=unified(now.text, text, self._path.name),
            replay=state,
            devices=previews,
            notes=notes(running, new.config.owner, differing) if previews else (),
            warnings=tuple(found.text for found in config_lending.warnings(new.config)),
        )

    async def save(self, change: SettingsChange) -> SettingsView:
        """Write the file, if anything changes, and show it.

        Raises `settings_invalid` (`SettingsRefused`) with nothing written (R40), `settings_changed` where the
        file is not the one that the form was for, `settings_not_editable`, `settings_not_written`.
        """
        async with self._saving:
            now, _saved, new, text = await self._judged(change)
            if text != now.text:
                await self._write(text, now.digest)
                log.info("settings saved", extra={"keys": ",".join(new.changes)})
        return await self.view()

    async def _judged(self, change: SettingsChange) -> tuple[FileNow, Config, NewSettings, str]:
        """The file now, what it says, what it is to say, and its text then."""
        now = await self._at_disk(partial(read_now, self._path))
        if now.digest != change.digest:
            raise SwapdError(Code.SETTINGS_CHANGED)
        saved = self._parsed(now.text)
        new = new_settings(saved, change.values)
        text = edited(now.text, _edits(new))
        if self._parsed(text) != new.config:
            # What the rules have judged is what a start will read, or nothing is written.
            raise SwapdError(Code.SETTINGS_NOT_EDITABLE)
        return now, saved, new, text

    def _parsed(self, text: str) -> Config:
        return parse_config(text, folder=self._path.resolve().parent, name=self._path.name)

    # The last six hours ------------------------------------------------------------------------

    async def _replayed(self, new: OwnerConfig) -> tuple[ReplayState, tuple[DevicePreview, ...]]:
        running = self._config.owner
        if not self._devices or not running.gpu_pressure.enabled:
            return "not_measured", ()
        since = self._wall() - SAMPLES_KEPT_S
        stop = threading.Event()
        found: list[DevicePreview] = []
        with trio.move_on_after(self._replay_deadline_s):
            try:
                for device in self._devices.values():
                    given = await self._given(device, new, since)
                    work = partial(compare, given, running, new, stop.is_set)
                    found.append(
                        await trio.to_thread.run_sync(work, limiter=self._replays, abandon_on_cancel=True)
                    )
                return "done", tuple(found)
            finally:
                # The thread looks for this, also when its visitor has left.
                stop.set()
        return "too_long", ()

    async def _given(self, device: LentDevice, new: OwnerConfig, since: float) -> Given:
        name, running = device.name, self._config.owner

        def read(db: sqlite3.Connection) -> Given:
            return Given(name, load_samples(db, name, since, MAX_SAMPLES), {}, {})

        given = await self._store.read(read)
        live: Learned = device.pressure.completed() if device.pressure is not None else {}
        learned = live
        if not same_ignore_list(running.ignore, new.ignore):
            learned = {}
        elif running.gpu_pressure.mode == "fixed" and new.gpu_pressure.mode != "fixed":
            learned = await self._at_disk(partial(self._kept, device, new))
        return given._replace(running=live, new=learned)

    def _kept(self, device: LentDevice, new: OwnerConfig) -> Learned:
        """What a start under new settings would give back to a device (R77)."""
        path = cache_path(self._config, self._path)
        is_default = is_default_folder(path, self._path)
        try:
            with open_folder(path.parent, is_default=is_default, create=False) as folder:
                data = read_file(folder, path.name) if folder is not None else None
            if data is None:
                return {}
            kept = restore(device.config, new, decode_cache(data, new.gpu_pressure))
        except (CacheError, FolderRefused, OSError):
            return {}
        return kept.profiles if isinstance(kept, Restored) else {}

    async def _at_disk(self, work: Callable[[], T], *, shield: bool = False) -> T:
        """Do file work off the Trio thread. Raises `timeout` where the disk does not answer."""
        with trio.CancelScope(shield=shield, deadline=trio.current_time() + FILE_DEADLINE_S):
            return await trio.to_thread.run_sync(work, limiter=self._disk, abandon_on_cancel=True)
        raise SwapdError(Code.TIMEOUT, "the disk does not answer")

    async def _write(self, text: str, digest: str) -> None:
        """Replace the file. Not cancelled half-way; one that hangs is waited for by no second one."""
        if self._writing:
            raise SwapdError(Code.TIMEOUT, "the disk does not answer; an earlier save may still be written")

        def write() -> None:
            self._writing = True
            try:
                replace(self._path, text, digest)
            finally:
                self._writing = False

        await self._at_disk(write, shield=True)


def _edits(new: NewSettings) -> dict[tuple[str | int, ...], Value | None]:
    edits: dict[tuple[str | int, ...], Value | None] = {
        FIELDS[key].path: None if key == "threshold_pct" and value == 0.0 else value
        for key, value in new.changes.items()
    }
    # R122.
    return edits | {(*PRESSURE, key): None for key in RETIRED_KEYS}


def _retired(owner: OwnerConfig) -> tuple[str, ...]:
    return tuple(key for key in RETIRED_KEYS if getattr(owner.gpu_pressure, key) is not None)
