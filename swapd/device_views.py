"""What the owner's views of lent devices have: state, load, what was learned, and what happened meanwhile.

The console, HTTP and the ops socket share these, as they do `swapd.views`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

TakeBackUntil = Literal["told", "unlock", "time"]
"""How a take-back ends: when the owner says so, when the screen is next unlocked, or at a time."""


class TakeBack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/devices/{name}/take-back`. `for_s` alone means until that time from now.

    With nothing said it is until the owner says so. "unlock" ends with the next change to unlocked.
    """

    for_s: float | None = None
    until: TakeBackUntil | None = None


class TakenBack(msgspec.Struct, frozen=True):
    """A take-back in force. Times are seconds since 1970."""

    since: float
    until: TakeBackUntil
    ends_at: float | None = None


class ProfileView(msgspec.Struct, frozen=True):
    """What was learned in one attendance state; absent keys are not known yet (R65-R69)."""

    calibrated: bool
    warmup_have: int
    warmup_samples: int
    learned_samples: int
    learned_s: float
    threshold_pct: float | msgspec.UnsetType = msgspec.UNSET
    baseline_pct: float | msgspec.UnsetType = msgspec.UNSET
    target_pct: float | msgspec.UnsetType = msgspec.UNSET
    maturing_from_pct: float | msgspec.UnsetType = msgspec.UNSET
    hint: str | msgspec.UnsetType = msgspec.UNSET


class GiveBackView(msgspec.Struct, frozen=True):
    """One time that the device was given back (B17). `free_in_s` is None while it is not free yet.

    Free: the workers' processes are reaped and the device's memory is back at what it was before them.
    """

    why: str
    began_at: float
    free_in_s: float | None
    drains: tuple[str, ...]
    closed_in_ms: float | None = None
    """From the reason (the reading, or the request) to closed admission."""
    memory_back: bool | None = None


class HeldUp(msgspec.Struct, frozen=True):
    """Why a device does not come back: the store failed, and nothing on it can be moved or ended durably.

    `ends_at`: when its workers are ended even so, seconds since 1970. None: not before a restart, because
    they may hold a session whose move was under way, and which side owns it is not known.
    """

    ends_at: float | None
    processes: dict[str, int]
    """The workers that are waited for, with their process ids."""


class DeviceView(msgspec.Struct, frozen=True):
    """One lent device in `/status` and `GET /v1/devices` (R43, R50, R60-R70).

    state: lent         new work may come
           refused      no new work; what runs stays (calibrating, no readings, attendance unknown)
           vacating     what runs is leaving
           free         the owner has it
           returning    its workers are starting again
    """

    name: str
    kind: Literal["nvml", "cpu"]
    workers: tuple[str, ...]
    state: Literal["lent", "refused", "vacating", "free", "returning"]
    admitting: bool
    why: str | None
    """A reason of `swapd.lending.reasons.Why`, the first that holds; None while lent."""
    reasons: tuple[str, ...]
    sentence: str
    """Why, in one sentence for people."""
    threshold_text: str | None
    """`Threshold 34%, rising toward 40% (learned from 52 h)` (R50)."""
    mode: str
    """`calibrated`, `fixed`, or `off` where nothing is measured."""
    attendance: Literal["locked", "unlocked", "unknown"]
    attendance_detail: str | None
    profile: str | None
    engaged: bool
    calibrated: bool
    """Of the profile in force; in fixed mode, whether the threshold is usable (R70)."""
    reading_pct: float | None
    reading_age_s: float | None
    readings: str
    """`ok`, or what is wrong: `failed`, `invalid`, `unsupported`, `asleep`, `missing`; `off` where nothing
    is measured by configuration."""
    readings_detail: str | None
    profiles: dict[str, ProfileView]
    """By `locked` and `unlocked`; one, `unlocked`, on a headless machine (D34)."""
    threshold_pct: float | msgspec.UnsetType = msgspec.UNSET
    baseline_pct: float | msgspec.UnsetType = msgspec.UNSET
    target_pct: float | msgspec.UnsetType = msgspec.UNSET
    learned_samples: int | msgspec.UnsetType = msgspec.UNSET
    learned_s: float | msgspec.UnsetType = msgspec.UNSET
    hint: str | msgspec.UnsetType = msgspec.UNSET
    taken_back: TakenBack | None = None
    resume_at: float | None = None
    """When it may be lent again as far as is known now, seconds since 1970."""
    last_give_back: GiveBackView | None = None
    held_up: HeldUp | None = None
    """While it is `vacating` and the store has failed."""
    uuid: str | None = None
    product: str | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


