"""The owner's share of an NVIDIA device, from what it told. Pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swapd.devices.nvml_raw import NvmlFailure, NvmlFault, ProcessMemory, ProcessUse, RawDevice
from swapd.devices.nvml_rules import (
    LENDER_WINDOW_US,
    NONSENSE,
    OWNER_WINDOW_US,
    SCRAMBLED,
    Who,
    failed,
    judge,
    ring_newest_us,
    tell_who,
)
from swapd.messages.sampler import Measurement

L, M, OWN, X = 11, 12, 21, 31
"""Two lenders, an owner's process, an ignored one."""
WHO = Who(lenders=frozenset({L, M}), ignored=frozenset({X}))
LAST_US = 1_000_000_000
NOW_US = LAST_US + 5_000_000


def use(pid: int, sm: int = 0, encoder: int = 0, decoder: int = 0, at_us: int = NOW_US) -> ProcessUse:
    return ProcessUse(pid, at_us, sm, encoder, decoder)


def poll(
    *uses: ProcessUse,
    device: int = 0,
    encoder: int | None = None,
    decoder: int | None = None,
    processes: tuple[ProcessMemory, ...] = (),
    last_us: int | None = LAST_US,
    who: Who = WHO,
) -> Measurement:
    raw = RawDevice("GPU-a", device, uses, processes, encoder, decoder)
    return judge("gpu0", 5.0, raw, last_us, who).measurement


def reading(*uses: ProcessUse, device: int = 0, **more: int | None) -> float | None:
    return poll(*uses, device=device, **more).reading_pct  # type: ignore[arg-type]  # keywords of `poll`


def test_the_lenders_share_is_not_the_owners() -> None:
    """R3: the lenders use 95 %, the owner 3 %: the reading is 3."""
    measured = poll(use(L, 60), use(M, 35), use(OWN, 3), device=98)
    assert (measured.result, measured.reading_pct) == ("ok", 3.0)
    assert (measured.device_pct, measured.lender_pct, measured.ignored_pct) == (98.0, 95.0, 0.0)


def test_a_migrations_burst_on_either_card_is_lender_load() -> None:
    """D30: what the worker that gives and the one that takes do is subtracted, however much it is."""
    assert reading(use(L, 20), use(M, 80), device=100) == 0.0
    assert reading(use(M, 97), use(OWN, 3), device=100) == 3.0


def test_the_ignored_processes_share_is_subtracted_too() -> None:
    """R3."""
    measured = poll(use(L, 40), use(X, 50), use(OWN, 7), device=97)
    assert (measured.reading_pct, measured.ignored_pct) == (7.0, 50.0)


def test_the_reading_is_the_largest_of_sm_encoder_and_decoder() -> None:
    """R3: a video call is the owner's work; a lender's encoding is not."""
    assert reading(use(OWN, sm=4, encoder=12, decoder=40)) == 40.0
    assert reading(use(OWN, sm=4, encoder=52, decoder=40)) == 52.0
    assert reading(use(L, encoder=90), encoder=90, decoder=15) == 15.0
    assert reading(use(L, encoder=60), encoder=90) == 30.0


def test_what_the_device_did_beyond_its_processes_is_the_owners() -> None:
    """Row 9: the device is at 25 % while its processes sum to 6 %."""
    assert reading(use(L, 4), use(OWN, 2), device=25) == 21.0
    assert reading(use(L, 90), use(OWN, 30), device=95) == 30.0


def test_mirrored_or_lagging_sums_never_leave_the_scale() -> None:
    """Row 29: percentages of several processes may sum to more than the device has."""
    assert reading(use(OWN, 80), use(91, 70), device=100) == 100.0
    assert reading(use(L, 80), use(M, 70), device=100) == 0.0


@given(
    st.lists(st.tuples(st.sampled_from([L, M, OWN, X, 77]), *[st.integers(0, 100)] * 3), max_size=8),
    *[st.integers(0, 100)] * 3,
)
def test_a_sound_reading_is_a_percentage_and_covers_every_process_of_the_owner(
    told: list[tuple[int, int, int, int]], device: int, encoder: int, decoder: int
) -> None:
    """R3."""
    last = {pid: use(pid, *percent) for pid, *percent in told}
    measured = poll(*last.values(), device=device, encoder=encoder, decoder=decoder)
    assert measured.reading_pct is not None
    assert 0.0 <= measured.reading_pct <= 100.0
    for each in last.values():
        if each.pid in (OWN, 77):
            assert measured.reading_pct >= max(each.sm_pct, each.encoder_pct, each.decoder_pct)
    if not last:
        assert measured.reading_pct == max(device, encoder, decoder)


