"""What a machine's login sessions say about whether somebody is at it. Pure.

- A session counts when a person works in it through a screen: a user's graphical session, here or from
  afar, that is there to be used. Greeters, managers, consoles and closing sessions do not count.
- One counted session that is not locked is somebody at the machine, whatever the others say.
- Locked needs at least one counted session, and a lock that is known of every one of them.
- Everything else is unknown. What nobody said is never taken for "unlocked", nor for "locked".

`LockedHint` is what the desktop tells the login manager. `IdleHint` decides nothing: idle is not locked, and
several desktops never set it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from swapd.pressure.reading import Attendance

PERSON_CLASSES: Final = frozenset({"user", "user-early", "user-light"})
"""Newer login managers tell apart how much of a user's own services a session brings; a person is in each."""
GRAPHICAL_TYPES: Final = frozenset({"x11", "wayland", "mir"})
USED_STATES: Final = frozenset({"active", "online"})
"""`online` is a session that is not in front: that of the person who switched users, or a remote one."""


class LoginSession(NamedTuple):
    """One session as the login manager describes it. None: it did not say."""

    id: str
    session_class: str | None
    type: str | None
    state: str | None
    active: bool | None = None
    remote: bool | None = None
    locked_hint: bool | None = None
    can_lock: bool | None = None
    """Login managers before systemd 257 do not tell; then the hint alone counts."""
    idle: bool | None = None


class Seen(NamedTuple):
    """The attendance and a short sentence for people; it names no person and no content."""

    attendance: Attendance
    detail: str


NOT_READ: Final = Seen("unknown", "the login sessions have not been read yet")
NO_ANSWER: Final = Seen("unknown", "the login manager does not answer")
NO_MANAGER: Final = Seen("unknown", "no login manager runs on this machine")
REFUSED: Final = Seen("unknown", "the login manager refuses to answer")
NO_BUS: Final = Seen("unknown", "the system bus is not there")
BUS_LOST: Final = Seen("unknown", "the connection to the system bus is lost")
FAILED: Final = Seen("unknown", "watching the login manager failed and is tried again")
NOBODY: Final = Seen("unknown", "no graphical session")


def counts(session: LoginSession) -> bool:
    """Whether a person may be working in this session."""
    return (
        session.session_class in PERSON_CLASSES
        and session.type in GRAPHICAL_TYPES
        and session.state in USED_STATES
    )


def lock_of(session: LoginSession) -> bool | None:
    """Whether the session is locked; None when that cannot be known."""
    return None if session.can_lock is False else session.locked_hint


def attendance_of(sessions: Iterable[LoginSession]) -> Seen:
    """Judge a machine by all of its sessions. The order of the sessions decides nothing."""
    counted = [session for session in sessions if counts(session)]
    if not counted:
        return NOBODY
    locks = [lock_of(session) for session in counted]
    # Said only where it matters: somebody may wonder why a machine with a dark screen is attended.
    remote = sum(session.remote is True for session in counted)
    total = _number(len(counted)) + (f" ({remote} remote)" if remote else "")
    unlocked, unsaid = locks.count(False), locks.count(None)
    if unlocked:
        return Seen("unlocked", f"{total}, {unlocked} unlocked")
    if unsaid:
        return Seen("unknown", f"{total}, {unsaid} without a known lock")
    return Seen("locked", f"{total}, locked" if len(locks) == 1 else f"{total}, all locked")


def _number(sessions: int) -> str:
    return "1 session" if sessions == 1 else f"{sessions} sessions"
