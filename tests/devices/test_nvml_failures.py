"""Drivers that go away, lie about what they are, hang or crash, and what becomes of a reading then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swapd.devices.nvml import REOPEN_AFTER_S
from tests.devices.fake_nvml import LOST, NOT_FOUND, UNKNOWN, VERSION_MISMATCH, FakeCard, FakeNvml, FakeUse
from tests.devices.nvml_backends import OWNER, SAMPLE, Machine, measure

ROOT = Path(__file__).resolve().parents[2]
CARD_A = FakeCard(uuid="GPU-a", pci="00000000:01:00.0")
CARD_B = FakeCard(uuid="GPU-b", pci="00000000:41:00.0")
DEADLINE_S = 20

ONE_POLL = """
import sys, time
import msgspec
from swapd.devices.nvml import NvmlBackend
from swapd.messages.sampler import Sample, SampledDevice, SamplerSettings
settings = SamplerSettings("nvml", "ipc://unused", (SampledDevice("gpu0", "0"),))
backend = NvmlBackend(
    settings, time.monotonic, lender_pids=lambda roots, ports: frozenset(roots), name_matches=lambda *_: False
)
for line in sys.stdin:
    told = backend.measure(Sample(v=1, number=1, lenders=(int(line),)))
    print(msgspec.json.encode(told[0]).decode(), flush=True)
