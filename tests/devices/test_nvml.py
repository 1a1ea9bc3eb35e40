"""The NVML backend over the real bindings, against a library that answers as NVML does.

Row numbers are those of the field notes' table of real failures (`docs/gpu.md` has what concerns owners).
"""

from __future__ import annotations

import msgspec
import pytest

from swapd.devices.nvml import ASLEEP
from swapd.devices.nvml_rules import MIG, NAMESPACE, NONSENSE, SCRAMBLED, WENT_BACK, WSL
from tests.devices.fake_nvml import (
    GIB,
    NO_PERMISSION,
    NOT_SUPPORTED,
    FakeCard,
    FakeNvml,
    FakeProcess,
    FakeUse,
)
from tests.devices.nvml_backends import LENDER, OWNER, SAMPLE, T0_US, Machine, measure

CARD_A = FakeCard(uuid="GPU-a", pci="00000000:01:00.0", product="NVIDIA Fake A")
CARD_B = FakeCard(uuid="GPU-b", pci="00000000:41:00.0", product="NVIDIA Fake B")


def test_the_owners_share_is_read_through_the_bindings(nvml: FakeNvml, machine: Machine) -> None:
    """R3: with everything that a measurement tells beside it."""
    backend = machine.backend()
    nvml.card(
        util=97,
        encoder=1,
        decoder=3,
        uses=[FakeUse(LENDER, sm=95), FakeUse(OWNER, sm=2, encoder=1, decoder=3)],
        processes=[
            FakeProcess(LENDER, 8 * GIB),
            FakeProcess(OWNER, GIB, "graphics"),
            FakeProcess(77, GIB, "mps"),
        ],
        used=10 * GIB,
    )
    assert measure(backend).result == "first"
    measured = measure(backend)
    assert (measured.result, measured.reading_pct, measured.lender_pct) == ("ok", 3.0, 95.0)
    assert (measured.encoder_pct, measured.decoder_pct) == (1.0, 3.0)
    assert (measured.uuid, measured.pci) == (FakeCard().uuid, "00000000:01:00.0")
    assert measured.product == "NVIDIA Fake 4090"
    assert (measured.memory_used_bytes, measured.memory_free_bytes) == (10 * GIB, 14 * GIB)
    assert (measured.memory_total_bytes, measured.lender_memory_bytes) == (24 * GIB, 8 * GIB)
    assert measured.others_hold_memory
    assert (measured.sm_clock_mhz, measured.power_state, measured.at_s) == (1500, "P0", machine.now_s)
    msgspec.json.encode(measured)


@pytest.mark.parametrize("sizing", ["ring", "empty", "true"])
def test_an_idle_card_reads_0(nvml: FakeNvml, machine: Machine, sizing: str) -> None:
    """Rows 2, 3 and 8: NOT_FOUND, a ring that has always room for 100, and success without entries."""
    nvml.set(sizing=sizing)
    backend = machine.backend()
    assert measure(backend).result == "first"
    measured = measure(backend)
    assert (measured.result, measured.reading_pct) == ("ok", 0.0)


def test_the_time_to_go_on_from_is_the_drivers_and_carried_forward(nvml: FakeNvml, machine: Machine) -> None:
    """Rows 5, 6 and 8."""
    backend = machine.backend()
    nvml.card(uses=[FakeUse(OWNER, sm=50, at_us=T0_US), FakeUse(LENDER, sm=5, at_us=T0_US + 5)])
    assert measure(backend).result == "first"
    assert measure(backend).reading_pct == 0.0
    nvml.card(uses=[FakeUse(OWNER, sm=50, at_us=T0_US), FakeUse(OWNER, sm=20, at_us=T0_US + 1_000_000)])
    assert measure(backend).reading_pct == 20.0
    assert measure(backend).reading_pct == 0.0


