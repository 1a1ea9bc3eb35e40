"""What was learned of one device can be moved aside and brought back, while no service runs."""

from __future__ import annotations

import json
import os
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from swapd.cli import main
from swapd.config import DeviceConfig
from swapd.errors import Code, SwapdError
from swapd.pressure import archive as archive_module
from swapd.pressure.archive import archive, put_back
from swapd.pressure.cache import decode_cache, encode_cache
from swapd.store.writer import LOCK_NAME
from swapd.transport.lock import FileLock
from tests.pressure.saved import CARD, FIXTURES, GPU0, GPU1, OTHER, SOUND, config, entry, owner, state

NAME = "swapd-pressure.json"
AT = datetime(2026, 3, 1, 23, 30, 5, tzinfo=timezone(timedelta(hours=1)))
DATED = "swapd-pressure.gpu0.20260301T223005Z.json"
BOTH = [entry(unlocked=SOUND, locked=b"null"), entry("gpu1", OTHER, unlocked=state(threshold_pct=31.0))]


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.cache = path / NAME
        self.toml = path / "swapd.toml"
        self.config = config(GPU0, GPU1, folder=str(path))

    def put(self, text: bytes) -> None:
        self.cache.write_bytes(text)
        self.cache.chmod(0o600)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "etc").mkdir(mode=0o755)
    made = Folder(tmp_path / "etc")
    made.put(encode_cache(BOTH))
    return made


def refused(call: Any) -> SwapdError:
    with pytest.raises(SwapdError) as caught:
        call()
    return caught.value


def test_one_devices_entry_is_moved_into_a_dated_private_file_and_comes_back(folder: Folder) -> None:
    """D36, R123, R124: as it was, even what cannot be used; the others keep theirs."""
    moved = archive(folder.config, folder.toml, "gpu0", AT)
    assert moved == folder.path / DATED
    assert moved.stat().st_mode & 0o7777 == 0o600
    assert moved.read_bytes() == encode_cache(BOTH[:1])
    assert folder.cache.read_bytes() == encode_cache(BOTH[1:])
    assert put_back(folder.config, folder.toml, moved) == ["gpu0"]
    assert folder.cache.read_bytes() == encode_cache(BOTH)
    assert os.listdir(folder.path) == [NAME]


def test_doing_it_again_does_nothing(folder: Folder) -> None:
    """D36."""
    archive(folder.config, folder.toml, "gpu0", AT)
    inode = folder.cache.stat().st_ino
    assert archive(folder.config, folder.toml, "gpu0", AT) is None
    assert folder.cache.stat().st_ino == inode
    folder.cache.unlink()
    assert archive(folder.config, folder.toml, "gpu0", AT) is None
    assert not folder.cache.exists()


def test_what_was_learned_since_gives_way_to_what_comes_back(folder: Folder) -> None:
    """D36, R124."""
    moved = archive(folder.config, folder.toml, "gpu0", AT)
    assert moved is not None
    folder.put(encode_cache([BOTH[1], entry(uuid=CARD.upper(), unlocked=state(threshold_pct=27.0))]))
    put_back(folder.config, folder.toml, moved)
    assert folder.cache.read_bytes() == encode_cache(BOTH)


def test_an_older_cache_is_archived_as_schema_4_under_the_devices_name(folder: Folder) -> None:
    """D36, R117."""
    folder.put((FIXTURES / "schema3.json").read_bytes())
    moved = archive(folder.config, folder.toml, "gpu0", AT)
    assert moved is not None
    (kept,) = decode_cache(moved.read_bytes(), owner().gpu_pressure)
    assert (kept.resource, kept.uuid) == ("gpu0", CARD)
    assert folder.cache.read_bytes() == b'{"schema":4,"gpus":[]}'


def test_a_device_by_index_and_one_under_another_uuid_have_nothing_saved(folder: Folder) -> None:
    """R91, R104."""
    odd = DeviceConfig("gpu0", selector="GPU-new")
    for device in (DeviceConfig("gpu0", selector="0"), odd):
        assert archive(config(device), folder.toml, "gpu0", AT) is None
    assert folder.cache.read_bytes() == encode_cache(BOTH)


def test_a_name_that_is_no_device_is_refused(folder: Folder) -> None:
    assert refused(lambda: archive(folder.config, folder.toml, "gpu9", AT)).code == Code.DEVICE_UNKNOWN


def test_a_devices_name_leads_nowhere_else(folder: Folder) -> None:
    """R100."""
    device = DeviceConfig("../a b", selector=CARD)
    moved = archive(config(device), folder.toml, "../a b", AT)
    assert moved == folder.path / "swapd-pressure.___a_b.20260301T223005Z.json"