class SamplePoint(msgspec.Struct, frozen=True):
    """One reading of the last six hours (R128). `at` is seconds since 1970."""

    at: float
    result: str
    attendance: Literal["locked", "unlocked", "unknown"]
    reading_pct: float | None
    threshold_pct: float | None
    engaged: bool


class Absorption(msgspec.Struct, frozen=True):
    """After how many observed seconds a steady load counts as normal; None: never."""

    load_pct: float
    after_s: float | None


class LearnedProfile(msgspec.Struct, frozen=True):
    """What is learned of one attendance state, in full. `bins`: index of a half percent, and its weight."""

    profile: Literal["locked", "unlocked"]
    calibrated: bool
    learned_s: float
    bins: tuple[tuple[int, float], ...]
    baseline_pct: float | None
    target_pct: float | None
    threshold_pct: float | None
    absorption: tuple[Absorption, ...] = ()
    """Of a load just above the threshold and of one just below the cap, where there is room between them."""


class LearningView(msgspec.Struct, frozen=True):
    """What is learned of a device, and the settings that it is learned by; no profiles in fixed mode."""

    mode: str
    quantile: float
    half_life_h: float
    floor_pct: float
    cap_pct: float
    profiles: tuple[LearnedProfile, ...]


class TrendPoint(msgspec.Struct, frozen=True):
    """One stretch of a device's load, for a plot: highest reading, last threshold, whether ever engaged.

    `at` is its beginning, seconds since 1970; `load_pct` is None where nothing valid was read.
    """

    at: float
    load_pct: float | None
    threshold_pct: float | None
    engaged: bool


class DeviceEvent(msgspec.Struct, frozen=True):
    """Something that happened to a device: engaged, released, taken_back, vacated, free, lent …"""

    at: float
    device: str
    kind: str
    why: str | None = None
    seconds: float | None = None


class DeviceActivity(msgspec.Struct, frozen=True):
    """What one device did since a time. `given_back` counts give-backs by the reason that began them."""

    device: str
    lent_s: float
    pressure_events: int
    given_back: dict[str, int]


class ActivityStep(msgspec.Struct, frozen=True):
    """What was done in one step of time: `lent_s` of all devices together."""

    at: float
    lent_s: float
    tokens: int


class ActivityView(msgspec.Struct, frozen=True):
    """While you were away. Times are seconds since 1970; `since` is the begin of five minutes.

    `recorded_since` is when recording began, if that was later. `came_first`: how often a device was given
    back because its owner needed it. `longest_pause_ms`: the longest that a client waited for a move.
    """

    since: float
    recorded_since: float | None
    tokens: int
    devices: tuple[DeviceActivity, ...]
    lent_s: float
    pressure_events: int
    came_first: int
    moves: dict[str, int]
    """Finished moves by outcome; of the completed ones `returned` were out of host memory."""
    moved: int
    """Sessions that left a worker and went on, each time counted; a way back from host memory is no other."""
    longest_pause_ms: float | None
    sentence: str
    """All of it in one sentence for people."""
    step_s: float = 3600.0
    course: tuple[ActivityStep, ...] = ()
    """The same step by step from `since` on; steps in which nothing was done are left out."""
    returned: int = 0
