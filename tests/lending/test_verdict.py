"""The one judgement over a device's facts: exhaustive over the reasons, by hypothesis over their values."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.config import OwnerConfig, PressureConfig
from swapd.device_views import TakenBack
from swapd.devices import cpu
from swapd.lending import desk
from swapd.lending.reasons import GIVE_BACK, Why
from swapd.lending.verdict import NEEDS, Facts, Quiet, judge, needed
from swapd.messages.sampler import Measurement
from swapd.pressure.bounds import gap_limit_s
from swapd.pressure.reading import Decision

NOW, WALL = 5000.0, 1_700_000_000.0
OWNER = OwnerConfig(consent=True, lend_when="always", min_free_mib=1000)


def measured(**changes: Any) -> Measurement:
    return msgspec.structs.replace(Measurement("gpu0", "ok", NOW, reading_pct=3.0), **changes)


def decided(*, engaged: bool) -> Decision:
    return Decision(NOW, "unlocked", 5.0, 8.5, 28.5, 28.5, True, engaged, 60, 300.0, None, 3.0)


LENT = Facts(
    OWNER,
    decision=decided(engaged=False),
    calibrated=True,
    measurement=measured(),
    informed=measured(),
    valid_at_s=NOW,
    attendance="unlocked",
)
TOLD = TakenBack(WALL - 10, "told")
BUSY = measured(memory_free_bytes=100 << 20, others_hold_memory=True)

MAKES: dict[Why, dict[str, Any]] = {
    Why.NO_CONSENT: {"owner": msgspec.structs.replace(OWNER, consent=False)},
    Why.TAKEN_BACK: {"taken_back": TOLD},
    Why.PRESSURE: {"decision": decided(engaged=True)},
    Why.OWNER_PROCESS: {"informed": measured(always_seen=("blender",))},
    Why.OWNER_MEMORY: {"informed": BUSY},
    Why.GAME: {"game": True},
    Why.QUIET_HOURS: {"quiet": Quiet(True, None, WALL + 100)},
    Why.OWNER_PRESENT: {"owner": msgspec.structs.replace(OWNER, lend_when="locked")},
    Why.RESUMING: {"needed_at_s": NOW - 1},
    Why.UNSUPPORTED: {"measurement": measured(result="unsupported", reason="MIG is on")},
    Why.ATTENDANCE_UNKNOWN: {"attendance": "unknown"},
    Why.NO_READINGS: {"valid_at_s": NOW - 20.1},
    Why.CALIBRATING: {"calibrated": False, "warmup_have": 12},
}
"""What, changed alone, makes each reason hold."""


def test_each_reason_alone_refuses_and_gives_back_only_where_it_must() -> None:
    """R8, R59, R60, R130, D37, D40: one fact, one reason, one sentence."""
    assert judge(LENT, NOW, WALL)[:3] == (True, True, ())
    assert set(MAKES) == set(Why)
    for why, changes in MAKES.items():
        verdict = judge(LENT._replace(**changes), NOW, WALL)
        assert verdict.reasons == (why,), why
        assert (verdict.admit, verdict.hold) == (False, why not in GIVE_BACK), why
        assert verdict.sentence
        assert verdict.retry_after_s is not None
        assert verdict.retry_after_s > 0


@given(st.sets(st.sampled_from(sorted(set(MAKES) - {Why.NO_CONSENT, Why.OWNER_PRESENT, Why.OWNER_PROCESS}))))
def test_reasons_add_up_in_their_order(whys: set[Why]) -> None:
    """B12: admission only without any; held unless one asks for the device; all are told."""
    facts = LENT
    for why in whys:
        facts = facts._replace(**MAKES[why])
    verdict = judge(facts, NOW, WALL)
    expected = set(whys)
    if expected & NEEDS:
        expected.discard(Why.RESUMING)  # the need is not over
    if Why.UNSUPPORTED in whys:
        expected.discard(Why.NO_READINGS)  # it says so itself
    if Why.ATTENDANCE_UNKNOWN in whys:
        expected.discard(Why.CALIBRATING)  # which profile, nobody knows
    assert verdict.reasons == tuple(why for why in Why if why in expected)
    assert verdict.admit == (not expected)
    assert verdict.hold == (not expected & GIVE_BACK)
    assert needed(verdict) == bool(expected & NEEDS)
    if expected:
        alone = judge(LENT._replace(**MAKES[verdict.reasons[0]]), NOW, WALL)
        assert verdict.sentence == alone.sentence


@given(
    st.builds(
        Facts,
        st.builds(
            OwnerConfig,
            consent=st.booleans(),
            lend_when=st.sampled_from(["always", "locked"]),
            resume_after_s=st.floats(0, 100),
            min_free_mib=st.integers(0, 4000),
            gpu_pressure=st.builds(PressureConfig, enabled=st.booleans()),
        ),
        taken_back=st.none() | st.builds(TakenBack, st.just(WALL), st.just("told")),
        decision=st.none() | st.builds(decided, engaged=st.booleans()),
        calibrated=st.booleans(),
        informed=st.none() | st.just(BUSY),
        measurement=st.none() | st.sampled_from([measured(), measured(result="failed")]),
        valid_at_s=st.none() | st.floats(0, NOW),
        attendance=st.sampled_from(["locked", "unlocked", "unknown"]),
        game=st.booleans(),
        needed_at_s=st.none() | st.floats(0, NOW),
    )
)
def test_whatever_is_known_a_device_is_lent_only_without_a_reason(facts: Facts) -> None:
    """R59, R60: and without consent, a fresh reading, a calibrated profile there is always one."""
    verdict = judge(facts, NOW, WALL)
    assert verdict.admit == (not verdict.reasons)
    assert verdict.hold == GIVE_BACK.isdisjoint(verdict.reasons)
    assert not (verdict.admit and not verdict.hold)
    assert list(verdict.reasons) == sorted(verdict.reasons, key=list(Why).index)
    if facts.owner.gpu_pressure.enabled:
        fresh = facts.valid_at_s is not None and NOW - facts.valid_at_s <= 20.0
        engaged = facts.decision is not None and facts.decision.engaged
        assert not verdict.admit or (fresh and facts.calibrated and facts.attendance != "unknown")
        # Missing readings while engaged keep it engaged (D33).
        assert not engaged or (Why.PRESSURE in verdict.reasons and not verdict.hold)


def test_readings_are_stale_after_the_gap_limit_and_not_at_it() -> None:
    """R59, R19: `max(3·poll_ms, 20 s)`."""
    assert gap_limit_s(PressureConfig()) == 20.0
    assert gap_limit_s(PressureConfig(poll_ms=10_000)) == 30.0
    assert judge(LENT._replace(valid_at_s=NOW - 20.0), NOW, WALL).admit
    stale = judge(LENT._replace(valid_at_s=NOW - 20.5, measurement=measured(result="failed")), NOW, WALL)
    assert stale.sentence == "the newest valid reading is 21 s old, over 20 s (the last is failed)"


def test_without_pressure_nothing_measured_speaks_against_lending() -> None:
    """Consent, attendance where it matters, quiet hours and the owner's word still do."""
    off = msgspec.structs.replace(OWNER, gpu_pressure=PressureConfig(enabled=False))
    assert judge(Facts(off), NOW, WALL).admit
    locked = msgspec.structs.replace(off, lend_when="locked")
    assert judge(Facts(locked), NOW, WALL).reasons == (Why.ATTENDANCE_UNKNOWN,)
    assert judge(Facts(locked, attendance="locked"), NOW, WALL).admit
    assert not judge(Facts(off, taken_back=TOLD), NOW, WALL).hold


