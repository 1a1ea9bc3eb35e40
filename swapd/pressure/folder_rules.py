"""Where a pressure cache may lie: a folder that only the service can change. Pure.

Whoever can write there can plant a calibration, and so decide when a device is lent. The rules look at
described folders; `swapd.pressure.cache_file` describes the real ones, through their descriptors.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import Final, NamedTuple

ROOT_UID: Final = 0
WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
SHOWN_CHARS: Final = 120
"""Of a path in a sentence, so that the sentence fits into a log's field."""

WINDOWS_TRUSTED: Final = frozenset({"S-1-5-32-544", "S-1-5-18"})
"""Administrators and LocalSystem."""
WINDOWS_APP: Final = "swapd"


class Folder(NamedTuple):
    """One folder on Linux. `mode` holds the permission bits with the sticky bit."""

    path: str
    uid: int
    mode: int


def cache_folder_problem(folder: Folder, service_uid: int) -> str | None:
    """Say why the cache may not lie in this folder, in one sentence (R95)."""
    return foreign_owner(folder, service_uid) or writable_by_others(folder)


def parent_problem(folder: Folder, service_uid: int) -> str | None:
    """Say why a folder above makes the cache's folder unsafe (D26).

    Where the sticky bit is set others may write, but not rename or remove what is not theirs.
    """
    if folder.mode & stat.S_ISVTX:
        return foreign_owner(folder, service_uid)
    return foreign_owner(folder, service_uid) or writable_by_others(folder)


def foreign_owner(folder: Folder, service_uid: int) -> str | None:
    """Say that a folder belongs to an account that is neither the service's nor root."""
    if folder.uid in (service_uid, ROOT_UID):
        return None
    return f"{shown(folder.path)} belongs to uid {folder.uid}, not to uid {service_uid} or root"


def writable_by_others(folder: Folder) -> str | None:
    """Say that a folder's group or other accounts can write there."""
    if not folder.mode & WRITABLE_BY_OTHERS:
        return None
    return f"{shown(folder.path)} has mode {folder.mode:04o}: its group or other accounts may write there"


def shown(path: str) -> str:
    """A path as a sentence shows it: its end, if it is long."""
    return path if len(path) <= SHOWN_CHARS else "…" + path[-SHOWN_CHARS:]


class WindowsFolder(NamedTuple):
    """One folder on Windows: the SIDs that its permissions grant anything, and whether it leads elsewhere."""

    grants: frozenset[str]
    is_reparse_point: bool = False


def windows_problem(
    directory: PureWindowsPath,
    program_data: PureWindowsPath,
    folders: Mapping[PureWindowsPath, WindowsFolder],
) -> str | None:
    """Say why a cache may not lie in `directory`, in one sentence (R96).

    `folders` describes those that exist; one that is missing will be made with private permissions. A
    directory outside is refused before any of them is looked at.
    """
    base = program_data / WINDOWS_APP
    if ".." in directory.parts or not directory.is_relative_to(base):
        return f"{shown(str(directory))} is not inside {base}"
    between = [each for each in reversed(directory.parents) if each.is_relative_to(base)]
    for path in (*between, directory):
        folder = folders.get(path)
        if folder is None:
            continue
        if folder.is_reparse_point:
            return f"{shown(str(path))} is a junction or another reparse point"
        if folder.grants - WINDOWS_TRUSTED:
            return f"{shown(str(path))} grants access to others than Administrators and LocalSystem"
    return None
