"""Moves what was learned of one device aside, and back (D36). The caller holds the stopped service's lock."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from swapd.config import Config, DeviceConfig
from swapd.errors import Code, SwapdError
from swapd.pressure.cache import CacheError, Entry, decode_cache, encode_cache
from swapd.pressure.cache_file import (
    FolderRefused,
    cache_path,
    is_default_folder,
    open_folder,
    read_file,
    write_file,
    write_new,
)
from swapd.pressure.restoring import entries_of, identity, merged


def archive(config: Config, config_path: Path, name: str, at: datetime) -> Path | None:
    """Move a device's saved entry into a file of its own beside the cache, named by device and date.

    None where nothing is saved of it. The entry is in the new file before it leaves the cache. Raises
    `device_unknown`, and `calibration_unusable` with the reason.
    """
    device = _device(config, name)
    with _opened(config, config_path) as (folder, path):
        entries = _read(folder, path.name, config)
        uuid = identity(device)
        aside = entries_of(uuid, entries) if uuid is not None else []
        if not aside:
            return None
        kept = merged((), [entry for entry in entries if entry not in aside])
        target = _archive_name(path, name, at)
        # Entries of schemas 2 and 3 carry no name.
        write_new(folder, target, encode_cache(entry._replace(resource=name) for entry in aside))
        write_file(folder, path.name, encode_cache(kept))
        return path.parent / target


def put_back(config: Config, config_path: Path, archived: Path) -> Sequence[str]:
    """Return an archived file's entries to the cache, in place of what was saved since; then remove it.

    Gives the devices' names. Raises `calibration_unusable` with the reason.
    """
    with _opened(config, config_path) as (folder, path):
        if Path(os.path.realpath(archived.parent)) != path.parent:
            raise SwapdError(Code.CALIBRATION_UNUSABLE, f"{archived} is not in {path.parent}")
        if archived.name == path.name:
            raise SwapdError(Code.CALIBRATION_UNUSABLE, f"{archived} is the cache itself")
        back = _read(folder, archived.name, config)
        if not back:
            raise SwapdError(Code.CALIBRATION_UNUSABLE, f"there is nothing in {archived}")
        before = _read(folder, path.name, config)
        write_file(folder, path.name, encode_cache(merged(merged((), back), before)))
        os.unlink(archived.name, dir_fd=folder)
        return [entry.resource for entry in back]


def _device(config: Config, name: str) -> DeviceConfig:
    for device in config.devices:
        if device.name == name:
            return device
    raise SwapdError(Code.DEVICE_UNKNOWN, name)


@contextmanager
def _opened(config: Config, config_path: Path) -> Iterator[tuple[int, Path]]:
    """The cache's folder and path; whatever is wrong with them becomes one refusal."""
    path = cache_path(config, config_path)
    is_default = is_default_folder(path, config_path)
    try:
        with open_folder(path.parent, is_default=is_default, create=False) as folder:
            if folder is None:
                raise SwapdError(Code.CALIBRATION_UNUSABLE, f"there is no {path.parent}")
            yield folder, path
    except (FolderRefused, CacheError) as refused:
        raise SwapdError(Code.CALIBRATION_UNUSABLE, f"{path}: {refused.reason}") from None
    except OSError as error:
        raise SwapdError(Code.CALIBRATION_UNUSABLE, f"{path}: {error.strerror}") from None


def _read(folder: int, name: str, config: Config) -> tuple[Entry, ...]:
    data = read_file(folder, name)
    return () if data is None else decode_cache(data, config.owner.gpu_pressure)


def _archive_name(path: Path, device: str, at: datetime) -> str:
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", device)
    return f"{path.stem}.{safe}.{at.astimezone(UTC):%Y%m%dT%H%M%SZ}{path.suffix}"
