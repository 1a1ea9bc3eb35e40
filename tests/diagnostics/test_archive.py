"""The archive: the cache byte for byte, six hours of readings, filtered logs, and nothing of this machine."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swapd.config import (
    Config,
    CredentialConfig,
    DeviceConfig,
    ModelConfig,
    OwnerConfig,
    PressureConfig,
    WorkerConfig,
)
from swapd.device_views import DeviceEvent, SamplePoint
from swapd.diagnostics import archive as archive_module
from swapd.diagnostics.archive import README, Facts, GivenUp, build_archive, tail, without_names
from swapd.lending import verdict
from swapd.lending.verdict import judge
from swapd.messages.sampler import Measurement
from swapd.pressure.cache import encode_cache
from swapd.store.devices import add_device_event, add_samples
from swapd.store.writer import Store
from tests.pressure.saved import SOUND, entry

NOW = 1_700_000_000.0
SECRET = "canary-token-of-somebody"


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    """A store with readings of two devices, and the folders beside it."""
    (tmp_path / "s").mkdir(mode=0o700)
    made = Config(
        database_path=str(tmp_path / "data" / "swapd.db"),
        socket_dir=str(tmp_path / "s"),
        workers=(WorkerConfig("a", "sim", "gpu0"), WorkerConfig("b", "sim", "gpu1", spawn=False)),
        models=(ModelConfig("m", str(tmp_path / "model")),),
        credentials=(CredentialConfig("t", SECRET),),
        devices=(DeviceConfig("gpu0", selector="GPU-1"), DeviceConfig("gpu1", "cpu", cores=(0,))),
    )
    store = Store.open(made.database_path)
    with closing(store):
        db = store._connection
        points = [SamplePoint(NOW - age, "ok", "locked", 3.5, None, age < 9) for age in (21_601, 21_600, 8)]
        add_samples(db, [("gpu0", point) for point in points])
        add_samples(db, [("gpu1", SamplePoint(NOW, "failed", "unknown", None, 40.0, False))])
        add_device_event(db, DeviceEvent(NOW, "gpu0", "lent"))
        yield made


def facts(config: Config, folder: Path, **changes: Any) -> Facts:
    made = Facts(
        NOW,
        config,
        folder / "swapd.toml",
        {"versions.json": {"swapd": "0"}, "drains.jsonl": [{"id": 1}, {"id": 2}]},
        b"swapd_ready 1.0\n",
        (line("service"), "raw text of an engine"),
        {"x": "y"},
    )
    return made._replace(**changes)


def line(message: str, **fields: Any) -> str:
    return json.dumps({"time": "t", "level": "info", "logger": "swapd.x", "message": message} | fields)


def opened(made: Facts) -> Mapping[str, bytes]:
    archive = build_archive(made, threading.Event())
    with archive.file as file, zipfile.ZipFile(file) as zipped:
        assert archive.size_bytes == file.seek(0, 2)
        return {name: zipped.read(name) for name in zipped.namelist()}


def test_every_file_is_explained_and_every_explained_file_is_there(config: Config, tmp_path: Path) -> None:
    names = set(opened(facts(config, tmp_path)))
    generic = {name.replace("gpu0", "DEVICE").replace("gpu1", "DEVICE") for name in names} - {"README.txt"}
    told = {word.split()[0] for word in README.split("\n\n")[2].splitlines()} | {"manifest.json"}
    assert generic <= told


def test_six_hours_of_readings_and_no_more(config: Config, tmp_path: Path) -> None:
    """R128: also where older ones wait to be pruned."""
    found = opened(facts(config, tmp_path))
    rows = list(csv.DictReader(io.StringIO(found["samples/gpu0.csv"].decode())))
    assert [float(row["at"]) for row in rows] == [NOW - 21_600, NOW - 8]
    assert (rows[1]["reading_pct"], rows[1]["threshold_pct"], rows[1]["engaged"]) == ("3.5", "", "1")
    assert found["samples/gpu1.csv"].decode().splitlines()[1:] == [f"{NOW},failed,unknown,,40.0,0"]
    assert msgspec.json.decode(found["events/gpu0.jsonl"])["kind"] == "lent"
    assert found["events/gpu1.jsonl"] == b""


def test_many_readings_come_in_pieces(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R128"""
    monkeypatch.setattr(archive_module, "ROWS_AT_ONCE", 1)
    assert len(opened(facts(config, tmp_path))["samples/gpu0.csv"].splitlines()) == 3


def test_the_cache_is_the_file_as_it_is_now(config: Config, tmp_path: Path) -> None:
    """R128: byte for byte, whatever a person did to its layout."""
    path = tmp_path / "swapd-pressure.json"
    text = b"  " + encode_cache([entry(unlocked=SOUND)]) + b"\n"
    path.write_bytes(text)
    path.chmod(0o600)
    assert opened(facts(config, tmp_path))["calibration/saved.json"] == text
    path.write_bytes(b'{"schema": 99, "gpus": "odd"}')
    assert opened(facts(config, tmp_path))["calibration/saved.json"] == b'{"schema": 99, "gpus": "odd"}'


@pytest.mark.parametrize(
    "text", [f'token = "{SECRET}"'.encode(), json.dumps({"token": SECRET}).encode(), b"", b"\xff"]
)
def test_a_file_that_is_no_cache_is_not_given_away(config: Config, tmp_path: Path, text: bytes) -> None:
    """B42, H182: `state_file` may name any file, one with tokens among them."""
    other = tmp_path / "other"
    other.write_bytes(text)
    other.chmod(0o600)
    named = msgspec.structs.replace(
        config, owner=OwnerConfig(gpu_pressure=PressureConfig(state_file="other"))
    )
    found = opened(facts(named, tmp_path))
    assert "calibration/saved.json" not in found
    assert (
        "no pressure cache"
        in msgspec.json.decode(found["manifest.json"])["missing"]["calibration/saved.json"]
    )
    assert SECRET.encode() not in b"".join(found.values())


