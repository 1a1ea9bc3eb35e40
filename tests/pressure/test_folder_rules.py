"""A cache may lie only where nobody but the service can write."""

from __future__ import annotations

from pathlib import PureWindowsPath

import pytest

from swapd.pressure.folder_rules import (
    Folder,
    WindowsFolder,
    cache_folder_problem,
    parent_problem,
    shown,
    windows_problem,
)

SERVICE = 990
STRANGER = 1001


@pytest.mark.parametrize(
    ("uid", "mode"),
    [(0, 0o755), (SERVICE, 0o750), (SERVICE, 0o700), (SERVICE, 0o755), (0, 0o1755), (SERVICE, 0o2755)],
)
def test_a_folder_that_only_the_service_or_root_can_write_is_safe(uid: int, mode: int) -> None:
    """R95."""
    assert cache_folder_problem(Folder("/var/lib/x", uid, mode), SERVICE) is None


@pytest.mark.parametrize("mode", [0o775, 0o777, 0o1777, 0o757, 0o770, 0o720, 0o702, 0o1770])
@pytest.mark.parametrize("uid", [0, SERVICE])
def test_a_folder_that_others_can_write_is_refused(uid: int, mode: int) -> None:
    """R95: the sticky bit is no excuse for the folder itself."""
    assert cache_folder_problem(Folder("/var/lib/x", uid, mode), SERVICE) == (
        f"/var/lib/x has mode {mode:04o}: its group or other accounts may write there"
    )


@pytest.mark.parametrize("problem", [cache_folder_problem, parent_problem])
@pytest.mark.parametrize("mode", [0o755, 0o700, 0o777, 0o1777])
def test_a_folder_of_another_account_is_refused(problem: object, mode: int) -> None:
    """R95, D26: its owner can always change its mode."""
    assert callable(problem)
    assert problem(Folder("/home/x", STRANGER, mode), SERVICE) == (
        "/home/x belongs to uid 1001, not to uid 990 or root"
    )


@pytest.mark.parametrize("uid", [0, SERVICE])
def test_a_parent_that_others_can_write_is_refused_unless_it_is_sticky(uid: int) -> None:
    """D26."""
    for mode in (0o755, 0o711, 0o700, 0o1777, 0o1775, 0o1770):
        assert parent_problem(Folder("/p", uid, mode), SERVICE) is None
    for mode in (0o777, 0o775, 0o757, 0o2775):
        assert parent_problem(Folder("/p", uid, mode), SERVICE) == (
            f"/p has mode {mode:04o}: its group or other accounts may write there"
        )


def test_a_long_path_is_shown_by_its_end() -> None:
    """R97: the sentence must fit into a field of a log line."""
    assert shown("x" * 120) == "x" * 120
    assert shown("/a" + "x" * 119) == "…a" + "x" * 119
    reason = cache_folder_problem(Folder("/a" * 2000, STRANGER, 0o777), SERVICE)
    assert reason is not None
    assert len(reason) < 256


DATA = PureWindowsPath(r"C:\ProgramData")
APP = DATA / "swapd"
TRUSTED = frozenset({"S-1-5-32-544", "S-1-5-18"})
PRIVATE = WindowsFolder(TRUSTED)
USERS = WindowsFolder(TRUSTED | {"S-1-5-32-545"})
JUNCTION = WindowsFolder(TRUSTED, is_reparse_point=True)


@pytest.mark.parametrize(
    ("directory", "folders"),
    [
        (APP, {APP: PRIVATE}),
        (APP, {}),
        (APP, {APP: WindowsFolder(frozenset())}),
        (APP, {DATA: USERS, APP: PRIVATE}),
        (APP / "a" / "b", {APP: PRIVATE, APP / "a": PRIVATE, APP / "a" / "b": PRIVATE}),
        (APP / "a" / "b", {APP: PRIVATE}),
        (PureWindowsPath(r"c:\programdata\SWAPD\a"), {APP: PRIVATE}),
        (APP / "a", {APP: PRIVATE, APP / "b": USERS, APP / "a" / "c": JUNCTION}),
    ],
)
def test_inside_program_data_a_private_folder_is_safe(
    directory: PureWindowsPath, folders: dict[PureWindowsPath, WindowsFolder]
) -> None:
    """R96, D35: what is above, beside or below does not count; what is missing will be made private."""
    assert windows_problem(directory, DATA, folders) is None


@pytest.mark.parametrize(
    "directory",
    [
        DATA,
        PureWindowsPath(r"D:\ProgramData\swapd"),
        PureWindowsPath(r"C:\ProgramData\swapd2"),
        PureWindowsPath(r"C:\Users\x"),
        PureWindowsPath(r"C:\ProgramData\swapd\..\other"),
        PureWindowsPath(r"ProgramData\swapd"),
        PureWindowsPath(r"\\host\ProgramData\swapd"),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_outside_program_data_nothing_is_safe(directory: PureWindowsPath, exists: bool) -> None:
    """R96: whether or not it exists."""
    folders = {directory: PRIVATE} if exists else {}
    assert windows_problem(directory, DATA, folders) == rf"{directory} is not inside C:\ProgramData\swapd"


@pytest.mark.parametrize("at", [APP, APP / "a", APP / "a" / "b"])
def test_a_folder_on_the_way_that_others_may_enter_or_that_leads_elsewhere_is_refused(
    at: PureWindowsPath,
) -> None:
    """R96, D26."""
    folders = {APP: PRIVATE, APP / "a": PRIVATE, APP / "a" / "b": PRIVATE}
    assert windows_problem(APP / "a" / "b", DATA, folders | {at: USERS}) == (
        f"{at} grants access to others than Administrators and LocalSystem"
    )
    assert windows_problem(APP / "a" / "b", DATA, folders | {at: JUNCTION}) == (
        f"{at} is a junction or another reparse point"
    )


def test_the_first_wrong_folder_from_above_is_named() -> None:
    """R96."""
    folders = {APP: USERS, APP / "a": JUNCTION}
    assert windows_problem(APP / "a", DATA, folders) == (
        rf"{APP} grants access to others than Administrators and LocalSystem"
    )


def test_a_missing_folder_hides_nothing_below_it() -> None:
    """R96: it may have been made between two looks."""
    assert windows_problem(APP / "a", DATA, {APP / "a": USERS}) == (
        rf"{APP / 'a'} grants access to others than Administrators and LocalSystem"
    )
