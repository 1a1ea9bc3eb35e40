"""What becomes of sessions that the drain does not get away."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.config import OwnerConfig
from swapd.errors import Code
from swapd.lending.ladder import NO_NATIVE, NOWHERE, Leaver, fallback
from swapd.lending.memory import TOLERANCE_BYTES, expected_bytes, is_back
from swapd.messages.sampler import Measurement

RUNS = Leaver(
    busy=False,
    received=5,
    producing=True,
    unread_s=0.0,
    replay_permitted=False,
    reason=Code.NO_TARGET,
    room=False,
    others_starting=False,
)
PARK = OwnerConfig(finish_s=300.0, when_full="park")
FINISH = OwnerConfig(finish_s=300.0)
CANCEL = OwnerConfig(finish_s=300.0, when_full="cancel")


def step(owner: OwnerConfig = FINISH, waiting_s: float = 1.0, **changes: Any) -> str:
    return fallback(RUNS._replace(**changes), owner, waiting_s=waiting_s, grace_s=30.0)


def test_what_runs_may_finish_or_ends_at_once_by_the_owners_choice() -> None:
    assert (step(), step(CANCEL)) == ("finish", "end")
    assert (step(waiting_s=299.9), step(waiting_s=300.0)) == ("finish", "end")


def test_what_can_go_nowhere_is_parked_if_the_owner_chose_that_and_memory_is_there() -> None:
    """B3: before anything ends; beyond the memory it may finish, as without parking."""
    for reason in NOWHERE:
        assert step(PARK, reason=reason, can_park=True) == "park"
        assert step(PARK, reason=reason) == "finish"
        assert step(reason=reason, can_park=True) == "finish"
    assert step(PARK, can_park=True, producing=False, unread_s=1000.0) == "park"
    assert step(PARK, can_park=True, received=0, producing=False) == "end"
    assert step(PARK, can_park=True, waiting_s=300.0) == "end"


def test_beyond_the_memory_who_permits_replay_waits_without_its_kv() -> None:
    """B3: the owner chose that sessions wait; over quota, replay where permitted, else as without parking."""
    for reason in NOWHERE:
        assert step(PARK, reason=reason, replay_permitted=True) == "free"
        assert step(PARK, reason=reason, replay_permitted=True, can_park=True) == "park"
        assert step(PARK, reason=reason, replay_permitted=True, room=True) in ("finish", "replay")
        for owner in (FINISH, CANCEL):
            assert step(owner, reason=reason, replay_permitted=True) != "free"
    assert step(PARK, replay_permitted=True, producing=False, unread_s=1000.0) == "free"
    assert step(PARK, replay_permitted=True, received=0, producing=False) == "end"
    assert step(PARK, replay_permitted=True, others_starting=True) == "wait"
    assert step(PARK, replay_permitted=True, reason=Code.PRECOPY_DIVERGED) == "wait"
    # In the end the device is free, and what may wait has not ended.
    assert step(PARK, replay_permitted=True, reason=Code.PRECOPY_DIVERGED, waiting_s=300.0) == "free"
    assert step(PARK, can_park=True, reason=Code.PRECOPY_DIVERGED, waiting_s=300.0) == "end"


def test_what_can_still_move_or_be_rebuilt_is_not_parked() -> None:
    """A stream that goes on is better than one that waits."""
    assert step(PARK, can_park=True, reason=Code.PRECOPY_DIVERGED) == "wait"
    assert step(PARK, can_park=True, others_starting=True) == "wait"
    assert step(PARK, can_park=True, reason=Code.NO_EDGE, room=True, replay_permitted=True) == "replay"
    assert step(PARK, can_park=True, busy=True) == "wait"


def test_what_a_move_has_is_left_to_it() -> None:
    assert step(CANCEL, busy=True, waiting_s=1000.0) == "wait"


def test_what_the_drain_goes_on_trying_is_not_ended_before_its_time() -> None:
    """A move's own failures, and what was not looked at yet."""
    for reason in (None, Code.PRECOPY_DIVERGED, Code.NOT_ELIGIBLE, Code.ARENA_EXHAUSTED):
        assert step(CANCEL, reason=reason) == "wait"
        assert step(CANCEL, reason=reason, waiting_s=300.0) == "end"