def test_the_entry_leaves_the_cache_only_once_it_is_in_the_other_file(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D36: a crash between the two loses nothing."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive_module, "write_file", full)
    error = refused(lambda: archive(folder.config, folder.toml, "gpu0", AT))
    assert (error.code, error.detail) == (
        Code.CALIBRATION_UNUSABLE,
        f"{folder.cache}: No space left on device",
    )
    assert folder.cache.read_bytes() == encode_cache(BOTH)
    assert (folder.path / DATED).read_bytes() == encode_cache(BOTH[:1])


def test_a_file_already_there_under_that_name_is_not_touched(folder: Folder) -> None:
    """R100."""
    (folder.path / DATED).write_bytes(b"mine")
    assert refused(lambda: archive(folder.config, folder.toml, "gpu0", AT)).code == Code.CALIBRATION_UNUSABLE
    assert (folder.path / DATED).read_bytes() == b"mine"
    assert folder.cache.read_bytes() == encode_cache(BOTH)


def test_a_cache_that_cannot_be_used_is_not_touched(folder: Folder, tmp_path: Path) -> None:
    """R97, R107."""
    folder.put(b"{")
    error = refused(lambda: archive(folder.config, folder.toml, "gpu0", AT))
    assert error.detail.startswith(f"{folder.cache}: ")
    assert folder.cache.read_bytes() == b"{"
    unsafe = tmp_path / "unsafe"
    unsafe.mkdir()
    unsafe.chmod(0o777)
    elsewhere = config(GPU0, owned=owner("obs", state_file=str(unsafe / "p.json")))
    error = refused(lambda: archive(elsewhere, folder.toml, "gpu0", AT))
    assert "has mode 0777" in error.detail
    gone = config(GPU0, owned=owner("obs", state_file=str(tmp_path / "gone" / "p.json")))
    error = refused(lambda: archive(gone, folder.toml, "gpu0", AT))
    assert error.detail == f"there is no {tmp_path / 'gone'}"
    assert not (tmp_path / "gone").exists()


def test_only_an_archive_beside_the_cache_comes_back(folder: Folder, tmp_path: Path) -> None:
    """R95, R124: where others cannot write."""
    elsewhere = tmp_path / "a.json"
    elsewhere.write_bytes(encode_cache(BOTH))
    back: list[tuple[Path, str]] = [
        (elsewhere, f"{elsewhere} is not in {folder.path}"),
        (folder.cache, f"{folder.cache} is the cache itself"),
        (folder.path / "none.json", f"there is nothing in {folder.path / 'none.json'}"),
    ]
    for file, detail in back:
        error = refused(lambda file=file: put_back(folder.config, folder.toml, file))
        assert (error.code, error.detail) == (Code.CALIBRATION_UNUSABLE, detail)
    assert folder.cache.read_bytes() == encode_cache(BOTH)
    assert elsewhere.exists()


# --- the command ------------------------------------------------------------------------------------------

TOML = """database_path = "data/swapd.db"
socket_dir = "run"
allow_sim_engine = true
[[workers]]
worker_id = "a"
engine = "sim"
device = "gpu0"
[[models]]
alias = "m"
path = "model"
[[credentials]]
namespace = "me"
token = "a-tenant-token-for-the-test"
[[devices]]
name = "gpu0"
selector = "{card}"
[owner]
ignore = ["obs"]
"""


@pytest.fixture
def installed(folder: Folder) -> Folder:
    folder.toml.touch(mode=0o600)
    folder.toml.write_text(TOML.format(card=CARD))
    return folder


def swapd(*args: str) -> Result:
    return CliRunner().invoke(main, ["calibration", *args])


def test_the_command_says_how_to_undo_it_and_that_works(installed: Folder) -> None:
    """D36."""
    result = swapd("archive", "--device", "gpu0", "--config", str(installed.toml))
    assert result.exit_code == 0, result.output
    said = re.fullmatch(
        r"what was learned of gpu0 is now in (\S+)\nto undo this: swapd calibration (.+)\n", result.output
    )
    assert said is not None
    assert re.fullmatch(
        rf"{re.escape(str(installed.path))}/swapd-pressure\.gpu0\.\d{{8}}T\d{{6}}Z\.json", said[1]
    )
    again = swapd("archive", "--device", "gpu0", "--config", str(installed.toml))
    assert (again.exit_code, again.output) == (0, "nothing is saved of gpu0\n")
    undone = swapd(*said[2].split())
    assert undone.output == f"gpu0: what was in {said[1]} is used again from the next start on\n"
    assert installed.cache.read_bytes() == encode_cache(BOTH)


def test_the_command_answers_programs_in_json(installed: Folder) -> None:
    """D36."""
    args = ["archive", "--device", "gpu0", "--config", str(installed.toml), "--json"]
    first = json.loads(swapd(*args).stdout)
    assert (first["device"], Path(first["file"]).parent) == ("gpu0", installed.path)
    assert first["undo"] == f"swapd calibration restore {first['file']} --config {installed.toml}"
    assert json.loads(swapd(*args).stdout) == {"device": "gpu0", "file": None, "undo": None}
    back = swapd("restore", first["file"], "--config", str(installed.toml), "--json")
    assert json.loads(back.stdout) == {"devices": ["gpu0"]}
    wrong = swapd("archive", "--device", "x", "--config", str(installed.toml), "--json")
    assert wrong.exit_code == 2
    assert json.loads(wrong.stdout)["error"]["code"] == "device_unknown"


@pytest.mark.parametrize("verb", [["archive", "--device", "gpu0"], ["restore", "x.json"]])
def test_while_the_service_runs_the_command_is_refused(installed: Folder, verb: list[str]) -> None:
    """D36: it would write over it."""
    data = installed.path / "data"
    data.mkdir()
    lock = FileLock.acquire(data / LOCK_NAME, Code.COORDINATOR_LOCK_HELD)
    try:
        result = swapd(*verb, "--config", str(installed.toml))
    finally:
        lock.release()
    assert result.exit_code == 2
    assert result.stderr.endswith(
        f"is held by process {os.getpid()}; stop the service first) [coordinator_lock_held]\n"
    )
    assert installed.cache.read_bytes() == encode_cache(BOTH)


def test_the_lock_is_let_go_and_nothing_is_left(installed: Folder) -> None:
    """D36."""
    data = installed.path / "data"
    data.mkdir()
    assert swapd("archive", "--device", "gpu0", "--config", str(installed.toml)).exit_code == 0
    assert os.listdir(data) == []


def test_without_a_configuration_the_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    result = swapd("archive", "--device", "gpu0")
    assert result.exit_code == 2
    assert "there is no ./swapd.toml" in result.stderr