def test_a_process_nobody_knows_is_the_owners() -> None:
    """Row 13: a listed pid that is gone already is counted, not dropped."""
    assert reading(use(99_999, 33)) == 33.0


def test_no_sample_is_an_idle_device_not_a_failure() -> None:
    """Rows 2 and 8."""
    measured = poll()
    assert (measured.result, measured.reading_pct) == ("ok", 0.0)


def test_a_sample_that_was_told_before_is_ignored() -> None:
    """Row 6: a process that has ended stays in the driver's ring, and uses nothing any more."""
    assert reading(use(OWN, 80, at_us=LAST_US), use(L, 10)) == 0.0
    assert reading(use(OWN, 80, at_us=LAST_US + 1), use(L, 10)) == 80.0


def test_nonsense_does_not_hide_that_a_sample_is_old() -> None:
    """Rows 1 and 6: the zombies' samples of before are no reason to mistrust the new ones."""
    assert poll(use(L, 10**9, at_us=LAST_US), use(OWN, 5)).reading_pct == 5.0


def test_a_figure_over_100_is_rejected_and_the_rest_counts() -> None:
    """Row 1: billions of percent."""
    measured = poll(use(91, 4_000_000_000), use(92, encoder=101), use(OWN, 12), use(L, 50), device=62)
    assert (measured.result, measured.reading_pct) == ("ok", 12.0)


def test_nonsense_of_a_lender_makes_the_reading_invalid() -> None:
    """R22: with row 1, what is to be subtracted is not known."""
    measured = poll(use(L, 4_000_000_000), use(OWN, 12))
    assert (measured.result, measured.reading_pct, measured.reason) == ("invalid", None, NONSENSE)


def test_nothing_but_nonsense_makes_the_reading_invalid() -> None:
    """R22: and row 1."""
    assert poll(use(OWN, 101)).result == "invalid"
    assert poll(device=101).result == "invalid"


def test_nonsense_does_not_move_the_time_to_go_on_from() -> None:
    """Row 1: its time may be nonsense as well, and everything after it would count as old."""
    raw = RawDevice("GPU-a", 0, (use(OWN, 10**9, at_us=NOW_US * 1000), use(91, 5)), ())
    assert judge("gpu0", 5.0, raw, LAST_US, WHO).last_us == NOW_US
    raw = RawDevice("GPU-a", 0, (), ())
    assert judge("gpu0", 5.0, raw, LAST_US, WHO).last_us == LAST_US
    assert judge("gpu0", 5.0, raw, None, WHO).last_us == 0


def test_the_newest_sample_of_a_process_counts() -> None:
    """Row 4."""
    assert reading(use(OWN, 70, at_us=NOW_US - 900_000), use(OWN, 20), use(OWN, 90, at_us=NOW_US - 1)) == 20.0


def test_a_lenders_old_sample_is_not_subtracted_from_the_device_of_now() -> None:
    """Rows 4 and 7: the device's figure covers the last second; the window is two."""
    at_us = NOW_US - LENDER_WINDOW_US
    assert LENDER_WINDOW_US == 2_000_000
    assert reading(use(L, 60, at_us=at_us), use(OWN, 1), device=61) == 1.0
    assert reading(use(L, 60, at_us=at_us - 1), use(OWN, 1), device=61) == 61.0
    assert reading(use(X, 60, at_us=at_us - 1), use(OWN, 1), device=61) == 61.0


def test_the_owners_use_of_the_whole_poll_counts_and_not_that_of_missed_polls() -> None:
    """Row 4."""
    who = WHO
    raw = (use(OWN, 60, at_us=NOW_US - OWNER_WINDOW_US), use(L, 5))
    assert poll(*raw, last_us=1, who=who).reading_pct == 60.0
    raw = (use(OWN, 60, at_us=NOW_US - OWNER_WINDOW_US - 1), use(L, 5))
    assert poll(*raw, last_us=1, who=who).reading_pct == 0.0


