"""May a device be lent now, and if not, why: one judgement over what is known of it (R8, R59, R60). Pure.

Every reason that holds is told, in the order of `Why`; the first one makes the sentence. A reason of
`GIVE_BACK` asks for the device; any other only lets nothing new in. What is not known never lends: a
reading that is missing, an attendance that nobody can tell, a profile that is not learned yet. It never
gives back either: what nobody can measure is no reason to end what runs.

Times: `now_s` and everything `_s` is CLOCK_BOOTTIME, which runs through suspend (D5); `wall` is for people.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from swapd.config import OwnerConfig
from swapd.device_views import TakenBack
from swapd.lending.device import Verdict
from swapd.lending.reasons import GIVE_BACK, Why
from swapd.messages.sampler import Measurement
from swapd.pressure.bounds import gap_limit_s
from swapd.pressure.reading import Attendance, Decision

RETRY_DEFAULT_S: Final = 30.0
"""`Retry-After` where nothing tells how long a reason will last."""

NEEDS: Final = frozenset({Why.PRESSURE, Why.OWNER_PROCESS, Why.OWNER_MEMORY, Why.GAME, Why.OWNER_PRESENT})
"""The owner's own need of the device; once it is over, the device rests for `resume_after_s`."""


class Quiet(NamedTuple):
    """Quiet hours as they are now, their lead counted in; `ends_at` is wall clock."""

    active: bool = False
    begins_in_s: float | None = None
    ends_at: float | None = None


class Facts(NamedTuple):
    """All that a judgement of one device looks at."""

    owner: OwnerConfig
    taken_back: TakenBack | None = None
    decision: Decision | None = None
    calibrated: bool = False
    """Whether the profile in force is; in fixed mode whether the threshold can be used (R70)."""
    warmup_have: int = 0
    pressure_text: str | None = None
    """What the tracker says of the owner's load, a sentence for people."""
    measurement: Measurement | None = None
    """The latest, whatever its result."""
    informed: Measurement | None = None
    """The latest that could tell processes and memory: without an answer the owner's need stays (D33)."""
    valid_at_s: float | None = None
    attendance: Attendance = "unknown"
    attendance_detail: str | None = None
    game: bool = False
    quiet: Quiet = Quiet()
    needed_at_s: float | None = None
    """When one of `NEEDS` last held; None: never since the device was last lent."""


def judge(facts: Facts, now_s: float, wall: float) -> Verdict:
    """Tell whether the device may be lent, and everything that speaks against it."""
    found = [(why, test(facts, now_s, wall)) for why, test in _TESTS.items()]
    against = [(why, sentence) for why, sentence in found if sentence is not None]
    if not NEEDS.isdisjoint(why for why, _ in against):
        against = [(why, sentence) for why, sentence in against if why is not Why.RESUMING]
    reasons = tuple(why for why, _ in against)
    if not reasons:
        return Verdict(True, True, (), facts.pressure_text or "lent")
    waits = [_retry(why, facts, now_s, wall) for why in reasons]
    return Verdict(
        admit=False,
        hold=not GIVE_BACK.intersection(reasons),
        reasons=reasons,
        sentence=against[0][1],
        retry_after_s=max(RETRY_DEFAULT_S if wait is None else wait for wait in waits),
        resume_at=None if None in waits else wall + max(wait for wait in waits if wait is not None),
    )


def needed(verdict: Verdict) -> bool:
    """Whether the owner's own need is among the reasons."""
    return not NEEDS.isdisjoint(verdict.reasons)


# One test a reason: the sentence when it holds, else None ----------------------------------------


def _no_consent(facts: Facts, now_s: float, wall: float) -> str | None:
    # D40: nothing is lent before the owner has said so.
    return None if facts.owner.consent else "the owner has not consented to lending (owner.consent)"


def _taken_back(facts: Facts, now_s: float, wall: float) -> str | None:
    taken = facts.taken_back
    if taken is None or (taken.ends_at is not None and wall >= taken.ends_at):
        return None
    if taken.ends_at is not None:
        return f"taken back by its owner, for {_span(taken.ends_at - wall)} more"
    return f"taken back by its owner until {'the screen is unlocked' if taken.until == 'unlock' else 'told'}"


def _pressure(facts: Facts, now_s: float, wall: float) -> str | None:
    if not facts.owner.gpu_pressure.enabled or facts.decision is None or not facts.decision.engaged:
        return None
    return facts.pressure_text or "the owner's own load needs the device"


def _owner_process(facts: Facts, now_s: float, wall: float) -> str | None:
    if facts.informed is None or not facts.informed.always_seen:
        return None
    return f"the owner's {facts.informed.always_seen[0]} is running (owner.always)"


def _owner_memory(facts: Facts, now_s: float, wall: float) -> str | None:
    # D37: little memory is the owner's need only where somebody but the lenders holds some of it.
    least, seen = facts.owner.min_free_mib, facts.informed
    if least <= 0 or seen is None or seen.memory_free_bytes is None or not seen.others_hold_memory:
        return None
    free_mib = seen.memory_free_bytes >> 20
    if free_mib >= least:
        return None
    return f"{free_mib} MiB of device memory are free, less than {least} MiB, and other processes hold some"