def test_a_driver_that_tells_old_samples_again_is_not_believed(nvml: FakeNvml, machine: Machine) -> None:
    """Rows 1 and 6: two zombies' samples come back at every call."""
    nvml.set(unfiltered=True)
    zombies = [FakeUse(900, sm=4_000_000_000, at_us=T0_US - 9), FakeUse(901, sm=80, at_us=T0_US - 8)]
    nvml.card(uses=[*zombies, FakeUse(OWNER, sm=1, at_us=T0_US)])
    backend = machine.backend()
    measure(backend)
    nvml.card(uses=[*zombies, FakeUse(OWNER, sm=7, at_us=T0_US + 1)])
    assert measure(backend).reading_pct == 7.0


def test_nonsense_about_a_lender_is_invalid(nvml: FakeNvml, machine: Machine) -> None:
    """R22: and row 1."""
    nvml.card(uses=[FakeUse(LENDER, sm=4_000_000_000), FakeUse(OWNER, sm=7)])
    backend = machine.backend()
    measured = measure(backend)
    assert (measured.result, measured.reading_pct, measured.reason) == ("invalid", None, NONSENSE)


def test_a_clock_that_was_set_back_costs_one_reading(nvml: FakeNvml, machine: Machine) -> None:
    """Row 8: otherwise the lenders' work would be the owner's until the clock has caught up."""
    nvml.card(util=90, uses=[FakeUse(LENDER, sm=90, at_us=T0_US)])
    backend = machine.backend()
    measure(backend)
    hour_ago_us = T0_US - 3_600_000_000
    nvml.card(uses=[FakeUse(LENDER, sm=90, at_us=hour_ago_us)])
    measured = measure(backend)
    assert (measured.result, measured.reading_pct, measured.reason) == ("first", None, WENT_BACK)
    nvml.card(uses=[FakeUse(LENDER, sm=90, at_us=hour_ago_us + 5_000_000)])
    assert measure(backend).reading_pct == 0.0


def test_a_busy_card_without_new_samples_is_the_owners(nvml: FakeNvml, machine: Machine) -> None:
    """Row 9: nothing says that a lender did it."""
    nvml.card(util=40, uses=[FakeUse(LENDER, sm=40, at_us=T0_US)])
    backend = machine.backend()
    measure(backend)
    assert measure(backend).reading_pct == 40.0


def test_more_samples_than_there_was_room_for(nvml: FakeNvml, machine: Machine) -> None:
    """Row 3: the ring's size is told, and there may be thousands of samples."""
    uses = [FakeUse(10_000 + each, sm=0) for each in range(3000)]
    nvml.card(uses=[*uses, FakeUse(OWNER, sm=9)])
    backend = machine.backend()
    measure(backend)
    assert measure(backend).reading_pct == 9.0


def test_scrambled_pids_are_invalid(nvml: FakeNvml, machine: Machine) -> None:
    """R22: and row 12."""
    nvml.card(processes=[FakeProcess(0xFFFFFFFF)])
    assert measure(machine.backend()).reason == SCRAMBLED


def test_a_lender_that_has_just_ended_is_no_owner(nvml: FakeNvml, machine: Machine) -> None:
    """D24: its last sample outlives it by a poll."""
    nvml.card(util=80, uses=[FakeUse(LENDER, sm=80)])
    backend = machine.backend()
    measure(backend)
    machine.lenders.clear()
    machine.ends(LENDER)
    assert measure(backend).reading_pct == 0.0
    assert measure(backend).reading_pct == 80.0


def test_a_process_that_is_no_lender_any_more_is_the_owners(nvml: FakeNvml, machine: Machine) -> None:
    """D24."""
    nvml.card(util=80, uses=[FakeUse(LENDER, sm=80)])
    backend = machine.backend()
    measure(backend)
    machine.lenders.clear()
    assert measure(backend).reading_pct == 80.0


