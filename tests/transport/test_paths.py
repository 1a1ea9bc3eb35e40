from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
import zmq

from swapd.errors import Code, SwapdError
from swapd.transport.paths import (
    SOCKET_PATH_LIMIT_BYTES,
    check_socket_path,
    ensure_private_dir,
    ipc_endpoint,
    ipc_path,
    private_umask,
    socket_path,
    unlink_if_ours,
)
from swapd.transport.sockets import Context, open_socket


def path_of(directory: str, length: int) -> str:
    return os.path.join(directory, "x" * (length - len(directory) - 1))


async def test_a_path_at_the_limit_binds_with_zeromq_and_af_unix(short_dir: str, context: Context) -> None:
    """H105: 107 bytes bind."""
    path = path_of(short_dir, SOCKET_PATH_LIMIT_BYTES)
    endpoint = ipc_endpoint(short_dir, os.path.basename(path))
    async with open_socket(context, zmq.PULL, bind=endpoint):
        assert stat.S_ISSOCK(os.stat(path).st_mode)
    with socket.socket(socket.AF_UNIX) as plain:
        plain.bind(path)


@pytest.mark.parametrize("how", ["bind", "connect"])
async def test_a_path_over_the_limit_is_refused_before_it_is_touched(
    short_dir: str, context: Context, how: str
) -> None:
    """H105: 108 bytes are refused with path, length and limit, on bind and on connect."""
    path = path_of(short_dir, SOCKET_PATH_LIMIT_BYTES + 1)
    with pytest.raises(SwapdError) as caught:
        async with open_socket(context, zmq.PULL, **{how: f"ipc://{path}"}):  # type: ignore[arg-type]  # one of two str options
            pass
    assert caught.value.code is Code.SOCKET_PATH_TOO_LONG
    for named in (path, "108", "107"):
        assert named in caught.value.detail
    assert os.listdir(short_dir) == []


def test_the_limit_counts_bytes_not_characters(short_dir: str) -> None:
    """H105"""
    with pytest.raises(SwapdError) as caught:
        check_socket_path(os.path.join(short_dir, "é" * 60))
    assert caught.value.code is Code.SOCKET_PATH_TOO_LONG


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b"])
def test_a_socket_name_cannot_leave_its_directory(name: str) -> None:
    with pytest.raises(SwapdError) as caught:
        socket_path("/run/swapd", name)
    assert caught.value.code is Code.CONFIG_INVALID


@pytest.mark.parametrize("endpoint", ["ipc://", "ipc://@abstract", "ipc://*"])
def test_an_ipc_endpoint_without_a_file_is_refused(endpoint: str) -> None:
    """H107: an abstract socket has no owner and no mode."""
    with pytest.raises(SwapdError) as caught:
        ipc_path(endpoint)
    assert caught.value.code is Code.CONFIG_INVALID


def test_other_transports_have_no_path() -> None:
    assert ipc_path("inproc://x") is None


def test_a_private_directory_is_made_and_accepted_again(tmp_path: Path) -> None:
    """H107"""
    directory = tmp_path / "a" / "b"
    ensure_private_dir(directory)
    ensure_private_dir(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701, 0o500])
def test_a_directory_with_another_mode_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    """H107"""
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(SwapdError) as caught:
        ensure_private_dir(directory)
    assert caught.value.code is Code.CONFIG_INVALID
    assert f"chmod 0700 {directory}" in caught.value.detail


def test_a_link_a_file_and_an_impossible_directory_are_refused(tmp_path: Path) -> None:
    """H107"""
    ensure_private_dir(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for name in ("link", "file", "file/below"):
        with pytest.raises(SwapdError) as caught:
            ensure_private_dir(tmp_path / name)
        assert caught.value.code is Code.CONFIG_INVALID


def test_a_directory_of_someone_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H107"""
    ensure_private_dir(tmp_path / "d")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(SwapdError) as caught:
        ensure_private_dir(tmp_path / "d")
    assert f"uid {owner}" in caught.value.detail


def test_the_umask_comes_back(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with private_umask():
            (tmp_path / "f").touch()
        assert os.umask(0o022) == 0o022
        assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_only_our_own_socket_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.touch()
    unlink_if_ours(str(path), (0, 0))
    unlink_if_ours(str(path), None)
    assert path.exists()
    found = path.stat()
    unlink_if_ours(str(path), (found.st_dev, found.st_ino))
    unlink_if_ours(str(path), (found.st_dev, found.st_ino))
    assert not path.exists()
