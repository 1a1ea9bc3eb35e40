"""Who is a lender, by tree and by port; and processes by name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from swapd.devices import processes
from swapd.devices.processes import (
    ProcessTable,
    lender_pids,
    name_matches,
    process_name,
    read_process,
    running_names,
)
from tests.devices.proctree import ProcTree


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "proc")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_root_lends_with_its_whole_tree(tree: ProcTree) -> None:
    """D24: children's children too; a sibling and the parent are none of it."""
    for pid, parent in ((10, 1), (20, 10), (21, 20), (22, 21), (30, 10), (40, 22)):
        tree.process(pid, parent)
    assert lender_pids([20], proc=tree.path) == {20, 21, 22, 40}
    assert lender_pids([20, 30], proc=tree.path) == {20, 21, 22, 30, 40}


def test_a_root_that_is_gone_and_the_ancestor_of_everything_lend_nothing(tree: ProcTree) -> None:
    tree.process(1, 0, "init")
    tree.process(10, 1)
    assert lender_pids([99, 1, 0], proc=tree.path) == frozenset()


def test_names_with_spaces_and_parentheses_do_not_confuse_a_tree(tree: ProcTree) -> None:
    tree.process(10, 1, "a) S 77 (b")
    assert read_process(10, tree.path) == (10, 1, 100, "a) S 77 (b")


@pytest.mark.parametrize("text", ["", "10", "10 (x)", "10 (x) S", "10 (x) S one 2 3", "(\n"])
def test_a_file_that_is_no_stat_is_no_process(tree: ProcTree, text: str) -> None:
    tree.process(10)
    (tree.path / "10" / "stat").write_text(text)
    assert read_process(10, tree.path) is None
    assert lender_pids([10], proc=tree.path) == frozenset()


def test_whoever_listens_on_a_borrower_port_lends_with_its_tree(tree: ProcTree) -> None:
    """D24: IPv4 and IPv6; a socket that does not listen, and another port, are nobody's."""
    for pid, parent in ((10, 1), (11, 10), (12, 1), (13, 1), (14, 1)):
        tree.process(pid, parent)
    for pid, inode in ((10, 501), (12, 502), (13, 503), (14, 504)):
        tree.socket(pid, 3, inode)
    tree.listen((8000, 501), (8001, 503))
    tree.listen((8002, 502), table="tcp6")
    assert lender_pids([], [8000], tree.path) == {10, 11}
    assert lender_pids([], [8000, 8002], tree.path) == {10, 11, 12}
    tree.listen((8000, 504), state="01")
    assert lender_pids([], [8000], tree.path) == frozenset()


def test_all_that_hold_a_listening_socket_lend_except_who_starts_services(tree: ProcTree) -> None:
    """A user's systemd holds the sockets of its units, and the owner's whole desktop is its child."""
    tree.process(1, 0, "init")
    tree.process(900, 1, "systemd")
    tree.process(901, 900, "owners-game")
    tree.process(950, 900, "server")
    tree.process(951, 950, "server")
    for pid in (1, 900, 950, 951):
        tree.socket(pid, 5, 77)
    tree.listen((8000, 77))
    assert lender_pids([], [8000], tree.path) == {950, 951}


def test_descriptors_that_cannot_be_read_are_just_not_found(tree: ProcTree) -> None:
    tree.process(10)
    os.rmdir(tree.path / "10" / "fd")
    tree.listen((8000, 77))
    assert lender_pids([], [8000], tree.path) == frozenset()
    (tree.path / "net" / "tcp").unlink()
    assert lender_pids([], [8000], tree.path) == frozenset()


def test_a_listener_is_looked_for_again_when_it_is_replaced(tree: ProcTree) -> None:
    clock = Clock()
    table = ProcessTable(tree.path, clock)
    tree.process(10)
    tree.socket(10, 3, 501)
    tree.listen((8000, 501))
    assert table.lenders_now([], [8000]) == {10}
    tree.end(10)
    tree.process(20)
    tree.socket(20, 4, 502)
    tree.listen((8000, 502))
    assert table.lenders_now([], [8000]) == {20}
    assert table.lenders_now([], []) == frozenset()


def test_a_port_that_nobody_holds_is_not_looked_for_at_every_poll(tree: ProcTree) -> None:
    clock = Clock()
    table = ProcessTable(tree.path, clock)
    assert table.lenders_now([], [8000]) == frozenset()
    tree.process(10)
    tree.socket(10, 3, 501)
    tree.listen((8000, 501))
    assert table.lenders_now([], [8000]) == frozenset()
    clock.now_s += 5.0
    assert table.lenders_now([], [8000]) == {10}


def test_a_child_whose_parent_ended_stays_a_lender(tree: ProcTree) -> None:
    """D24: it is init's child then, and still the lender's work; also when the root itself ended."""
    table = ProcessTable(tree.path, Clock())
    for pid, parent in ((10, 1), (11, 10), (12, 11)):
        tree.process(pid, parent)
    assert table.lenders_now([10]) == {10, 11, 12}
    tree.end(11)
    tree.process(12, 1)
    assert table.lenders_now([10]) == {10, 12}
    tree.end(10)
    assert table.lenders_now([]) == {12}
    tree.process(13, 12)
    assert table.lenders_now([]) == {12, 13}