def test_a_take_back_for_a_time_ends_with_it() -> None:
    """Told how long, and over at the very second."""
    for_a_time = TakenBack(WALL, "time", WALL + 3600)
    verdict = judge(LENT._replace(taken_back=for_a_time), NOW, WALL + 600)
    assert verdict.sentence == "taken back by its owner, for 50 min more"
    assert (verdict.retry_after_s, verdict.resume_at) == (3000.0, WALL + 3600)
    assert judge(LENT._replace(taken_back=for_a_time), NOW, WALL + 3600).admit


@pytest.mark.parametrize(("have", "retry_s"), [(0, 300.0), (12, 240.0), (59, 5.0), (60, 5.0)])
def test_retry_after_while_calibrating_is_what_is_left_of_the_warm_up(have: int, retry_s: float) -> None:
    """R60, R53: readings that are missing, times the poll."""
    verdict = judge(LENT._replace(calibrated=False, warmup_have=have), NOW, WALL)
    assert verdict.retry_after_s == retry_s
    assert verdict.sentence == f"calibrating: {have} of 60 readings of the unlocked profile"


def test_retry_after_is_the_longest_wait_that_is_known() -> None:
    """All reasons have to be over; one without a time counts thirty seconds and hides the hour."""
    rest = LENT._replace(needed_at_s=NOW - 50)
    assert judge(rest, NOW, WALL)[4:] == (10.0, WALL + 10)
    both = rest._replace(quiet=Quiet(True, None, WALL + 100))
    assert judge(both, NOW, WALL)[4:] == (100.0, WALL + 100)
    assert judge(both._replace(taken_back=TOLD), NOW, WALL)[4:] == (100.0, None)
    assert judge(rest._replace(taken_back=TOLD), NOW, WALL)[4:] == (30.0, None)


def test_memory_is_the_owners_need_only_where_others_hold_some() -> None:
    """D37"""
    little = {"memory_free_bytes": 999 << 20}
    assert judge(LENT._replace(informed=measured(**little)), NOW, WALL).admit
    held = judge(LENT._replace(informed=measured(**little, others_hold_memory=True)), NOW, WALL)
    assert held.reasons == (Why.OWNER_MEMORY,)
    enough = measured(memory_free_bytes=1000 << 20, others_hold_memory=True)
    assert judge(LENT._replace(informed=enough), NOW, WALL).admit


@pytest.mark.parametrize("clock", [desk.boottime_s, cpu.boottime_s])
def test_ages_and_gaps_are_measured_by_a_clock_that_runs_through_suspend(
    clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D5, R27: a machine that slept has stale readings when it wakes."""
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: NOW + 8 * 3600.0}.__getitem__)
    woken = judge(LENT, clock(), WALL)
    assert woken.reasons == (Why.NO_READINGS,)