def _game(facts: Facts, now_s: float, wall: float) -> str | None:
    return "the owner is playing (GameMode)" if facts.owner.gamemode and facts.game else None


def _quiet_hours(facts: Facts, now_s: float, wall: float) -> str | None:
    quiet = facts.quiet
    if not quiet.active:
        return None
    return "quiet hours" if quiet.begins_in_s is None else f"quiet hours begin in {_span(quiet.begins_in_s)}"


def _owner_present(facts: Facts, now_s: float, wall: float) -> str | None:
    # D40: unknown attendance is no presence; it refuses below.
    if facts.owner.lend_when != "locked" or facts.attendance != "unlocked":
        return None
    return (
        'the owner is present, and the device is lent only while the screen is locked (lend_when = "locked")'
    )


def _resuming(facts: Facts, now_s: float, wall: float) -> str | None:
    rest_s = _rest_s(facts, now_s)
    return None if rest_s <= 0 else f"the owner's need is over; lent again in {_span(rest_s)}"


def _unsupported(facts: Facts, now_s: float, wall: float) -> str | None:
    # R130: what cannot be measured is never taken for idle.
    seen = facts.measurement
    if not facts.owner.gpu_pressure.enabled or seen is None or seen.result != "unsupported":
        return None
    return f"the owner's load cannot be measured here: {seen.reason or 'unsupported'}"


def _attendance_unknown(facts: Facts, now_s: float, wall: float) -> str | None:
    # D11, D40: without it neither the profile nor the owner's presence can be told.
    if facts.attendance != "unknown":
        return None
    if not facts.owner.gpu_pressure.enabled and facts.owner.lend_when == "always":
        return None
    detail = f": {facts.attendance_detail}" if facts.attendance_detail else ""
    return f"whether the owner is present cannot be told{detail}"


def _no_readings(facts: Facts, now_s: float, wall: float) -> str | None:
    seen = facts.measurement
    if not facts.owner.gpu_pressure.enabled or (seen is not None and seen.result == "unsupported"):
        return None
    limit_s = gap_limit_s(facts.owner.gpu_pressure)
    if facts.valid_at_s is not None and now_s - facts.valid_at_s <= limit_s:
        return None
    wrong = ""
    if seen is not None and seen.result != "ok":
        wrong = f" (the last is {seen.result}{f': {seen.reason}' if seen.reason else ''})"
    if facts.valid_at_s is None:
        return f"there is no valid reading of the device yet{wrong}"
    return f"the newest valid reading is {_span(now_s - facts.valid_at_s)} old, over {limit_s:.0f} s{wrong}"


def _calibrating(facts: Facts, now_s: float, wall: float) -> str | None:
    pressure = facts.owner.gpu_pressure
    if not pressure.enabled or facts.calibrated or facts.attendance == "unknown":
        return None
    return (
        f"calibrating: {facts.warmup_have} of {pressure.warmup_samples} readings"
        f" of the {facts.attendance} profile"
    )


_TESTS: Final[dict[Why, Callable[[Facts, float, float], str | None]]] = {
    Why.NO_CONSENT: _no_consent,
    Why.TAKEN_BACK: _taken_back,
    Why.PRESSURE: _pressure,
    Why.OWNER_PROCESS: _owner_process,
    Why.OWNER_MEMORY: _owner_memory,
    Why.GAME: _game,
    Why.QUIET_HOURS: _quiet_hours,
    Why.OWNER_PRESENT: _owner_present,
    Why.RESUMING: _resuming,
    Why.UNSUPPORTED: _unsupported,
    Why.ATTENDANCE_UNKNOWN: _attendance_unknown,
    Why.NO_READINGS: _no_readings,
    Why.CALIBRATING: _calibrating,
}


def _retry(why: Why, facts: Facts, now_s: float, wall: float) -> float | None:
    """Seconds until a reason is over, where that can be told."""
    match why:
        case Why.TAKEN_BACK if facts.taken_back is not None and facts.taken_back.ends_at is not None:
            return max(facts.taken_back.ends_at - wall, 0.0)
        case Why.QUIET_HOURS if facts.quiet.ends_at is not None:
            return max(facts.quiet.ends_at - wall, 0.0)
        case Why.RESUMING:
            return _rest_s(facts, now_s)
        case Why.CALIBRATING:
            pressure = facts.owner.gpu_pressure
            return max(pressure.warmup_samples - facts.warmup_have, 1) * pressure.poll_ms / 1000
        case _:
            return None


def _rest_s(facts: Facts, now_s: float) -> float:
    if facts.needed_at_s is None:
        return 0.0
    return facts.needed_at_s + facts.owner.resume_after_s - now_s


def _span(seconds: float) -> str:
    """`48 s`, `12 min`, `3 h 20 min`: for people."""
    whole = math.ceil(max(seconds, 0.0))
    if whole < 120:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h" + (f" {rest} min" if rest else "")
