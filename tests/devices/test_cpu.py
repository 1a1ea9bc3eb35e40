"""A cpu device measured: over a made `/proc`, and once over the real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swapd.devices import cpu_times
from swapd.devices.cpu import CpuBackend
from swapd.devices.cpu_times import ProcessTimes, read_cores
from swapd.messages.sampler import Measurement, Sample, SampledDevice, SamplerSettings
from tests.descriptors import collected, open_files
from tests.devices.proctree import ProcTree

TICKS_PER_S = 100


class World:
    """A tree of files, a clock, and a backend over both. Core 0 is device `a`, core 1 is `b`."""

    def __init__(self, tmp_path: Path) -> None:
        self.proc = ProcTree(tmp_path / "proc")
        self.machine = tmp_path / "machine-id"
        self.machine.write_text("0123\n")
        self.now_s = 500.0
        self.idle(1000, 1000)
        self.number = 0

    def backend(self, ignore: tuple[str, ...] = (), always: tuple[str, ...] = ()) -> CpuBackend:
        devices = (SampledDevice("a", cores=(0,)), SampledDevice("b", cores=(1,)))
        return CpuBackend(
            SamplerSettings("cpu", "ipc:///x", devices, ignore, always),
            proc=self.proc.path,
            machine_id=self.machine,
            clock=lambda: self.now_s,
            ticks_per_s=TICKS_PER_S,
        )

    def idle(self, *idle: int, user: tuple[int, ...] = (0, 0), steal: int = 0) -> None:
        self.proc.cores(*((busy, 0, 0, rest, 0, 0, 0, steal) for busy, rest in zip(user, idle, strict=True)))

    def ask(self, backend: CpuBackend, *lenders: int, ports: tuple[int, ...] = ()) -> list[Measurement]:
        self.number += 1
        return list(backend.measure(Sample(1, self.number, lenders, ports)))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_first_measurement_tells_nothing_and_nothing_is_wrong(world: World) -> None:
    (a, b) = world.ask(world.backend())
    assert (a.device, a.result, a.reading_pct, a.reason, a.at_s) == ("a", "first", None, None, 500.0)
    assert b.result == "first"


def test_a_reading_is_what_the_owner_took_since_the_last(world: World) -> None:
    """R3: the worker's tree is subtracted on the core where it ran."""
    backend = world.backend()
    world.proc.process(50)
    world.proc.process(60, 50, own=1000)
    world.ask(backend, 50)
    world.now_s += 1
    world.idle(1002, 1070, user=(98, 30))
    world.proc.process(60, 50, own=1095)
    a, b = world.ask(backend, 50)
    assert (a.result, a.reading_pct, a.device_pct, a.lender_pct, a.at_s) == ("ok", 3.0, 98.0, 95.0, 501.0)
    assert (b.result, b.reading_pct, b.lender_pct) == ("ok", 30.0, 0.0)


def test_threads_on_two_devices_count_for_each(world: World) -> None:
    backend = world.backend()
    world.proc.process(60, own=100, threads=2)
    world.proc.thread(60, 60, own=50, core=0)
    world.proc.thread(60, 61, own=50, core=1)
    world.ask(backend, 60)
    world.now_s += 1
    world.idle(1050, 1080, user=(50, 20))
    world.proc.process(60, own=160, threads=2)
    world.proc.thread(60, 60, own=90, core=0)
    world.proc.thread(60, 61, own=70, core=1)
    a, b = world.ask(backend, 60)
    assert (a.reading_pct, b.reading_pct) == (10.0, 0.0)


def test_who_listens_on_a_borrower_port_is_subtracted(world: World) -> None:
    """D24."""
    backend = world.backend()
    world.proc.process(60, own=1000)
    world.proc.socket(60, 3, 501)
    world.proc.listen((8000, 501))
    world.ask(backend, ports=(8000,))
    world.now_s += 1
    world.idle(1010, 1100, user=(90, 0))
    world.proc.process(60, own=1080)
    assert world.ask(backend, ports=(8000,))[0].reading_pct == 10.0


def test_a_process_on_the_ignore_list_is_subtracted_and_its_children_are_not(world: World) -> None:
    """R3, D23."""
    backend = world.backend(ignore=("OBS",))
    world.proc.process(70, name="obs", own=500)
    world.proc.process(71, 70, name="game", own=500)
    world.ask(backend)
    world.now_s += 1
    world.idle(1000, 1100, user=(100, 0))
    world.proc.process(70, name="obs", own=540)
    world.proc.process(71, 70, name="game", own=560)
    (a, _) = world.ask(backend)
    assert (a.reading_pct, a.ignored_pct) == (60.0, 40.0)


