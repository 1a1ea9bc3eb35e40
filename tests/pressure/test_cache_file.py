"""The cache on a real disk: read only if it is ours, replaced whole, and nothing planted is followed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from swapd.config import Config
from swapd.pressure import cache_file
from swapd.pressure.cache import CACHE_LIMIT_BYTES, CacheError
from swapd.pressure.cache_file import (
    FolderRefused,
    cache_path,
    is_default_folder,
    open_folder,
    read_file,
    remove_leftovers,
    state_folder_problem,
    write_file,
    write_new,
)
from tests.descriptors import none_left_open
from tests.pressure.saved import GPU0, config, owner

NAME = "swapd-pressure.json"
STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def configured(folder: Path, state_file: str | None = None) -> tuple[Config, Path]:
    return config(GPU0, owned=owner(state_file=state_file)), folder / "swapd.toml"


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    with open_folder(folder, is_default=True, create=False) as fd:
        assert fd is not None
        yield fd


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def made(path: Path, mode: int) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


def refusal(folder: Path, *, create: bool = False) -> str:
    with (
        pytest.raises(FolderRefused) as caught,
        open_folder(folder, is_default=False, create=create),
    ):
        pass
    return caught.value.reason


# --- where ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state_file", "path"),
    [(None, NAME), ("x.json", "x.json"), ("d/x.json", "d/x.json"), ("../d/x.json", "../d/x.json")],
)
def test_the_cache_lies_beside_the_configuration_unless_it_is_told_otherwise(
    tmp_path: Path, state_file: str | None, path: str
) -> None:
    """R81."""
    folder = made(tmp_path / "etc", 0o755)
    expected = Path(os.path.normpath(folder / path))
    assert cache_path(*configured(folder, state_file)) == expected
    assert is_default_folder(expected, folder / "swapd.toml") is (expected.parent == folder)


def test_a_cache_named_by_its_full_path_lies_there(tmp_path: Path) -> None:
    """R81."""
    path = cache_path(*configured(tmp_path / "etc", "/var/lib/x/p.json"))
    assert path == Path("/var/lib/x/p.json")
    assert not is_default_folder(path, tmp_path / "etc" / "swapd.toml")


def test_a_linked_configuration_has_its_cache_beside_the_real_one(tmp_path: Path) -> None:
    """R81."""
    real = made(tmp_path / "real", 0o755)
    (real / "swapd.toml").touch()
    (tmp_path / "swapd.toml").symlink_to(real / "swapd.toml")
    settings, path = configured(tmp_path)
    assert cache_path(settings, path) == real / NAME
    assert is_default_folder(real / NAME, path)


# --- which folders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_a_private_folder_elsewhere_is_used(tmp_path: Path, mode: int) -> None:
    """R95."""
    folder = made(tmp_path / "state", mode)
    with open_folder(folder, is_default=False, create=False) as fd:
        assert fd is not None
        assert os.path.samestat(os.fstat(fd), folder.stat())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert state_folder_problem(*configured(made(tmp_path / "etc", 0o755), str(folder / "p.json"))) is None


@pytest.mark.parametrize("mode", [0o775, 0o777, 0o1777, 0o720])
def test_a_folder_elsewhere_that_others_can_write_is_refused_and_check_config_says_the_same(
    tmp_path: Path, mode: int
) -> None:
    """R95, R97, R98."""
    folder = made(tmp_path / "state", mode)
    reason = refusal(folder)
    assert reason == f"{folder} has mode {mode:04o}: its group or other accounts may write there"
    settings, path = configured(made(tmp_path / "etc", 0o755), str(folder / "p.json"))
    assert state_folder_problem(settings, path) == f"pressure cache not used: {reason}"
    assert os.listdir(folder) == []


@as_root
def test_a_folder_elsewhere_of_another_account_is_refused(tmp_path: Path) -> None:
    """R95."""
    folder = made(tmp_path / "state", 0o700)
    os.chown(folder, STRANGER, -1)
    assert refusal(folder) == f"{folder} belongs to uid {STRANGER}, not to uid 0 or root"


def test_a_folder_below_one_that_others_can_write_is_refused(tmp_path: Path) -> None:
    """D26: unless that one is sticky, as /tmp is."""
    above = made(tmp_path / "above", 0o755)
    folder = made(above / "state", 0o700)
    above.chmod(0o777)
    assert refusal(folder) == f"{above} has mode 0777: its group or other accounts may write there"
    above.chmod(0o1777)
    with open_folder(folder, is_default=False, create=False) as fd:
        assert fd is not None


def test_a_link_on_the_way_is_followed_once_and_where_it_leads_is_judged(tmp_path: Path) -> None:
    """R95, D26."""
    folder = made(tmp_path / "open", 0o777)
    (tmp_path / "link").symlink_to(folder)
    settings, path = configured(made(tmp_path / "etc", 0o755), str(tmp_path / "link" / "p.json"))
    assert cache_path(settings, path) == folder / "p.json"
    problem = state_folder_problem(settings, path)
    assert problem is not None
    assert f"{folder} has mode 0777" in problem
    # A link that takes a folder's place after that is not followed any more.
    assert refusal(tmp_path / "link") == f"{tmp_path / 'link'} cannot be opened: Not a directory"


def test_a_file_where_a_folder_should_be_is_refused(tmp_path: Path) -> None:
    """R95."""
    (tmp_path / "state").touch()
    assert refusal(tmp_path / "state") == f"{tmp_path / 'state'} cannot be opened: Not a directory"


def test_a_file_where_the_configurations_folder_should_be_is_refused(tmp_path: Path) -> None:
    """R97."""
    (tmp_path / "etc").touch()
    with (
        pytest.raises(FolderRefused, match="etc cannot be opened: Not a directory"),
        open_folder(tmp_path / "etc", is_default=True, create=False),
    ):
        pass


def test_a_check_of_the_configuration_makes_no_folder(tmp_path: Path) -> None:
    """R98, R99."""
    settings, path = configured(made(tmp_path / "etc", 0o755), str(tmp_path / "state" / "p.json"))
    assert state_folder_problem(settings, path) is None
    assert os.listdir(tmp_path) == ["etc"]


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o777])
def test_a_missing_folder_is_made_private_below_a_safe_one(tmp_path: Path, mask: int) -> None:
    """R99: each of them, whatever the umask."""
    folder = tmp_path / "var" / "state"
    with open_folder(folder, is_default=False, create=False) as fd:
        assert fd is None
    assert os.listdir(tmp_path) == []
    with umask(mask), open_folder(folder, is_default=False, create=True) as fd:
        assert fd is not None
    assert (mode_of(tmp_path / "var"), mode_of(folder)) == (0o700, 0o700)


def test_nothing_is_made_below_a_folder_that_is_not_safe(tmp_path: Path) -> None:
    """R99: the path is judged first."""
    above = made(tmp_path / "above", 0o777)
    folder = above / "var" / "state"
    assert refusal(folder, create=True).startswith(f"{above} has mode 0777")
    assert os.listdir(above) == []
    settings, path = configured(made(tmp_path / "etc", 0o755), str(folder / "p.json"))
    problem = state_folder_problem(settings, path)
    assert problem == f"pressure cache not used: {refusal(folder)}"
    assert os.listdir(above) == []


def test_a_folder_that_someone_else_makes_first_is_judged_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R99, D26: below a sticky folder that can happen."""
    real = os.mkdir

    def beaten(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        real(name, 0o700, dir_fd=dir_fd)
        os.chmod(name, 0o777, dir_fd=dir_fd)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(cache_file.os, "mkdir", beaten)
    assert refusal(tmp_path / "state", create=True).startswith(f"{tmp_path / 'state'} has mode 0777")


def test_a_link_that_someone_else_puts_there_first_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R99, D26: even where it leads to a safe folder."""
    safe = made(tmp_path / "safe", 0o700)

    def beaten(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        os.symlink(safe, name, dir_fd=dir_fd)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(cache_file.os, "mkdir", beaten)
    folder = tmp_path / "state"
    assert refusal(folder, create=True) == f"{folder} cannot be opened: Not a directory"


def test_what_cannot_be_listed_or_removed_stays(tmp_path: Path) -> None:
    """R101: a start does not fail over it."""
    (tmp_path / f".{NAME}.0.staging").mkdir()
    with opened(tmp_path) as fd:
        remove_leftovers(fd, NAME)
    assert os.listdir(tmp_path) == [f".{NAME}.0.staging"]


def test_the_folder_of_the_configuration_is_used_whatever_its_mode_and_check_config_tells_it(
    tmp_path: Path,
) -> None:
    """D25."""
    folder = made(tmp_path / "etc", 0o777)
    settings, path = configured(folder)
    with opened(folder) as fd:
        write_file(fd, NAME, b"{}")
        assert read_file(fd, NAME) == b"{}"
    said = f"{folder} has mode 0777: its group or other accounts may write there"
    assert state_folder_problem(settings, path) == said
    assert state_folder_problem(*configured(folder, str(folder / "other.json"))) == said
    folder.chmod(0o755)
    assert state_folder_problem(settings, path) is None


def test_without_devices_nobody_is_told_of_the_configurations_folder(tmp_path: Path) -> None:
    """D25."""
    folder = made(tmp_path / "etc", 0o777)
    assert state_folder_problem(config(), folder / "swapd.toml") is None
    assert state_folder_problem(*configured(tmp_path / "gone")) is None


# --- reading ----------------------------------------------------------------------------------------------


def unreadable(folder: Path) -> str:
    with opened(folder) as fd, pytest.raises(CacheError) as caught:
        read_file(fd, NAME)
    assert caught.value.state == "unreadable"
    return caught.value.reason


def test_a_cache_that_is_not_there_is_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as fd:
        assert read_file(fd, NAME) is None


def test_a_cache_is_read_whole_up_to_exactly_one_mebibyte(tmp_path: Path) -> None:
    """D19, R107."""
    data = os.urandom(CACHE_LIMIT_BYTES)
    (tmp_path / NAME).write_bytes(data)
    (tmp_path / NAME).chmod(0o644)
    with opened(tmp_path) as fd:
        assert read_file(fd, NAME) == data
    (tmp_path / NAME).write_bytes(data + b"x")
    with opened(tmp_path) as fd, pytest.raises(CacheError) as caught:
        read_file(fd, NAME)
    assert (caught.value.state, caught.value.reason) == ("too large", "it has over 1048576 bytes")


def test_a_file_that_grows_while_it_is_read_is_given_up_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R107: it may have no end."""
    (tmp_path / NAME).touch(0o600)
    given = 0

    def growing(_fd: int, size: int) -> bytes:
        nonlocal given
        assert given <= CACHE_LIMIT_BYTES, "one byte over the limit is enough"
        part = b"x" * min(size, 100_000)
        given += len(part)
        return part

    monkeypatch.setattr(cache_file.os, "read", growing)
    with opened(tmp_path) as fd, pytest.raises(CacheError) as caught:
        read_file(fd, NAME)
    assert caught.value.state == "too large"


def test_a_cache_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    """D27."""
    (tmp_path / "target").write_bytes(b"{}")
    (tmp_path / NAME).symlink_to("target")
    assert unreadable(tmp_path) == "it is a symbolic link"


@as_root
def test_a_cache_of_another_account_is_not_read(tmp_path: Path) -> None:
    """D27."""
    (tmp_path / NAME).write_bytes(b"{}")
    os.chown(tmp_path / NAME, STRANGER, -1)
    assert unreadable(tmp_path) == f"it belongs to uid {STRANGER}, not to uid 0 or root"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_cache_that_others_can_write_is_not_read(tmp_path: Path, mode: int) -> None:
    """D27."""
    (tmp_path / NAME).write_bytes(b"{}")
    (tmp_path / NAME).chmod(mode)
    said = f"it has mode {mode:04o}: its group or other accounts may write to it"
    assert unreadable(tmp_path) == said


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    """R107."""
    os.mkfifo(tmp_path / NAME)
    assert unreadable(tmp_path) == "it is not a regular file"


def test_a_folder_in_its_place_is_not_read(tmp_path: Path) -> None:
    """R107."""
    (tmp_path / NAME).mkdir()
    assert unreadable(tmp_path) == "it is not a regular file"


def test_a_disk_that_cannot_read_makes_it_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R107."""
    (tmp_path / NAME).write_bytes(b"{}")
    (tmp_path / NAME).chmod(0o600)

    def failing(*_: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(cache_file.os, "read", failing)
    assert unreadable(tmp_path) == "Input/output error"


# --- writing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_the_cache_is_private_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    """R102, R100."""
    with opened(tmp_path) as fd, umask(mask):
        write_file(fd, NAME, b"one")
        write_file(fd, NAME, b"two")
    assert mode_of(tmp_path / NAME) == 0o600
    assert (tmp_path / NAME).read_bytes() == b"two"
    assert os.listdir(tmp_path) == [NAME]


def test_a_link_planted_under_the_caches_name_is_replaced_and_its_target_untouched(tmp_path: Path) -> None:
    """R100."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / NAME).symlink_to(victim)
    with opened(tmp_path) as fd:
        write_file(fd, NAME, b"new")
    assert not (tmp_path / NAME).is_symlink()
    assert (tmp_path / NAME).read_bytes() == b"new"
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("kind", ["link", "dangling", "file", "hard link"])
def test_whatever_is_planted_under_the_staging_name_fails_the_save_and_is_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """R100: even if somebody had guessed the name."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / NAME).write_bytes(b"old")
    staging = tmp_path / f".{NAME}.guess.staging"
    if kind == "link":
        staging.symlink_to(victim)
    elif kind == "dangling":
        staging.symlink_to(tmp_path / "nowhere")
    elif kind == "file":
        staging.write_bytes(b"precious")
    else:
        os.link(victim, staging)
    monkeypatch.setattr(cache_file.secrets, "token_hex", lambda _size: "guess")
    with opened(tmp_path) as fd, pytest.raises(FileExistsError):
        write_file(fd, NAME, b"new")
    assert (tmp_path / NAME).read_bytes() == b"old"
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "nowhere").exists()
    assert staging.is_symlink() or staging.read_bytes() == b"precious"


def test_every_save_has_a_staging_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R100: 64 random bits."""
    names: list[str] = []

    def noted(source: str, target: str, **kwargs: Any) -> None:
        names.append(source)
        rename(source, target, **kwargs)

    rename = os.rename
    monkeypatch.setattr(cache_file.os, "rename", noted)
    with opened(tmp_path) as fd:
        write_file(fd, NAME, b"1")
        write_file(fd, NAME, b"2")
    assert len(set(names)) == 2
    for name in names:
        assert name.startswith(f".{NAME}.")
        assert name.endswith(".staging")
        assert len(name) == len(f".{NAME}..staging") + 16


class Crash(BaseException):
    """The process is gone: nothing of ours runs any more."""


def test_a_crash_between_staging_and_rename_leaves_the_old_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R101: what is left over is whole, private, never read, and removed by the next start."""
    with opened(tmp_path) as fd:
        write_file(fd, NAME, b"old")

        def crash(*_: Any, **__: Any) -> None:
            raise Crash

        with monkeypatch.context() as patched:
            patched.setattr(cache_file.os, "rename", crash)
            with pytest.raises(Crash):
                write_file(fd, NAME, b"new")
        (left,) = [name for name in os.listdir(tmp_path) if name != NAME]
        assert (tmp_path / left).read_bytes() == b"new"
        assert mode_of(tmp_path / left) == 0o600
        assert read_file(fd, NAME) == b"old"
        remove_leftovers(fd, NAME)
    assert os.listdir(tmp_path) == [NAME]


def test_only_staging_files_of_this_cache_are_removed(tmp_path: Path) -> None:
    """R101."""
    kept = {NAME, f".{NAME}.swp", f".other-{NAME}.0.staging", f"{NAME}.0.staging", ".staging"}
    for name in (*kept, f".{NAME}.0.staging", f".{NAME}.1.staging"):
        (tmp_path / name).touch()
    with opened(tmp_path) as fd:
        remove_leftovers(fd, NAME)
    assert set(os.listdir(tmp_path)) == kept


def test_what_is_written_is_on_the_disk_before_it_takes_the_caches_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R100, R101: file, then name, then folder."""
    order: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    def renamed(*args: Any, **kwargs: Any) -> None:
        order.append("name")
        rename(*args, **kwargs)

    monkeypatch.setattr(cache_file.os, "fsync", synced)
    monkeypatch.setattr(cache_file.os, "rename", renamed)
    with opened(tmp_path) as fd:
        write_file(fd, NAME, b"new")
    assert order == ["file", "name", "folder"]


@pytest.mark.parametrize("step", ["write", "fsync", "rename"])
def test_a_save_that_fails_leaves_the_old_cache_and_no_staging_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """R100."""
    with opened(tmp_path) as fd:
        write_file(fd, NAME, b"old")

        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(cache_file.os, step, full)
            with pytest.raises(OSError, match="No space left"):
                write_file(fd, NAME, b"new")
    assert os.listdir(tmp_path) == [NAME]
    assert (tmp_path / NAME).read_bytes() == b"old"


def test_a_disk_that_takes_a_little_at_a_time_gets_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R100."""
    write = os.write
    monkeypatch.setattr(cache_file.os, "write", lambda fd, data: write(fd, data[:3]))
    with opened(tmp_path) as fd:
        write_new(fd, "new", b"0123456789")
    assert (tmp_path / "new").read_bytes() == b"0123456789"


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """R100: whatever happens on the way."""
    folder = made(tmp_path / "state", 0o700)
    with none_left_open():
        for _ in range(2):
            with open_folder(folder, is_default=False, create=True) as fd:
                assert fd is not None
                write_file(fd, NAME, b"{}")
                read_file(fd, NAME)
            with suppress(FolderRefused), open_folder(folder / NAME, is_default=False, create=True):
                pass
            with open_folder(folder / "gone", is_default=False, create=False) as nothing:
                assert nothing is None
        folder.chmod(0o777)
        refusal(folder)