"""


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetPerformanceState",
    ],
)
@pytest.mark.parametrize("code", [LOST, UNKNOWN])
def test_a_lost_cards_handle_is_never_used_again(
    nvml: FakeNvml, machine: Machine, function: str, code: int
) -> None:
    """R21: and rows 16 to 18. The fake aborts when such a handle comes back, as the real library crashes."""
    backend = machine.backend(FakeCard().uuid)
    assert [measure(backend).result for _ in range(2)] == ["first", "ok"]
    nvml.set(fail={function: code})
    for _ in range(3):
        measured = measure(backend)
        assert (measured.result, measured.reading_pct) == ("failed", None)
    assert measured.reason is not None
    assert ("lost" if code == LOST else "unknown error") in measured.reason
    nvml.set(fail={})
    assert [measure(backend).result for _ in range(2)] == ["first", "ok"]


def test_a_lost_card_does_not_spoil_the_others(nvml: FakeNvml, machine: Machine) -> None:
    """Row 31: and 17."""
    nvml.set(devices=[CARD_A, CARD_B])
    backend = machine.backend("GPU-a", "GPU-b")
    backend.measure(SAMPLE)
    nvml.card(fails=LOST)
    for _ in range(3):
        assert [each.result for each in backend.measure(SAMPLE)] == ["failed", "ok"]
    nvml.card(fails=None)
    assert [each.result for each in backend.measure(SAMPLE)] == ["first", "ok"]


def test_nvml_is_opened_anew_now_and_then_while_a_card_is_missing(nvml: FakeNvml, machine: Machine) -> None:
    """Row 21: a card that was plugged in again may be seen only after that."""
    nvml.set(devices=[CARD_A, CARD_B])
    backend = machine.backend("GPU-a", "GPU-b")
    backend.measure(SAMPLE)
    nvml.set(devices=[CARD_A])
    assert [each.result for each in backend.measure(SAMPLE)] == ["ok", "failed"]
    machine.now_s += REOPEN_AFTER_S
    nvml.record()
    assert [each.result for each in backend.measure(SAMPLE)] == ["ok", "failed"]
    assert nvml.calls()[-1] == "nvmlShutdown"
    assert [each.result for each in backend.measure(SAMPLE)] == ["first", "failed"]
    assert [each.result for each in backend.measure(SAMPLE)] == ["ok", "failed"]
    nvml.set(devices=[CARD_A, CARD_B])
    assert [each.result for each in backend.measure(SAMPLE)] == ["ok", "first"]


def test_nvml_is_opened_anew_at_once_when_no_card_could_be_read(nvml: FakeNvml, machine: Machine) -> None:
    """Rows 15 and 18: a sleeping card is no reason to keep what does not work."""
    nvml.set(devices=[CARD_A, CARD_B])
    machine.card("0000:01:00.0", "active")
    machine.card("0000:41:00.0", "active")
    backend = machine.backend("GPU-a", "GPU-b")
    backend.measure(SAMPLE)
    machine.status("0000:41:00.0", "suspended")
    nvml.card(fails=UNKNOWN)
    for _ in range(2):
        nvml.record()
        assert [each.result for each in backend.measure(SAMPLE)] == ["failed", "asleep"]
        assert nvml.calls()[-1] == "nvmlShutdown"
    assert nvml.calls()[0] == "nvmlInitWithFlags"


def test_a_card_that_is_gone_for_a_moment_returns_by_its_uuid(nvml: FakeNvml, machine: Machine) -> None:
    """Row 21: the number of cards is 0 for a moment."""
    backend = machine.backend(FakeCard().uuid)
    measure(backend)
    nvml.set(count=0)
    measured = measure(backend)
    assert (measured.result, measured.reading_pct) == ("failed", None)
    assert measured.reason == "the card is not there"
    nvml.set(count=None)
    assert [measure(backend).result for _ in range(2)] == ["first", "ok"]


def test_an_index_without_a_card_is_a_failed_read(nvml: FakeNvml, machine: Machine) -> None:
    """Row 21."""
    backend = machine.backend("0")
    measure(backend)
    nvml.set(count=0)
    assert measure(backend).reason == "the card is not there"


@pytest.mark.parametrize("code", [9, 12, UNKNOWN])
def test_initialisation_is_tried_again_at_every_poll(nvml: FakeNvml, machine: Machine, code: int) -> None:
    """Row 15: a container lost its devices in mid-life; nothing crashes, and nothing is lent."""
    nvml.set(init=code)
    backend = machine.backend()
    for _ in range(2):
        measured = measure(backend)
        assert (measured.result, measured.reading_pct) == ("failed", None)
        assert measured.reason
    nvml.set(init=0)
    assert [measure(backend).result for _ in range(2)] == ["first", "ok"]


def test_an_updated_driver_has_a_sentence_of_its_own(nvml: FakeNvml, machine: Machine) -> None:
    """Row 24."""
    nvml.set(init=VERSION_MISMATCH)
    assert measure(machine.backend()).reason == "the NVIDIA driver was updated, reboot needed"
    nvml.set(init=0, fail={"nvmlDeviceGetHandleByIndex_v2": VERSION_MISMATCH})
    assert measure(machine.backend()).reason == "the NVIDIA driver was updated, reboot needed"


def test_a_card_whose_list_comes_back_as_not_found_fails(nvml: FakeNvml, machine: Machine) -> None:
    """Row 2: NOT_FOUND means idle where samples are asked for, and nowhere else."""
    nvml.set(fail={"nvmlDeviceGetComputeRunningProcesses_v3": NOT_FOUND})
    assert measure(machine.backend()).result == "failed"


def one_poll(nvml: FakeNvml) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ONE_POLL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=nvml.env(),
        cwd=ROOT,
    )


def test_another_process_finds_the_library_by_its_name(fake_nvml: FakeNvml) -> None:
    """R3: the way of the sampler, with this process as the lender."""
    fake_nvml.card(util=70, uses=[FakeUse(os.getpid(), sm=60), FakeUse(OWNER, sm=4)])
    with one_poll(fake_nvml) as process:
        out, err = process.communicate(f"{os.getpid()}\n{os.getpid()}\n", timeout=DEADLINE_S)
    assert process.returncode == 0, err
    first, second = map(json.loads, out.splitlines())
    assert (first["result"], second["result"], second["reading_pct"]) == ("first", "ok", 10.0)


def test_a_driver_that_hangs_hangs_that_process_only(fake_nvml: FakeNvml) -> None:
    """Row 19: so the sampler is a process of its own, with a deadline; it can be killed in the call."""
    fake_nvml.record()
    fake_nvml.set(hang={"nvmlDeviceGetProcessUtilization": 600.0})
    with one_poll(fake_nvml) as process:
        assert process.stdin is not None
        process.stdin.write("1\n")
        process.stdin.flush()
        while "nvmlDeviceGetProcessUtilization" not in fake_nvml.calls():
            assert process.poll() is None
        process.kill()
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert out == ""
    assert process.returncode == -signal.SIGKILL


def test_a_hang_ends_when_the_control_file_says_so(fake_nvml: FakeNvml) -> None:
    """Row 19: the driver answers again."""
    fake_nvml.record()
    fake_nvml.set(hang={"nvmlInitWithFlags": 600.0})
    with one_poll(fake_nvml) as process:
        assert process.stdin is not None
        process.stdin.write("1\n")
        process.stdin.flush()
        while "nvmlInitWithFlags" not in fake_nvml.calls():
            assert process.poll() is None
        fake_nvml.set(hang={})
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert json.loads(out)["result"] == "first"


def test_a_driver_that_crashes_ends_that_process_only(fake_nvml: FakeNvml) -> None:
    """Row 16."""
    fake_nvml.set(crash=["nvmlDeviceGetUtilizationRates"])
    with one_poll(fake_nvml) as process:
        out, _ = process.communicate("1\n", timeout=DEADLINE_S)
    assert (out, process.returncode) == ("", -signal.SIGABRT)