def test_a_lender_on_the_ignore_list_is_subtracted_once(world: World) -> None:
    backend = world.backend(ignore=("python",))
    world.proc.process(70, name="python", own=500)
    world.ask(backend, 70)
    world.now_s += 1
    world.idle(1000, 1100, user=(100, 0))
    world.proc.process(70, name="python", own=540)
    (a, _) = world.ask(backend, 70)
    assert (a.reading_pct, a.lender_pct, a.ignored_pct) == (60.0, 40.0, 0.0)


def test_names_that_alone_mean_need_are_told_with_every_measurement(world: World) -> None:
    """D37: a cpu device cannot tell where a process runs, so running at all counts."""
    backend = world.backend(always=("game.exe", "render"))
    assert [each.always_seen for each in world.ask(backend)] == [(), ()]
    world.proc.process(70, name="Game.exe")
    world.now_s += 1
    assert [each.always_seen for each in world.ask(backend)] == [("game.exe",), ("game.exe",)]


def test_asked_too_early_it_says_so_and_the_next_reading_covers_both(world: World) -> None:
    """Ticks are 10 ms: a share of a few of them is none. R22."""
    backend = world.backend()
    world.ask(backend)
    world.now_s += 0.19
    world.idle(1000, 1000, user=(19, 0))
    early = world.ask(backend)
    assert [(each.result, each.reading_pct) for each in early] == [("invalid", None)] * 2
    world.now_s += 0.81
    world.idle(1060, 1100, user=(40, 0))
    assert world.ask(backend)[0].reading_pct == 40.0


def test_a_lenders_end_is_not_its_owners_demand(world: World) -> None:
    """With a parent among the lenders it is known; without one the reading is not trusted, on that core."""
    backend = world.backend()
    world.proc.process(50)
    world.proc.process(60, 50, own=1000)
    world.ask(backend, 50)
    world.now_s += 1
    world.idle(1000, 1000, user=(100, 0))
    world.proc.end(60)
    world.proc.process(50, children=1098)
    assert world.ask(backend, 50)[0].reading_pct == 2.0
    world.proc.process(80, own=0, start=50_100)
    world.now_s += 1
    world.idle(1000, 1000, user=(200, 0))
    world.ask(backend, 50, 80)
    world.proc.process(80, own=90, start=50_100)
    world.now_s += 1
    world.idle(1000, 1100, user=(300, 0))
    world.ask(backend, 50, 80)
    world.proc.end(80)
    world.now_s += 1
    world.idle(1000, 1200, user=(400, 0))
    a, b = world.ask(backend, 50, 80)
    assert (a.result, a.reading_pct, a.reason) == (
        "invalid",
        None,
        "a lender's process ended and its last CPU time is not known",
    )
    assert (b.result, b.reading_pct) == ("ok", 0.0)
    world.now_s += 1
    world.idle(1000, 1300, user=(500, 0))
    assert world.ask(backend, 50)[0].reading_pct == 100.0


def test_a_worker_that_is_known_only_now_is_not_its_owners_demand(world: World) -> None:
    """A service that starts anew finds its workers one by one."""
    backend = world.backend()
    world.proc.process(60, own=1000)
    world.ask(backend)
    world.now_s += 1
    world.idle(1000, 1100, user=(100, 0))
    world.proc.process(60, own=1100)
    a, b = world.ask(backend, 60)
    assert (a.result, a.reason) == ("invalid", "a lender's process is known only now")
    assert b.result == "ok"
    world.now_s += 1
    world.idle(1000, 1200, user=(200, 0))
    world.proc.process(60, own=1200)
    assert world.ask(backend, 60)[0].reading_pct == 0.0


def test_what_the_hypervisor_took_is_neither_work_nor_capacity(world: World) -> None:
    backend = world.backend()
    world.ask(backend)
    world.now_s += 1
    world.idle(1000, 1100, user=(40, 0), steal=60)
    assert world.ask(backend)[0].reading_pct == 100.0
    world.now_s += 1
    world.idle(1000, 1200, user=(45, 0), steal=155)
    (a, _) = world.ask(backend)
    assert (a.result, a.reason) == ("invalid", "the hypervisor left its CPU cores no time")


def test_guest_time_is_not_counted_twice(world: World) -> None:
    """The kernel has it in user already."""
    backend = world.backend()
    world.ask(backend)
    world.now_s += 1
    world.proc.cores((50, 0, 0, 1050, 0, 0, 0, 0, 50, 0), (0, 0, 0, 1100))
    assert world.ask(backend)[0].reading_pct == 50.0


def test_a_core_that_is_offline_fails_and_comes_back(world: World) -> None:
    backend = world.backend()
    world.ask(backend)
    world.now_s += 1
    world.proc.cores((50, 0, 0, 1050))
    a, b = world.ask(backend)
    assert (a.result, b.result, b.reason) == ("ok", "failed", "none of its CPU cores is online")
    world.now_s += 1
    world.idle(1100, 1000, user=(50, 0))
    assert world.ask(backend)[1].result == "failed"
    world.now_s += 1
    world.idle(1200, 1090, user=(50, 10))
    assert world.ask(backend)[1].reading_pct == 10.0


