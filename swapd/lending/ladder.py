"""What becomes of a session whose device its owner wants back: one step down the ladder at a time. Pure.

    1. native: the drain moves it, the KV with it                      (the drain's own work)
    2. anew: nothing has come of it yet, so another worker begins it   (as in any drain; even with moves off)
    3. replay: another worker rebuilds it from its transcript          (if its client permits that)
    4. park: kept in host memory until there is room                   (if the owner chose that, B3)
    5. free: it waits without its KV and is replayed when there is room  (if the owner chose that it waits,
       host memory has no room for it, and its client permits replay)
    6. finish: it may run on for `finish_s`; or, by the owner's choice, it ends at once
    7. end: failed with `device_taken_back`, which the client may try again

The owner's wait is bounded: after `finish_s` every session leaves or ends, whatever was in its way.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from swapd.config import OwnerConfig
from swapd.errors import Code

Step = Literal["wait", "anew", "replay", "park", "free", "finish", "end"]

NO_NATIVE: Final = frozenset(
    {
        *(Code.NO_EDGE, Code.CERTIFICATE_EXPIRED, Code.CERTIFICATE_REVOKED),
        *(Code.MIGRATION_DISABLED, Code.ARENA_UNAVAILABLE, Code.ARENA_TOO_SMALL),
    }
)
"""Reasons of a drain that no waiting changes: the KV cannot be moved to any worker."""
NOWHERE: Final = NO_NATIVE | {Code.NO_TARGET, Code.TARGET_FULL, Code.PARK_FULL, Code.PARKING_OFF}
"""Reasons for which it cannot leave now. All others are a move's own, and the drain tries again."""
START_WAIT_S: Final = 5.0
"""How long a worker that is just starting is waited for before a session counts as having nowhere to go."""
FAILING_S: Final = 10.0
"""After so long without a native move, for whatever reason, a replay is as good."""


class Leaver(NamedTuple):
    """A session that is still on the device, as the ladder sees it."""

    busy: bool
    """A move or a recovery has it, or it is ending."""
    received: int
    """Tokens that came from its owner so far."""
    producing: bool
    """A reader is there, or it goes on alone."""
    unread_s: float
    """For how long it has had no reader."""
    replay_permitted: bool
    reason: Code | None
    """What the drain says is in its way; None: it was not looked at yet."""
    room: bool
    """Another worker that admits could take it."""
    others_starting: bool
    """A worker of another device is about to be ready."""
    can_park: bool = False
    """Host memory has room for it."""


def fallback(session: Leaver, owner: OwnerConfig, *, waiting_s: float, grace_s: float) -> Step:
    """The step for a session, `waiting_s` after its device was wanted back.

    `grace_s`: how long a client that is gone may take to come back.
    """
    if session.busy:
        return "wait"
    if session.received == 0 and session.room:
        return "anew"
    native_fails = session.reason in NO_NATIVE or (session.reason is not None and waiting_s >= FAILING_S)
    if native_fails and session.replay_permitted and session.received > 0 and session.room:
        return "replay"
    waits = owner.when_full == "park" and session.received > 0
    if waiting_s >= owner.finish_s:
        return "free" if waits and session.replay_permitted else "end"
    idle = not session.producing
    if session.reason not in NOWHERE and not (idle and session.received == 0):
        return "wait"
    if session.others_starting and waiting_s < START_WAIT_S:
        return "wait"
    if waits and session.can_park:
        return "park"
    if waits and session.replay_permitted and not session.room:
        return "free"
    if owner.when_full == "cancel":
        return "end"
    if idle and (session.received == 0 or session.unread_s >= grace_s):
        return "end"  # it makes no token, so waiting for its end would only hold the device
    return "finish"