def test_the_first_poll_after_initialisation_gives_no_reading() -> None:
    """Row 34: initialisation itself shows as 99 % for a second."""
    measured = poll(use(OWN, 99), device=99, last_us=None)
    assert (measured.result, measured.reading_pct, measured.device_pct) == ("first", None, 99.0)


def test_pids_that_no_process_has_make_the_reading_invalid() -> None:
    """R22: and row 12, where a driver and a binding disagree on a struct."""
    for pid in (0, 0xFFFFFFFF):
        assert poll(use(pid, 5)).reason == SCRAMBLED
        measured = poll(processes=(ProcessMemory(pid, 1),))
        assert (measured.result, measured.reading_pct) == ("invalid", None)


def test_memory_of_others_is_told_apart_from_the_lenders() -> None:
    """D37: unknown memory counts as some, ignored processes are no owners."""
    ours = (ProcessMemory(L, 3), ProcessMemory(L, 5), ProcessMemory(M, 2))
    measured = poll(processes=ours)
    assert (measured.others_hold_memory, measured.lender_memory_bytes) == (False, 7)
    assert not poll(processes=(*ours, ProcessMemory(X, 9))).others_hold_memory
    assert not poll(processes=(*ours, ProcessMemory(OWN, 0))).others_hold_memory
    assert poll(processes=(*ours, ProcessMemory(OWN, 1))).others_hold_memory
    assert poll(processes=(ProcessMemory(OWN, None),)).others_hold_memory


def test_memory_that_the_driver_does_not_tell_is_tolerated() -> None:
    """Row 28: WDDM and MIG tell no memory by process."""
    measured = poll(use(OWN, 5), processes=(ProcessMemory(L, None), ProcessMemory(M, 4)))
    assert (measured.result, measured.reading_pct) == ("ok", 5.0)
    assert measured.lender_memory_bytes is None
    assert measured.memory_free_bytes is None
    assert poll(processes=(ProcessMemory(OWN, None),)).lender_memory_bytes == 0


def test_names_sort_the_processes_that_are_no_lenders() -> None:
    """D23: and D37; a lender called like an owner's program stays a lender."""
    names = {L: "blender", OWN: "Blender", X: "OBS"}

    def matches(pid: int, wanted: object) -> bool:
        return names.get(pid, "?").lower() in [each.lower() for each in wanted]  # type: ignore[attr-defined]

    who = tell_who([L, OWN, X, 99], frozenset({L, M}), ("obs",), ("blender", "maya"), matches)
    assert who == Who(frozenset({L, M}), frozenset({X}), ("blender",))
    assert poll(who=who).always_seen == ("blender",)
    assert tell_who([L], frozenset({L}), (), ("blender",), matches).always_seen == ()


def test_what_a_device_cannot_tell_is_unsupported_and_never_0() -> None:
    """R130: and row 30; a device that told before merely fails (row 11)."""
    cannot = NvmlFailure("nvmlDeviceGetProcessUtilization", NvmlFault.NOT_SUPPORTED.value)
    never = failed("gpu0", 1.0, cannot, told_before=False)
    assert (never.result, never.reading_pct) == ("unsupported", None)
    assert never.reason
    assert failed("gpu0", 1.0, cannot, told_before=True).result == "failed"


def test_what_may_not_be_seen_is_invalid() -> None:
    """R22: and row 33."""
    hidden = NvmlFailure("nvmlDeviceGetProcessUtilization", NvmlFault.NO_PERMISSION.value)
    assert failed("gpu0", 1.0, hidden, told_before=True).result == "invalid"


def test_every_other_failure_gives_no_reading_and_a_sentence() -> None:
    """R21: and rows 15 and 17."""
    for code in (1, 2, 9, 10, 12, 15, 16, 21, 28, 999, 12345):
        measured = failed("gpu0", 1.0, NvmlFailure("nvmlX", code), told_before=False)
        assert (measured.result, measured.reading_pct) == ("failed", None)
        assert measured.reason


def test_the_newest_of_the_ring_leaves_nonsense_out() -> None:
    assert ring_newest_us([]) is None
    assert ring_newest_us([use(OWN, 5, at_us=3), use(L, 5, at_us=7), use(OWN, 101, at_us=9)]) == 7