def test_statistics_that_cannot_be_read_fail_and_the_next_is_the_first_again(world: World) -> None:
    backend = world.backend()
    world.ask(backend)
    (world.proc.path / "stat").unlink()
    world.now_s += 1
    assert {each.result for each in world.ask(backend)} == {"failed"}
    world.now_s += 1
    world.idle(1000, 1000)
    assert {each.result for each in world.ask(backend)} == {"first"}


def test_lines_that_are_no_cores_are_passed_over(world: World) -> None:
    path = world.proc.path / "stat"
    path.write_text("cpu 1 2\ncpu0 1 2 3 4 5 6 7 8\ncpux 1\n\ncpu1 1 2\ncpu2 a b c d e f g h\n")
    assert read_cores(world.proc.path) == {0: (1, 2, 3, 4, 5, 6, 7)}


def test_many_cores_are_read_to_the_last(world: World) -> None:
    world.proc.cores(*((7, 0, 0, 9_000_000_000 + n) for n in range(1024)))
    cores = read_cores(world.proc.path)
    assert len(cores) == 1024
    assert cores[1023].idle == 9_000_001_023


@pytest.mark.parametrize("limit", [512, 1])
def test_threads_of_a_process_that_did_nothing_are_not_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(cpu_times, "MAX_OPEN", limit)
    before = collected()
    times = ProcessTimes(world.proc.path)
    world.proc.process(60, own=100, threads=2)
    world.proc.thread(60, 60, own=50, core=0)
    world.proc.thread(60, 61, own=50, core=1)
    first = times.read([60], {})
    assert set(first[60].threads) == {60, 61}
    world.proc.thread(60, 61, own=60, core=1)
    assert times.read([60], first) == first
    world.proc.process(60, own=110, threads=2)
    again = times.read([60], first)
    assert again[60].threads[61].ticks == 60
    world.proc.process(60, own=120, threads=1)
    world.proc.end_thread(60, 61)
    assert set(times.read([60, 61], again)) == {60}
    assert len(open_files() - before) <= limit
    times.close()
    assert not open_files() - before


def test_files_of_processes_that_ended_are_closed() -> None:
    """A file of the real `/proc` that is kept open says that its process is gone."""
    before = collected()
    times = ProcessTimes(Path("/proc"))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        during = open_files()
        assert set(times.read([process.pid], {})) == {process.pid}
        assert len(open_files() - during) == 1
        process.communicate()
    assert times.read([process.pid], {}) == {}
    assert not open_files() - before


def test_learning_is_kept_under_the_cores_and_the_machine(world: World) -> None:
    """R83: the same after a restart, another elsewhere; it does not tell the machine's id."""
    a, b = world.ask(world.backend())
    again = world.ask(world.backend())
    assert [each.uuid for each in again] == [a.uuid, b.uuid]
    world.machine.write_text("4567\n")
    elsewhere = world.ask(world.backend())
    assert a.uuid is not None
    assert a.uuid.startswith("CPU-")
    assert "0123" not in a.uuid
    assert len({a.uuid, b.uuid, elsewhere[0].uuid}) == 3


def outsider() -> int:
    """Start a process that spins on our first core and is nobody's child; gives its pid."""
    core = min(os.sched_getaffinity(0))
    program = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    between = (
        "import subprocess, sys; "
        f"print(subprocess.Popen([sys.executable, '-c', {program!r}],"
        " stdout=subprocess.DEVNULL, start_new_session=True).pid)"
    )
    return int(subprocess.run([sys.executable, "-c", between], stdout=subprocess.PIPE, check=True).stdout)


def test_a_real_load_is_the_owners_until_it_is_a_lenders() -> None:
    """R3, against the kernel: one spinning process, told by the roots alone."""
    core = min(os.sched_getaffinity(0))
    settings = SamplerSettings("cpu", "ipc:///x", (SampledDevice("a", cores=(core,)),))
    backend = CpuBackend(settings)
    pid = outsider()

    def measured_for_a_second(*lenders: int) -> Measurement:
        time.sleep(1.0)  # the length of what is measured
        return backend.measure(Sample(1, 1, lenders))[0]

    try:
        backend.measure(Sample(1, 1, ()))
        theirs = measured_for_a_second()
        met = measured_for_a_second(pid)
        ours = measured_for_a_second(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
    assert met.reason == "a lender's process is known only now"
    spun = ours.lender_pct
    assert (theirs.result, ours.result) == ("ok", "ok")
    assert theirs.reading_pct is not None
    assert ours.reading_pct is not None
    assert spun is not None
    assert ours.device_pct is not None
    # Others may run on that core: what it got is known, and that is what moves from one side to the other.
    assert theirs.reading_pct >= 20
    assert spun >= 5
    assert ours.reading_pct <= ours.device_pct - spun + 1
