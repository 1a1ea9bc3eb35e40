"""Whether somebody is at the machine, from described sessions alone."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.attendance.rules import LoginSession, Seen, attendance_of, counts

DESKTOP = LoginSession("c1", "user", "wayland", "active", active=True, locked_hint=False)
LOCKED = DESKTOP._replace(locked_hint=True)
UNSAID = DESKTOP._replace(locked_hint=None)

maybe = st.sampled_from([None, False, True])
sessions = st.builds(
    LoginSession,
    id=st.sampled_from(["1", "c2"]),
    session_class=st.sampled_from([None, "user", "greeter", "manager", "background", "lock-screen"]),
    type=st.sampled_from([None, "x11", "wayland", "mir", "tty", "web", "unspecified"]),
    state=st.sampled_from([None, "active", "online", "closing", "opening"]),
    active=maybe,
    remote=maybe,
    locked_hint=maybe,
    can_lock=maybe,
    idle=maybe,
)


@pytest.mark.parametrize("type", ["x11", "wayland", "mir"])
@pytest.mark.parametrize("state", ["active", "online"])
def test_an_unlocked_desktop_is_somebody_at_the_machine(type: str, state: str) -> None:
    assert attendance_of([DESKTOP._replace(type=type, state=state)]) == Seen(
        "unlocked", "1 session, 1 unlocked"
    )


@pytest.mark.parametrize(
    "other",
    [
        DESKTOP._replace(session_class="greeter"),
        DESKTOP._replace(session_class="manager"),
        DESKTOP._replace(session_class="background"),
        DESKTOP._replace(session_class=None),
        DESKTOP._replace(type="tty"),
        DESKTOP._replace(type="tty", remote=True),
        DESKTOP._replace(type="web", remote=True),
        DESKTOP._replace(type="unspecified"),
        DESKTOP._replace(type=None),
        DESKTOP._replace(state="closing"),
        DESKTOP._replace(state=None),
    ],
)
def test_what_is_no_desktop_of_a_person_says_nothing(other: LoginSession) -> None:
    assert attendance_of([other]) == Seen("unknown", "no graphical session")
    assert attendance_of([other, LOCKED]) == Seen("locked", "1 session, locked")


def test_one_unlocked_session_is_enough() -> None:
    assert attendance_of([LOCKED, DESKTOP, UNSAID]) == Seen("unlocked", "3 sessions, 1 unlocked")


def test_locked_means_that_every_session_is() -> None:
    assert attendance_of([LOCKED, LOCKED]) == Seen("locked", "2 sessions, all locked")
    assert attendance_of([LOCKED, UNSAID]) == Seen("unknown", "2 sessions, 1 without a known lock")


def test_a_remote_desktop_counts_like_a_local_one() -> None:
    remote = DESKTOP._replace(remote=True, active=False, state="online")
    assert attendance_of([LOCKED, remote]) == Seen("unlocked", "2 sessions (1 remote), 1 unlocked")
    assert attendance_of([remote._replace(locked_hint=True)]) == Seen(
        "locked", "1 session (1 remote), locked"
    )


@pytest.mark.parametrize("hint", [True, False, None])
def test_a_session_that_cannot_lock_says_nothing_by_its_hint(hint: bool | None) -> None:
    seen = attendance_of([DESKTOP._replace(can_lock=False, locked_hint=hint)])
    assert seen == Seen("unknown", "1 session, 1 without a known lock")


def test_a_login_manager_that_does_not_know_can_lock_is_believed_by_its_hint() -> None:
    assert attendance_of([DESKTOP._replace(can_lock=None)]).attendance == "unlocked"


def test_idle_is_not_locked() -> None:
    assert attendance_of([DESKTOP._replace(idle=True)]).attendance == "unlocked"


@given(st.lists(sessions, max_size=5))
def test_absence_of_information_is_never_taken_for_presence_or_absence_of_the_owner(
    found: list[LoginSession],
) -> None:
    seen = attendance_of(found)
    said = [s.locked_hint for s in found if counts(s) and s.can_lock is not False]
    assert (seen.attendance == "unlocked") == (False in said)
    if seen.attendance == "locked":
        assert said
        assert all(said)
        assert not any(counts(s) and s.can_lock is False for s in found)


@given(st.lists(sessions, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_sessions_decides_nothing(found: list[LoginSession], random: Random) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)
    assert attendance_of(shuffled) == attendance_of(found)


@given(st.lists(sessions, max_size=5), sessions)
def test_another_session_never_makes_an_unlocked_machine_anything_else(
    found: list[LoginSession], other: LoginSession
) -> None:
    if attendance_of(found).attendance == "unlocked":
        assert attendance_of([*found, other]).attendance == "unlocked"
