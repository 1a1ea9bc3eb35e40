"""The archive of an export: one .zip, written in a thread to a file without a name (R128, B42).

What is large (six hours of samples) goes from the store into the archive row by row and never lies in memory
as a whole. The database is read over a connection of the export's own, on one snapshot, so that a disk that
hangs holds up nobody else.
"""

from __future__ import annotations

import json
import re
import sqlite3
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from swapd.api import Archive
from swapd.config import Config
from swapd.diagnostics.redaction import shown_line
from swapd.pressure.cache import CacheError
from swapd.pressure.cache_file import FolderRefused, read_cache
from swapd.store.database import open_reader
from swapd.store.devices import EVENTS_KEPT, SAMPLES_KEPT_S, device_events

ROWS_AT_ONCE: Final = 1000
TAIL_BYTES: Final = 256 << 10
"""How much of the end of a worker's or sampler's log is looked at."""
README: Final = """\
This archive was made by `swapd diagnostics` or the console's diagnostics page. It is meant to be read by
whoever helps with a problem, and is safe to give to them:

- it holds no prompt, no token, no generated text and no stop string, of anybody;
- it holds no credential: settings, log fields and messages are chosen by a list of what is harmless, and
  whatever that list does not name is left out;
- names of your programs are only in calibration/ (those of `owner.ignore`, as the file has them).

versions.json                swapd, Python, packages, kernel, driver, names of the devices
configuration.json           the settings that may be seen; `left_out` names the others that are set
health.json                  each part of the service and how it is
status.json                  what GET /status answers: devices, workers, counts of sessions
metrics.txt                  what GET /metrics answers
activity.json                what was lent and served in the last day and the last week
reconciliation.json          what the last start found of the run before it
drains.jsonl                 the latest drains, newest first: each session's outcome, times, reason
events/DEVICE.jsonl          what happened to the device, newest first
samples/DEVICE.csv           its readings of the last six hours, oldest first
calibration/saved.json       the pressure cache as it was on disk just now, byte for byte
calibration/live.json        what the service has learned until now: each histogram in short, with its bins
log/service.jsonl            the latest log lines of the service, oldest first
log/NAME.jsonl               the same of workers and samplers, without what engines print themselves
manifest.json                when this was made, and what is missing, with the reason

Times are seconds since 1970, or UTC where they are written as dates.
"""

_PROGRAM: Final = re.compile(rb"the owner's (?:[^\"\\]|\\.)+? is running(?= \(owner\.always\))")
"""How `swapd.lending.verdict` names a program of `owner.always`, inside a JSON text."""

Places = Sequence[tuple[str, str]]
"""Folders of this machine, longest first, and what is written in their place."""


class Facts(NamedTuple):
    """What only the service's own thread knows, as it was when the export began."""

    made_at: float
    config: Config
    config_path: Path
    views: Mapping[str, object]
    """Views by the name of their file; a sequence becomes one JSON line each."""
    metrics: bytes
    log: Sequence[str]
    missing: Mapping[str, str]
    """What cannot be there, and why."""


class GivenUp(Exception):
    """Nobody waits for this export any more."""


def build_archive(facts: Facts, given_up: threading.Event) -> Archive:
    """Write all that can be had, and what cannot with its reason; nothing is left behind of what is raised.

    Raises `GivenUp`, and `OSError` where the archive itself cannot be written.
    """
    file = tempfile.TemporaryFile(prefix="swapd-diagnostics-")  # noqa: SIM115 - it is handed on open
    try:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
            _Writer(zipped, facts, given_up).write()
        if given_up.is_set():
            raise GivenUp
        size = file.tell()
        file.seek(0)
    except BaseException:
        file.close()
        raise
    made = datetime.fromtimestamp(facts.made_at).astimezone()
    return Archive(file, size, f"swapd-diagnostics-{made:%Y%m%d-%H%M%S}.zip")


