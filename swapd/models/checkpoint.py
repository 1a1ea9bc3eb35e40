"""A checkpoint folder that is made once, checked against recorded digests, and used from then on.

The folder appears by one rename, whole or not at all; two processes that want it at once make it once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from swapd.errors import Code, SwapdError

READ_BYTES: Final = 1 << 20

Report = Callable[[str], None]
Make = Callable[[Path], None]
"""Writes the files of a checkpoint into an empty folder. Raises `SwapdError` with `model_missing`."""


class FileRecord(NamedTuple):
    """What a file of the checkpoint must be."""

    size_bytes: int
    sha256: str


class Recipe(NamedTuple):
    """A checkpoint by name, and every file in it."""

    folder_name: str
    files: Mapping[str, FileRecord]


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/swapd/models`, or the same under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The convention says that a relative path there is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "swapd" / "models"


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def fault(folder: Path, files: Mapping[str, FileRecord], *, digests: bool) -> str | None:
    """Say what is wrong with the folder, or None; without `digests` by the files' sizes alone."""
    for name, record in files.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != record.size_bytes:
                return f"{name} has {size} bytes and not {record.size_bytes}"
            if digests and sha256_of(path) != record.sha256:
                return f"{name} does not have the recorded SHA-256"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None


def ensure(recipe: Recipe, cache: Path, make: Make, report: Report, *, verify: bool = False) -> Path:
    """Return the checkpoint's folder, made first where it is missing or damaged.

    `verify` reads and digests all files of a folder that is there already (a quick check looks at their
    sizes). A folder made now is always digested. Raises `SwapdError` with `model_missing`.
    """
    folder = cache / recipe.folder_name
    if fault(folder, recipe.files, digests=verify) is None:
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{recipe.folder_name}.lock", report):
            wrong = fault(folder, recipe.files, digests=verify)
            if wrong is None:
                return folder
            if folder.exists():
                report(f"{folder} is damaged ({wrong}): making it again")
                shutil.rmtree(folder)
            _make(recipe, folder, make)
    except OSError as error:
        detail = f"the cache folder {cache} cannot be used: {error.strerror}"
        raise SwapdError(Code.MODEL_MISSING, detail) from error
    return folder


def _make(recipe: Recipe, folder: Path, make: Make) -> None:
    staged = Path(tempfile.mkdtemp(prefix=f".{recipe.folder_name}.", dir=folder.parent))
    try:
        make(staged)
        wrong = fault(staged, recipe.files, digests=True)
        if wrong is not None:
            raise SwapdError(Code.MODEL_MISSING, f"the conversion gave another result: {wrong}")
        staged.chmod(0o755)
        staged.rename(folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


@contextmanager
def _locked(path: Path, report: Report) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another process is making the checkpoint: waiting for it")
            # No deadline of its own: the maker has one, and its lock ends with its process.
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