def test_names_are_looked_up_for_what_is_on_the_card(nvml: FakeNvml, machine: Machine) -> None:
    """D23: and D37, in any case of letters."""
    machine.names = {OWNER: "Blender", 60: "obs", LENDER: "obs", 61: "maya"}
    nvml.card(util=60, uses=[FakeUse(60, sm=50)], processes=[FakeProcess(OWNER)])
    backend = machine.backend(ignore=("OBS",), always=("blender", "maya"))
    measure(backend)
    measured = measure(backend)
    assert (measured.reading_pct, measured.ignored_pct) == (10.0, 50.0)
    assert measured.always_seen == ("blender",)


def test_cards_are_found_by_uuid_wherever_they_are(nvml: FakeNvml, machine: Machine) -> None:
    nvml.set(devices=[CARD_A, CARD_B])
    backend = machine.backend("GPU-b", "gpu-A")
    assert [each.pci for each in backend.measure(SAMPLE)] == [CARD_B.pci, CARD_A.pci]
    nvml.set(devices=[CARD_B, CARD_A])
    told = backend.measure(SAMPLE)
    assert [(each.device, each.pci) for each in told] == [("gpu0", CARD_B.pci), ("gpu1", CARD_A.pci)]


def test_encoder_and_decoder_of_a_process_are_not_mixed_up(nvml: FakeNvml, machine: Machine) -> None:
    """R3."""
    nvml.card(encoder=None, decoder=None, uses=[FakeUse(OWNER, encoder=11, decoder=7)])
    backend = machine.backend()
    measure(backend)
    measured = measure(backend)
    assert (measured.reading_pct, measured.encoder_pct, measured.decoder_pct) == (11.0, 11.0, 7.0)


def test_cards_are_found_by_index(nvml: FakeNvml, machine: Machine) -> None:
    nvml.set(devices=[CARD_A, CARD_B])
    backend = machine.backend("1", "0", "2")
    told = backend.measure(SAMPLE)
    assert [each.uuid for each in told] == ["GPU-b", "GPU-a", None]
    assert [each.result for each in told] == ["first", "first", "failed"]


def test_a_card_in_slices_is_unsupported_never_0(nvml: FakeNvml, machine: Machine) -> None:
    """R130: and row 25."""
    nvml.card(mig=1, util=None)
    backend = machine.backend()
    for _ in range(2):
        measured = measure(backend)
        assert (measured.result, measured.reading_pct, measured.reason) == ("unsupported", None, MIG)
    nvml.card(mig=0, util=5)
    assert [measure(backend).result for _ in range(2)] == ["first", "ok"]
    assert measure(machine.backend("MIG-1234")).reason == MIG


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
    ],
)
def test_a_card_that_cannot_tell_is_unsupported_never_0(
    nvml: FakeNvml, machine: Machine, function: str
) -> None:
    """R130: and rows 27 and 30."""
    nvml.set(fail={function: NOT_SUPPORTED})
    backend = machine.backend()
    for _ in range(2):
        measured = measure(backend)
        assert (measured.result, measured.reading_pct) == ("unsupported", None)
        assert measured.reason


def test_a_card_that_told_before_fails_and_goes_on(nvml: FakeNvml, machine: Machine) -> None:
    """R21: and row 11, four reads of five without an answer."""
    backend = machine.backend()
    measure(backend)
    nvml.set(fail={"nvmlDeviceGetProcessUtilization": NOT_SUPPORTED})
    assert measure(backend).result == "failed"
    nvml.set(fail={})
    assert [measure(backend).result for _ in range(2)] == ["first", "ok"]


def test_what_the_user_may_not_see_is_invalid(nvml: FakeNvml, machine: Machine) -> None:
    """R22: and row 33."""
    nvml.set(fail={"nvmlDeviceGetProcessUtilization": NO_PERMISSION})
    assert measure(machine.backend()).result == "invalid"