def test_of_which_nothing_came_begins_elsewhere_or_does_not_hold_the_device() -> None:
    """B18: no permission needed."""
    assert step(received=0, reason=Code.NOT_ELIGIBLE, room=True) == "anew"
    assert step(received=0, reason=Code.NOT_ELIGIBLE, producing=False) == "end"
    assert step(received=0, reason=Code.NOT_ELIGIBLE) == "wait"


def test_without_evidence_for_a_move_no_waiting_helps() -> None:
    """H62: an owner is not kept waiting for a certificate."""
    assert {Code.NO_EDGE, Code.CERTIFICATE_EXPIRED, Code.CERTIFICATE_REVOKED} <= NO_NATIVE


def test_replay_is_for_those_that_permit_it_and_cannot_be_moved() -> None:
    for reason in NO_NATIVE:
        assert step(reason=reason, room=True, replay_permitted=True) == "replay"
        assert step(reason=reason, room=False, replay_permitted=True) == "finish"
        assert step(reason=reason, room=True) == "finish"
    failing = {"reason": Code.CHECKSUM_MISMATCH, "room": True, "replay_permitted": True}
    assert (step(waiting_s=9.9, **failing), step(waiting_s=10.0, **failing)) == ("wait", "replay")


def test_a_session_without_a_reader_gets_its_clients_grace_and_no_more() -> None:
    """It makes no token: its end would never come."""
    assert step(producing=False, unread_s=29.9) == "finish"
    assert step(producing=False, unread_s=30.0) == "end"


def test_a_worker_that_is_about_to_be_ready_is_waited_for_a_little() -> None:
    assert (step(CANCEL, others_starting=True), step(CANCEL, others_starting=True, waiting_s=5.0)) == (
        "wait",
        "end",
    )


@given(
    st.builds(
        Leaver,
        busy=st.just(False),
        received=st.integers(0, 3),
        producing=st.booleans(),
        unread_s=st.floats(0, 100),
        replay_permitted=st.booleans(),
        reason=st.none() | st.sampled_from(Code),
        room=st.booleans(),
        others_starting=st.booleans(),
    ),
    st.sampled_from([FINISH, CANCEL, PARK]),
)
def test_the_owners_wait_is_bounded_whatever_is_in_the_way(session: Leaver, owner: OwnerConfig) -> None:
    last = fallback(session, owner, waiting_s=300.0, grace_s=30.0)
    waits = owner is PARK and session.replay_permitted and session.received > 0
    assert last == ("free" if waits else "end") or (last in ("anew", "replay") and session.room)
    now = fallback(session, owner, waiting_s=0.0, grace_s=30.0)
    assert now != "replay" or (session.replay_permitted and session.received)
    assert now != "anew" or session.received == 0
    assert now != "finish" or (owner is not CANCEL and session.reason in NOWHERE)
    assert now != "free" or (waits and session.reason in NOWHERE and not session.room)


GIB = 1 << 30


@pytest.mark.parametrize(
    ("before", "used", "lenders", "expected"),
    [
        (None, None, None, None),
        (GIB, None, None, GIB),
        (None, 9 * GIB, 8 * GIB, GIB),
        (GIB, 9 * GIB, 6 * GIB, 3 * GIB),
        (GIB, 9 * GIB, None, GIB),
        (None, 8 * GIB, 9 * GIB, 0),
    ],
)
def test_the_memory_to_expect_counts_what_others_hold(
    before: int | None, used: int | None, lenders: int | None, expected: int | None
) -> None:
    """B17"""
    last = Measurement("gpu0", "ok", 0.0, memory_used_bytes=used, lender_memory_bytes=lenders)
    assert expected_bytes(before, last) == expected


def test_memory_is_back_within_the_tolerance() -> None:
    """B17"""
    for used, back in ((GIB + TOLERANCE_BYTES, True), (GIB + TOLERANCE_BYTES + 1, False), (None, None)):
        assert is_back(Measurement("gpu0", "ok", 0.0, memory_used_bytes=used), GIB) is back
