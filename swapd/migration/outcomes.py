"""The closed set of what becomes of a session in a drain or a move, and of the reasons for it (H55). Pure.

Whatever a worker answers, no other word reaches a drain's view, a move's row or a metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from swapd.errors import Code
from swapd.views import Outcome, SessionOutcome

_STEP: Final = frozenset(
    {
        *(Code.SOURCE_LOST, Code.TARGET_LOST, Code.TIMEOUT, Code.STEP_TIMEOUT, Code.COORDINATOR_RESTART),
        *(Code.CAPACITY, Code.TARGET_FULL, Code.NO_TARGET, Code.NOT_READY, Code.PARK_FULL),
        *(Code.SESSION_UNKNOWN, Code.NOT_ELIGIBLE, Code.EPOCH_STALE, Code.FENCED),
        *(Code.LEASE_STALE, Code.LEASE_EXPIRED, Code.CHECKSUM_MISMATCH, Code.MANIFEST_MISMATCH),
        *(Code.ARENA_UNAVAILABLE, Code.ARENA_TOO_SMALL, Code.ARENA_EXHAUSTED),
        *(Code.STORE_FAILED, Code.STORE_STUCK, Code.DISK_FULL, Code.STOPPING),
        *(Code.PRECOPY_DIVERGED, Code.DRAIN_CANCELLED, Code.ENGINE_FAILED, Code.INTERNAL),
        *(Code.INVALID_REQUEST, Code.PROMPT_EMPTY, Code.BUDGET_EXCEEDED, Code.CURSOR_AHEAD),
        *(Code.FRAME_TOO_LARGE, Code.FRAME_MALFORMED, Code.VERSION_UNSUPPORTED),
        *(Code.NO_EDGE, Code.CERTIFICATE_EXPIRED, Code.CERTIFICATE_REVOKED),
    }
)
"""How a step of a move can fail."""
_ENDED: Final = frozenset(
    {Code.RECOVERY_UNAVAILABLE, Code.DEVICE_TAKEN_BACK, Code.LIFETIME_EXCEEDED, Code.ENGINE_FAILED}
)
"""Why a session can fail."""
_STAYS: Final = frozenset(
    {
        *(Code.NOT_ELIGIBLE, Code.TARGET_FULL, Code.NO_TARGET, Code.NO_EDGE, Code.MIGRATION_DISABLED),
        *(Code.ARENA_UNAVAILABLE, Code.ARENA_TOO_SMALL, Code.ARENA_EXHAUSTED, Code.PARK_FULL),
        *(Code.CERTIFICATE_EXPIRED, Code.CERTIFICATE_REVOKED),
        *(Code.PARKING_OFF, Code.REPLAY_NOT_PERMITTED, Code.ALREADY_FINISHED, Code.DEADLINE),
    }
)
"""Why a session cannot leave now."""

REASONS_OF: Final[Mapping[Outcome, frozenset[Code | None]]] = {
    "completed_native": frozenset({None, Code.COORDINATOR_RESTART, Code.SOURCE_LOST}),
    "completed_replay": frozenset({None, Code.SOURCE_LOST, Code.TARGET_FAILED}),
    "completed_redispatch": frozenset({None, Code.SOURCE_LOST, Code.TARGET_FAILED, Code.COORDINATOR_RESTART}),
    "rehomed_source": _STEP,
    "parked": frozenset({None, Code.COORDINATOR_RESTART, Code.PARK_FULL}),
    "aborted_source_resumed": _STEP,
    "cancelled": frozenset(
        {Code.ALREADY_FINISHED, Code.SESSION_CANCELLED, Code.DRAIN_CANCELLED, Code.INTERNAL}
    )
    | _ENDED,
    "blocked": _STAYS | _STEP,
    "failed": _ENDED | _STEP,
}
"""A blocked session may tell of its last try instead of what is in its way now."""


def within(result: SessionOutcome) -> SessionOutcome:
    """The same in the words of the closed set; a reason of no row becomes `internal`, or none."""
    if result.outcome is None:
        return result
    reasons = REASONS_OF[result.outcome]
    if result.reason in reasons:
        return result
    return msgspec.structs.replace(result, reason=None if None in reasons else Code.INTERNAL)
