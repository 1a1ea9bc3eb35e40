"""The two token files: made once, private, and refused when they are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swapd.errors import Code, SwapdError
from swapd.signin.tokens import TokenFiles


def test_both_files_are_made_once_and_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = TokenFiles(tmp_path).load()
    finally:
        os.umask(before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner-token", "viewer-token"]
    for role, token in made.items():
        path = tmp_path / f"{role}-token"
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.read_text() == token + "\n"
        assert len(token) >= 43
    assert made["owner"] != made["viewer"]
    assert TokenFiles(tmp_path).load() == made


def test_a_removed_file_gets_a_new_token_and_the_other_stays(tmp_path: Path) -> None:
    files = TokenFiles(tmp_path)
    made = files.load()
    files.path("owner").unlink()
    again = files.load()
    assert again["owner"] != made["owner"]
    assert again["viewer"] == made["viewer"]


def test_renewing_replaces_both(tmp_path: Path) -> None:
    files = TokenFiles(tmp_path)
    made = files.load()
    renewed = files.renew()
    assert not set(made.values()) & set(renewed.values())
    assert files.load() == renewed


def readable(path: Path) -> None:
    path.chmod(0o640)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def weak(path: Path) -> None:
    path.write_text("password\n")


def binary(path: Path) -> None:
    path.write_bytes(b"\xff" * 64)


def huge(path: Path) -> None:
    path.write_text("a" * 100_000)


@pytest.mark.parametrize("harm", [readable, link, folder, fifo, weak, binary, huge])
def test_a_file_that_is_no_private_token_is_refused(tmp_path: Path, harm) -> None:  # type: ignore[no-untyped-def]
    """Named with its path and what to do; its content is not told."""
    files = TokenFiles(tmp_path)
    files.load()
    harm(files.path("owner"))
    with pytest.raises(SwapdError) as refused:
        files.load()
    assert refused.value.code is Code.CONFIG_INVALID
    assert "owner-token" in refused.value.sentence
    assert "password" not in refused.value.sentence


def test_a_token_of_ones_own_is_taken(tmp_path: Path) -> None:
    files = TokenFiles(tmp_path)
    files.load()
    files.path("owner").write_text("my-own-token-0123456789abcdefghij\n")
    assert files.load()["owner"] == "my-own-token-0123456789abcdefghij"