class _Writer:
    def __init__(self, zipped: zipfile.ZipFile, facts: Facts, given_up: threading.Event) -> None:
        self._zip = zipped
        self._facts = facts
        self._given_up = given_up
        self._missing = dict(facts.missing)
        self._places = places(facts.config, facts.config_path)

    def write(self) -> None:
        facts = self._facts
        self._put("README.txt", [README.encode()])
        for name, view in facts.views.items():
            parts = view if name.endswith(".jsonl") and isinstance(view, Sequence) else [view]
            self._put(name, (msgspec.json.encode(each) + b"\n" for each in parts))
        self._put("metrics.txt", [facts.metrics])
        self._saved_calibration()
        self._put("log/service.jsonl", self._lines(facts.log))
        for name in log_names(facts.config):
            self._put_tail(name)
        self._put_stored()
        self._put(
            "manifest.json", [msgspec.json.encode({"made_at": facts.made_at, "missing": self._missing})]
        )

    def _put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write one file of the archive, piece by piece; places and programs of its owner are not told."""
        with self._zip.open(name, "w", force_zip64=True) as member:
            for piece in pieces:
                self._go_on()
                member.write(without_names(piece, self._places))

    def _go_on(self) -> None:
        if self._given_up.is_set():
            raise GivenUp

    def _saved_calibration(self) -> None:
        """R128: byte for byte, read now."""
        try:
            data = read_cache(self._facts.config, self._facts.config_path)
        except (FolderRefused, CacheError) as error:
            self._missing["calibration/saved.json"] = error.reason
            return
        if data is None:
            self._missing["calibration/saved.json"] = "nothing has been saved yet"
        elif not _looks_like_a_cache(data):
            # The setting may name any file, one with tokens among them.
            self._missing["calibration/saved.json"] = f"its {len(data)} bytes are no pressure cache"
        else:
            with self._zip.open("calibration/saved.json", "w") as member:
                member.write(data)

    def _put_stored(self) -> None:
        """What only the database has. Where it cannot be read, nothing else is lost by that."""
        devices = [device.name for device in self._facts.config.devices]
        try:
            db = open_reader(Path(self._facts.config.database_path))
        except sqlite3.Error as error:
            for device in devices:
                self._missing |= dict.fromkeys(
                    (f"events/{device}.jsonl", f"samples/{device}.csv"), _why(error)
                )
            return
        with closing(db):
            db.execute("BEGIN")  # reads nothing yet
            for device in devices:
                try:
                    found = device_events(db, device, EVENTS_KEPT)
                except sqlite3.Error as error:
                    self._missing[f"events/{device}.jsonl"] = _why(error)
                else:
                    lines = (msgspec.json.encode(each) + b"\n" for each in found)
                    self._put(f"events/{device}.jsonl", lines)
                try:
                    self._put(f"samples/{device}.csv", self._samples(db, device))
                except sqlite3.Error as error:
                    self._missing[f"samples/{device}.csv"] = f"it ends where reading failed: {_why(error)}"

    def _put_tail(self, name: str) -> None:
        try:
            lines = tail(Path(self._facts.config.socket_dir) / f"{name}.log", TAIL_BYTES)
        except OSError as error:
            self._missing[f"log/{name}.jsonl"] = error.strerror or type(error).__name__
            return
        self._put(f"log/{name}.jsonl", self._lines(lines))

    def _lines(self, lines: Iterable[str | bytes]) -> Iterable[bytes]:
        for line in lines:
            shown = shown_line(line)
            if shown is not None:
                yield json.dumps(shown, separators=(",", ":")).encode() + b"\n"

    def _samples(self, db: sqlite3.Connection, device: str) -> Iterable[bytes]:
        """R128: six hours, also where older ones wait to be pruned."""
        yield b"at,result,attendance,reading_pct,threshold_pct,engaged\n"
        rows = db.execute(
            "SELECT at, result, attendance, reading_pct, threshold_pct, engaged FROM samples"
            " WHERE device = ? AND at >= ? ORDER BY at",
            (device, self._facts.made_at - SAMPLES_KEPT_S),
        )
        while some := rows.fetchmany(ROWS_AT_ONCE):
            yield "".join(
                ",".join("" if value is None else str(value) for value in row) + "\n" for row in some
            ).encode()


def _why(error: sqlite3.Error) -> str:
    return f"the database cannot be read: {error}"


def log_names(config: Config) -> Sequence[str]:
    """Whose logs lie in the socket folder: workers that the service starts, and samplers."""
    kinds = dict.fromkeys(device.kind for device in config.devices)
    return [
        *(worker.worker_id for worker in config.workers if worker.spawn),
        *(f"sampler-{kind}" for kind in kinds),
    ]


def tail(path: Path, at_most: int) -> Sequence[bytes]:
    """The whole lines in the last `at_most` bytes of a file. Raises `OSError`."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - at_most, 0))
        lines = file.read(at_most).splitlines()
    return lines[1:] if size > at_most else lines


def places(config: Config, config_path: Path) -> Places:
    """The folders that the configuration names, and the home folder; a name of a person may be in them."""
    known = {
        config.socket_dir: "<socket_dir>",
        str(Path(config.database_path).parent): "<store>",
        str(config_path.resolve().parent): "<configuration>",
        str(Path.home()): "~",
        **{str(model.path): "<model>" for model in config.models},
    }
    if config.park_dir is not None:
        known[config.park_dir] = "<park_dir>"
    # A path as short as / or /tmp is nobody's, and would hit much else.
    told = [(place, name) for place, name in known.items() if len(Path(place).parts) > 2 or name == "~"]
    return sorted((each for each in told if len(each[0]) > 1), key=lambda each: -len(each[0]))


def without_names(text: bytes, known: Places) -> bytes:
    """A text without folders of this machine, and without the program that the owner's need is told by."""
    for place, name in known:
        text = text.replace(place.encode(), name.encode())
    return _PROGRAM.sub(b"the owner's program is running", text)


def _looks_like_a_cache(data: bytes) -> bool:
    """Whether it is JSON of an object with a schema: no configuration, no key, nobody's notes."""
    try:
        found = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return {"schema", "gpus"} == set(found)
