"""A worker on lent cores takes what is left, so that its owner's demand shows."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swapd.config import Config, CredentialConfig, DeviceConfig, ModelConfig, WorkerConfig
from swapd.worker import scheduling
from swapd.worker.spawn import settings_for
from tests.worker.client import worker

SPINNER = """
import os, sys, time
from swapd.worker.scheduling import yield_to_owner
os.sched_setaffinity(0, {int(sys.argv[1])})
if sys.argv[2] == "lender":
    yield_to_owner()
print(flush=True)
while True:
    pass
"""
SPIN_S = 1.5


def spinner(core: int, who: str) -> subprocess.Popen[bytes]:
    """A process that takes all it gets of a core, in a session of its own, as a worker is."""
    command = [sys.executable, "-c", SPINNER, str(core), who]
    return subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)


def ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    return int(fields[11]) + int(fields[12])


def test_an_owners_load_gets_the_core_of_a_busy_worker() -> None:
    """Two that spin on one core: without the idle class and the group's weight each would get half."""
    core = min(os.sched_getaffinity(0))
    with spinner(core, "lender") as lender, spinner(core, "owner") as owner:
        try:
            for each in (lender, owner):
                assert each.stdout is not None
                assert each.stdout.readline() == b"\n"
            before = ticks(lender.pid), ticks(owner.pid)
            # Waits for the scheduler, not for an event: there is none.
            deadline = time.monotonic() + SPIN_S
            while time.monotonic() < deadline or ticks(owner.pid) - before[1] < 20:
                time.sleep(0.1)
            lent, owned = ticks(lender.pid) - before[0], ticks(owner.pid) - before[1]
        finally:
            lender.kill()
            owner.kill()
    assert owned > 4 * lent


def config(devices: tuple[DeviceConfig, ...]) -> Config:
    return Config(
        database_path="swapd.db",
        socket_dir="s",
        workers=(),
        models=(ModelConfig("m", "."),),
        credentials=(CredentialConfig("n", token="t"),),
        devices=devices,
    )


@pytest.mark.parametrize(
    ("devices", "idle"),
    [
        ((), False),
        ((DeviceConfig("core0", "cpu", cores=(0,)),), True),
        ((DeviceConfig("core1", "cpu", cores=(0,)),), False),
        ((DeviceConfig("core0", "nvml"),), False),
    ],
)
def test_only_a_worker_on_a_lent_cpu_device_steps_back(devices: tuple[DeviceConfig, ...], idle: bool) -> None:
    """Without `[[devices]]` the cores are the service's, and a GPU's worker feeds the GPU."""
    given = WorkerConfig("a", engine="sim", device="core0")
    assert settings_for(config(devices), given).idle_class is idle


@pytest.mark.parametrize(("idle", "policy"), [(False, os.SCHED_OTHER), (True, os.SCHED_IDLE)])
def test_all_threads_of_a_worker_have_the_class(folder: Path, idle: bool, policy: int) -> None:
    with worker(folder, idle_class=idle) as started:
        pid = started.ready.pid
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        assert len(threads) > 1
        assert {os.sched_getscheduler(thread) for thread in threads} == {policy}


def test_the_weight_of_a_session_that_is_not_ours_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker started from its owner's terminal must not slow down what else runs there."""
    autogroup = tmp_path / "autogroup"
    autogroup.write_bytes(b"")
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None)
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid() + 1)
    scheduling.yield_to_owner(autogroup)
    assert autogroup.read_bytes() == b""
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    scheduling.yield_to_owner(autogroup)
    assert autogroup.read_bytes() == b"19"


def test_a_kernel_that_is_asked_too_often_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    autogroup = tmp_path / "autogroup"
    autogroup.write_bytes(b"")
    answers = [errno.EAGAIN, errno.EAGAIN, 0]
    written: list[bytes] = []

    def write(_: int, data: bytes) -> int:
        if code := answers.pop(0):
            raise OSError(code, "")
        written.append(data)
        return len(data)

    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None)
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(scheduling, "RETRY_S", 0.0)
    scheduling.yield_to_owner(autogroup)
    assert (answers, written) == ([], [b"19"])


def test_what_the_kernel_does_not_offer_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "")

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    scheduling.yield_to_owner(tmp_path / "autogroup")