def test_under_wsl_nothing_is_asked(nvml: FakeNvml, machine: Machine) -> None:
    """R130: and row 27."""
    nvml.record()
    machine.kernel("5.15.167.4-microsoft-standard-WSL2")
    measured = measure(machine.backend())
    assert (measured.result, measured.reading_pct, measured.reason) == ("unsupported", None, WSL)
    assert nvml.calls() == []


def test_without_the_hosts_pids_nothing_is_attributed(nvml: FakeNvml, machine: Machine) -> None:
    """R130: and row 14."""
    machine.namespace.unlink()
    machine.namespace.symlink_to("pid:[4026532999]")
    measured = measure(machine.backend())
    assert (measured.result, measured.reading_pct, measured.reason) == ("unsupported", None, NAMESPACE)


def test_what_is_only_nice_to_have_may_be_missing(nvml: FakeNvml, machine: Machine) -> None:
    """Rows 28 and 31."""
    nvml.card(encoder=None, decoder=None, total=None, processes=[FakeProcess(LENDER, None)])
    nvml.set(
        fail={
            "nvmlDeviceGetMPSComputeRunningProcesses_v3": NOT_SUPPORTED,
            "nvmlDeviceGetPerformanceState": NOT_SUPPORTED,
            "nvmlDeviceGetClockInfo": NOT_SUPPORTED,
            "nvmlDeviceGetName": 2,
        }
    )
    backend = machine.backend()
    measure(backend)
    measured = measure(backend)
    assert (measured.result, measured.reading_pct) == ("ok", 0.0)
    assert measured.memory_free_bytes is None
    assert measured.lender_memory_bytes is None
    assert (measured.product, measured.power_state, measured.sm_clock_mhz) == (None, None, None)


def test_an_older_driver_without_reserved_memory_is_asked_the_old_way(
    nvml: FakeNvml, machine: Machine
) -> None:
    nvml.set(fail={"nvmlDeviceGetMemoryInfo_v2": 25})
    assert measure(machine.backend()).memory_total_bytes == 24 * GIB


def test_a_sleeping_card_is_not_woken(nvml: FakeNvml, machine: Machine) -> None:
    """Row 23: NVML is not even initialised, and shut down when all its cards have gone to sleep."""
    nvml.record()
    machine.card("0000:01:00.0", "suspended")
    backend = machine.backend(FakeCard().uuid)
    measured = measure(backend)
    assert (measured.result, measured.reading_pct, measured.reason) == ("asleep", None, ASLEEP)
    assert nvml.calls() == []
    machine.status("0000:01:00.0", "active")
    assert [measure(backend).result for _ in range(2)] == ["first", "ok"]
    assert "nvmlShutdown" not in nvml.calls()
    machine.status("0000:01:00.0", "suspended")
    nvml.record()
    assert measure(backend).result == "asleep"
    assert nvml.calls() == ["nvmlShutdown"]
    machine.status("0000:01:00.0", "active")
    assert measure(backend).result == "first"


def test_a_sleeping_card_beside_one_that_is_awake_is_left_alone(nvml: FakeNvml, machine: Machine) -> None:
    """Row 23."""
    nvml.set(devices=[CARD_A, CARD_B])
    machine.card("0000:01:00.0", "active")
    machine.card("0000:41:00.0", "active")
    backend = machine.backend("GPU-a", "GPU-b")
    backend.measure(SAMPLE)
    machine.status("0000:41:00.0", "suspended")
    assert [each.result for each in backend.measure(SAMPLE)] == ["ok", "asleep"]
    machine.status("0000:41:00.0", "active")
    assert [each.result for each in backend.measure(SAMPLE)] == ["ok", "first"]


def test_closing_lets_go_of_the_cards(nvml: FakeNvml, machine: Machine) -> None:
    """Row 23."""
    backend = machine.backend()
    measure(backend)
    nvml.record()
    backend.close()
    backend.close()
    assert nvml.calls() == ["nvmlShutdown"]
    assert measure(backend).result == "first"
