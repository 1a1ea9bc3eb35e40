"""Whether a card sleeps, by sysfs alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from swapd.devices.pci_power import PciPower
from tests.devices.nvml_backends import Machine

FIRST = "0000:01:00.0"
SECOND = "0000:41:00.0"


@pytest.fixture
def power(machine: Machine) -> PciPower:
    return PciPower(machine.sysfs, machine.proc)


def informed(machine: Machine, pci: str, uuid: str) -> None:
    folder = machine.proc / "driver/nvidia/gpus" / pci
    folder.mkdir(parents=True)
    (folder / "information").write_text(f"Model: \t\t NVIDIA\nGPU UUID: \t {uuid}\nBus Location: \t {pci}\n")


@pytest.mark.parametrize(
    ("status", "asleep"),
    [
        ("suspended", True),
        ("suspending", True),
        ("active", False),
        ("resuming", False),
        ("unsupported", False),
        ("error", False),
    ],
)
def test_a_card_sleeps_when_the_kernel_says_so(
    machine: Machine, power: PciPower, status: str, asleep: bool
) -> None:
    """Row 23."""
    machine.card(FIRST, status)
    assert power.asleep("0") is asleep
    assert power.asleep("GPU-a") is asleep


def test_a_machine_without_a_card_has_none_that_sleeps(power: PciPower) -> None:
    assert not power.asleep("0")
    assert not power.asleep("GPU-a", "00000000:01:00.0")


def test_indices_follow_the_bus_and_leave_out_what_nvml_does_not_see(
    machine: Machine, power: PciPower, tmp_path: Path
) -> None:
    """Row 23: the audio part of a card, another maker's card, one that is passed on to a virtual machine."""
    audio = machine.card("0000:01:00.1", "active")
    (audio / "class").write_text("0x040300\n")
    amd = machine.card("0000:00:02.0", "active")
    (amd / "vendor").write_text("0x1002\n")
    passed_on = machine.card("0000:02:00.0", "active")
    (tmp_path / "vfio-pci").mkdir()
    (passed_on / "driver").symlink_to(tmp_path / "vfio-pci")
    machine.card(SECOND, "suspended")
    machine.card(FIRST, "active")
    assert not power.asleep("0")
    assert power.asleep("1")
    (passed_on / "driver").unlink()
    assert not power.asleep("1")


def test_a_uuid_is_found_through_the_driver_or_by_what_nvml_told(machine: Machine, power: PciPower) -> None:
    """Row 23."""
    machine.card(FIRST, "active")
    machine.card(SECOND, "suspended")
    assert power.asleep("GPU-b", "00000000:41:00.0")
    assert not power.asleep("GPU-b")
    informed(machine, SECOND, "GPU-b")
    assert power.asleep("gpu-B")
    assert not power.asleep("GPU-a")


def test_a_card_that_may_be_any_sleeps_when_all_do(machine: Machine, power: PciPower) -> None:
    """Row 23: initialising NVML would wake them all."""
    machine.card(FIRST, "suspended")
    machine.card(SECOND, "suspended")
    assert power.asleep("GPU-a")
    machine.status(SECOND, "active")
    assert not power.asleep("GPU-a")


def test_what_nvml_told_of_a_card_that_was_moved_does_not_count(machine: Machine, power: PciPower) -> None:
    machine.card(FIRST, "suspended")
    assert power.asleep("GPU-a", "00000000:99:00.0")
