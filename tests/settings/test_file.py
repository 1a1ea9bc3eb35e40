"""The configuration file is replaced whole, with its mode and owner, or left as it was."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from swapd.errors import Code, SwapdError
from swapd.settings import file
from swapd.settings.file import read_now, replace


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "swapd.toml"
    made.write_text("port = 1\n")
    made.chmod(0o640)
    return made


def refusal(path: Path, digest: str) -> SwapdError:
    with pytest.raises(SwapdError) as caught:
        replace(path, "port = 2\n", digest)
    return caught.value


def test_a_save_replaces_the_file_and_keeps_its_mode(path: Path) -> None:
    now = read_now(path)
    assert (now.text, now.locked) == ("port = 1\n", None)
    before = path.stat()
    replace(path, "port = 2\n", now.digest)
    assert path.read_text() == "port = 2\n"
    after = path.stat()
    assert stat.S_IMODE(after.st_mode) == 0o640
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino, "written in place: a crash could leave half of it"
    assert os.listdir(path.parent) == ["swapd.toml"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_file_of_another_account_stays_its_own(path: Path) -> None:
    os.chown(path, 12345, 23456)
    replace(path, "port = 2\n", read_now(path).digest)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 23456, 0o640)


def test_line_ends_are_bytes_of_the_file(path: Path) -> None:
    path.write_bytes(b"port = 1\r\n")
    now = read_now(path)
    assert now.text == "port = 1\r\n"
    replace(path, now.text + "# more\r\n", now.digest)
    assert path.read_bytes() == b"port = 1\r\n# more\r\n"


def test_a_file_that_was_changed_meanwhile_is_left_alone(path: Path) -> None:
    now = read_now(path)
    path.write_text("port = 3\n")
    assert refusal(path, now.digest).code is Code.SETTINGS_CHANGED
    assert path.read_text() == "port = 3\n"


def test_a_link_stays_a_link_and_its_target_is_replaced(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "etc" / "swapd.toml"
    link.parent.mkdir()
    link.symlink_to(path)
    replace(link, "port = 2\n", read_now(link).digest)
    assert link.is_symlink()
    assert path.read_text() == "port = 2\n"
    assert os.listdir(link.parent) == ["swapd.toml"]


def test_a_read_only_file_is_not_replaced_though_its_folder_would_let_us(path: Path) -> None:
    path.chmod(0o440)
    now = read_now(path)
    assert now.locked is not None
    assert "read-only" in now.locked
    error = refusal(path, now.digest)
    assert error.code is Code.SETTINGS_NOT_WRITTEN
    assert "0440" in error.sentence
    assert path.read_text() == "port = 1\n"


@pytest.mark.parametrize("step", ["fsync", "rename", "fchmod"])
def test_a_disk_that_fails_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    digest = read_now(path).digest
    monkeypatch.setattr(file.os, step, fails)
    error = refusal(path, digest)
    monkeypatch.undo()
    assert error.code is Code.SETTINGS_NOT_WRITTEN
    assert "No space left" in error.sentence
    assert path.read_text() == "port = 1\n"
    assert os.listdir(path.parent) == ["swapd.toml"]


def test_what_cannot_be_read_is_said(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"\xff")
    loop = tmp_path / "loop.toml"
    loop.symlink_to(loop)
    big = tmp_path / "big.toml"
    big.write_bytes(b"#" * (file.MAX_CONFIG_BYTES + 1))
    for wrong in (path, loop, big, tmp_path, tmp_path / "none.toml"):
        with pytest.raises(SwapdError) as caught:
            read_now(wrong)
        assert caught.value.code is Code.CONFIG_INVALID