def test_the_tree_of_a_root_that_is_no_lender_any_more_is_the_owners(tree: ProcTree) -> None:
    table = ProcessTable(tree.path, Clock())
    tree.process(10)
    tree.process(11, 10)
    assert table.lenders_now([10]) == {10, 11}
    assert table.lenders_now([]) == frozenset()


def test_a_pid_that_came_back_is_another_process(tree: ProcTree) -> None:
    clock = Clock()
    table = ProcessTable(tree.path, clock)
    tree.process(10)
    tree.process(11, 10)
    assert table.lenders_now([10]) == {10, 11}
    tree.process(11, 1, start=900)
    clock.now_s += processes.FULL_SCAN_S
    assert table.lenders_now([10]) == {10}


def test_a_parent_that_is_younger_than_its_child_is_another_process(tree: ProcTree) -> None:
    """An owner's process whose parent ended names a pid that may be a lender's by now."""
    tree.process(10, start=500)
    tree.process(11, 10, start=499)
    tree.process(12, 10, start=500)
    assert lender_pids([10], proc=tree.path) == {10, 12}


def test_only_new_processes_are_read_between_full_scans(
    tree: ProcTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one twice, for `exec` follows `fork` and changes the name."""
    reads: list[int] = []

    def counted(pid: int, proc: Path) -> processes.Process | None:
        reads.append(pid)
        return read_process(pid, proc)

    monkeypatch.setattr(processes, "read_process", counted)
    clock = Clock()
    table = ProcessTable(tree.path, clock)
    tree.process(10)
    table.refresh()
    table.refresh()
    assert reads == [10, 10]
    tree.process(20, name="sh")
    table.refresh()
    tree.process(20, name="game")
    table.refresh()
    table.refresh()
    assert reads == [10, 10, 20, 20]
    assert table.processes[20].name == "game"
    clock.now_s += processes.FULL_SCAN_S
    table.refresh()
    assert sorted(reads[4:]) == [10, 20]


@pytest.mark.parametrize(
    ("names", "matches"),
    [
        (["OBS"], True),
        (["obs"], True),
        (["Obs-Studio"], True),
        (["ob"], False),
        (["/usr/bin/obs-studio"], False),
        ([""], False),
        ([], False),
    ],
)
def test_a_name_is_comm_or_the_programs_basename_in_any_case(
    tree: ProcTree, names: list[str], matches: bool
) -> None:
    """D23, D37."""
    tree.process(10, name="obs", exe="/usr/bin/obs-studio (deleted)")
    assert name_matches(10, names, tree.path) is matches
    assert running_names(names, tree.path) == (tuple(names) if matches else ())


def test_a_name_that_the_kernel_cut_off_is_found_by_its_beginning(tree: ProcTree) -> None:
    """D23: `comm` holds 15 bytes, and where `exe` is not to be read there is nothing else."""
    tree.process(10, name="SomeLongGameNam")
    tree.process(11, name="SomeLongGame")
    assert name_matches(10, ["somelonggamename.exe"], tree.path)
    assert not name_matches(10, ["somelonggamena"], tree.path)
    assert not name_matches(11, ["somelonggamename.exe"], tree.path)
    assert process_name(10, tree.path) == "SomeLongGameNam"
    tree.process(10, name="SomeLongGameNam", exe="/opt/SomeLongGameName.exe")
    assert process_name(10, tree.path) == "SomeLongGameName.exe"
    tree.process(12, name="exactly-fifteen", exe="/usr/bin/python3.11")
    assert process_name(12, tree.path) == "exactly-fifteen"


def test_a_process_that_is_gone_has_no_name(tree: ProcTree) -> None:
    assert process_name(10, tree.path) is None
    assert not name_matches(10, ["obs"], tree.path)


def test_a_proc_that_is_not_there_has_no_processes(tmp_path: Path) -> None:
    assert lender_pids([1, 2], [80], tmp_path / "none") == frozenset()


CHILD = """
import socket, subprocess, sys
listener = socket.create_server(("127.0.0.1", 0))
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(listener.getsockname()[1], child.pid, flush=True)
input()
child.communicate()
"""


def test_real_processes_are_found_by_tree_and_by_port() -> None:
    """D24, against the kernel."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port, child = map(int, process.stdout.readline().split())
        assert lender_pids([process.pid]) == {process.pid, child}
        assert lender_pids([], [port]) == {process.pid, child}
        assert name_matches(child, [os.path.basename(os.path.realpath(sys.executable)).upper()])
        process.communicate("\n")
    with socket.create_server(("127.0.0.1", 0)) as ours:
        assert os.getpid() in lender_pids([], [ours.getsockname()[1]])