def test_what_is_missing_is_told_with_the_reason(config: Config, tmp_path: Path) -> None:
    missing = msgspec.json.decode(opened(facts(config, tmp_path))["manifest.json"])["missing"]
    assert missing["calibration/saved.json"] == "nothing has been saved yet"
    assert missing["x"] == "y"
    assert "log/a.jsonl" in missing
    assert "log/b.jsonl" not in missing  # started by hand: its log is elsewhere


@pytest.mark.parametrize("how", ["gone", "garbage", "no samples"])
def test_a_database_that_cannot_be_read_costs_only_what_is_in_it(
    config: Config, tmp_path: Path, how: str
) -> None:
    """B42: when most is wrong the rest is needed most; each part that cannot be had says why."""
    path = Path(config.database_path)
    if how == "no samples":
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("DROP TABLE samples")
    else:
        other = tmp_path / "other.db"
        if how == "garbage":
            other.write_bytes(b"no database at all. " * 500)
        config = msgspec.structs.replace(config, database_path=str(other))
    found = opened(facts(config, tmp_path))
    missing = msgspec.json.decode(found["manifest.json"])["missing"]
    stored = {f"{kind}/{name}" for kind, name in product(["events", "samples"], ["gpu0", "gpu1"])}
    for part in stored:
        kind = part.partition("/")[0]
        if how == "no samples" and kind == "events":
            assert f"{part}.jsonl" in found
        else:
            assert (
                "the database cannot be read" in missing[f"{part}.{'csv' if kind == 'samples' else 'jsonl'}"]
            )
    assert {"versions.json", "drains.jsonl", "metrics.txt"} <= set(found)
    assert [json.loads(text)["message"] for text in found["log/service.jsonl"].splitlines()] == ["service"]


def test_logs_of_workers_are_filtered_line_by_line(config: Config, tmp_path: Path) -> None:
    """H183, B42: what an engine prints itself does not get out."""
    (tmp_path / "s" / "a.log").write_text(
        "\n".join(
            [f"engine: {SECRET}", line("worker ready", pid=7, path=f"{tmp_path}/x"), line("b", prompt=SECRET)]
        )
    )
    found = opened(facts(config, tmp_path))
    lines = [json.loads(text) for text in found["log/a.jsonl"].splitlines()]
    assert [each["message"] for each in lines] == ["worker ready", "b"]
    assert lines[0]["pid"] == 7
    assert [json.loads(text)["message"] for text in found["log/service.jsonl"].splitlines()] == ["service"]
    assert SECRET.encode() not in b"".join(found.values())


def test_folders_of_this_machine_are_not_told(config: Config, tmp_path: Path) -> None:
    reason = f"see {tmp_path}/s/a.log of {tmp_path}/data/swapd.db"
    views = {"status.json": {"reason": reason}, "drains.jsonl": [{"detail": str(Path.home() / "x")}]}
    found = opened(facts(config, tmp_path, views=views))
    assert str(tmp_path).encode() not in b"".join(found.values())
    assert b"see <socket_dir>/a.log of <store>/swapd.db" in found["status.json"]
    assert found["drains.jsonl"] == b'{"detail":"~/x"}\n'


@pytest.mark.parametrize("program", ["steam", 'odd"name', "back\\slash", "a is running b", "größe"])
def test_the_owners_programs_are_not_told(config: Config, tmp_path: Path, program: str) -> None:
    """The verdict on a device names the program for whose sake it is given back."""
    wanted = msgspec.structs.replace(config.owner, always=(program,))
    seen = Measurement("gpu0", "ok", 1.0, 3.0, always_seen=(program,))
    told = judge(
        verdict.Facts(msgspec.structs.replace(wanted, consent=True), informed=seen), 1.0, NOW
    ).sentence
    assert program in told
    views = {"status.json": {"sentence": told, "other": "the owner's own load"}}
    found = opened(facts(config, tmp_path, views=views, log=(line("x", reason=told),)))
    assert program.encode() not in b"".join(found.values())
    assert json.dumps(program)[1:-1].encode() not in b"".join(found.values())
    sentence = "the owner's program is running (owner.always)"
    assert json.loads(found["status.json"]) == {"sentence": sentence, "other": "the owner's own load"}
    assert json.loads(found["log/service.jsonl"])["reason"] == sentence


def test_places_are_replaced_longest_first() -> None:
    assert without_names(b"/a/b/c /a/b", [("/a/b/c", "C"), ("/a/b", "B")]) == b"C B"


def test_the_end_of_a_log_is_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\nsecond\nthird\n")
    assert tail(path, 100) == [b"first", b"second", b"third"]
    assert tail(path, 8) == [b"third"]


def test_an_export_that_nobody_waits_for_ends(config: Config, tmp_path: Path) -> None:
    given_up = threading.Event()
    given_up.set()
    began = time.monotonic()
    with pytest.raises(GivenUp):
        build_archive(facts(config, tmp_path), given_up)
    assert time.monotonic() - began < 60


def test_without_room_for_it_there_is_no_archive_and_nothing_left(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has no name, so a failing test of open files would show one that stayed."""

    def full(self: object, name: str, mode: str, **_: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "open", full)
    with pytest.raises(OSError, match="No space left"):
        build_archive(facts(config, tmp_path), threading.Event())
