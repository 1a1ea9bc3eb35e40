"""Why a device is not lent: a closed set of reasons (B12, B16). Pure.

A reason either only refuses new work, or asks for the device back as well: then what runs on it leaves and
its workers are stopped.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Why(StrEnum):
    """Stable names, as `/status`, logs and metrics show them; in the order in which they are told."""

    NO_CONSENT = "no_consent"
    TAKEN_BACK = "taken_back"
    PRESSURE = "pressure"
    OWNER_PROCESS = "owner_process"
    OWNER_MEMORY = "owner_memory"
    GAME = "game"
    QUIET_HOURS = "quiet_hours"
    OWNER_PRESENT = "owner_present"
    RESUMING = "resuming"
    """The owner's need is over for less than `resume_after_s`."""
    UNSUPPORTED = "unsupported"
    ATTENDANCE_UNKNOWN = "attendance_unknown"
    NO_READINGS = "no_readings"
    CALIBRATING = "calibrating"


GIVE_BACK: Final = frozenset(
    {
        Why.NO_CONSENT,
        Why.TAKEN_BACK,
        Why.PRESSURE,
        Why.OWNER_PROCESS,
        Why.OWNER_MEMORY,
        Why.GAME,
        Why.QUIET_HOURS,
        Why.OWNER_PRESENT,
        Why.RESUMING,
    }
)
"""Reasons for which the device's workers are emptied and stopped; the others only close admission."""
