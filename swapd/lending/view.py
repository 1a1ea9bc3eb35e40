"""A lent device as its owner, operators and tools see it (R43, R50, R60-R70). Pure."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, TypeVar

from msgspec import UNSET, UnsetType

from swapd.config import Config, PressureConfig
from swapd.device_views import Absorption, DeviceView, LearnedProfile, LearningView, ProfileView, TakenBack
from swapd.lending.device import LentDevice, Verdict
from swapd.lending.reasons import Why
from swapd.pressure.absorption import absorbed_after_s
from swapd.pressure.bounds import effective_cap_pct, fixed_threshold_pct, gap_limit_s
from swapd.pressure.reading import Profile, ProfileSummary
from swapd.pressure.texts import fixed_text, threshold_text

T = TypeVar("T")

STARTING: Final = Verdict(False, True, (Why.NO_READINGS,), "nothing was measured yet")
"""What is told of a device before it was first judged."""


class Freshness(NamedTuple):
    """Whether readings come: `ok`, or what is wrong and since when."""

    readings: str
    detail: str | None
    reading_pct: float | None
    age_s: float | None


def device_view(device: LentDevice, config: Config, now_wall: float, now_boot: float) -> DeviceView:
    """What is known of a device now; `now_boot` is CLOCK_BOOTTIME, as measurements have it.

    `now_wall` is seconds since 1970. Keys that are not known yet are absent (R66).
    """
    pressure = config.owner.gpu_pressure
    verdict = device.verdict or STARTING
    lent = device.state == "lent" and verdict.admit
    profile = profile_in_force(device, config)
    learned = {summary.profile: summary for summary in summaries(device, pressure)}
    summary = learned.get(profile) if profile is not None else None
    fresh = freshness(device, pressure, now_boot)
    threshold = _threshold(summary, pressure)
    measured = device.measurement
    return DeviceView(
        name=device.name,
        kind=device.config.kind,
        workers=device.workers,
        state=device.state,
        admitting=lent,
        why=None if lent or not verdict.reasons else str(verdict.reasons[0]),
        reasons=tuple(str(why) for why in verdict.reasons),
        sentence=_sentence(device, verdict),
        threshold_text=_threshold_text(summary, pressure),
        mode=effective_mode(pressure),
        attendance=device.attendance,
        attendance_detail=device.attendance_detail,
        profile=profile,
        engaged=device.pressure is not None and device.pressure.engaged,
        calibrated=_calibrated(summary, pressure),
        reading_pct=fresh.reading_pct,
        reading_age_s=fresh.age_s,
        readings=fresh.readings,
        readings_detail=fresh.detail,
        profiles={name: _profile_view(each, pressure.warmup_samples) for name, each in learned.items()},
        threshold_pct=_known(threshold),
        baseline_pct=_known(summary.baseline_pct) if summary is not None else UNSET,
        target_pct=_known(summary.target_pct) if summary is not None else UNSET,
        learned_samples=summary.learned_samples if summary is not None else UNSET,
        learned_s=summary.learned_s if summary is not None else UNSET,
        hint=_known(summary.hint) if summary is not None else UNSET,
        taken_back=_in_force(device, now_wall),
        resume_at=verdict.resume_at,
        last_give_back=device.give_back,
        held_up=device.held_up,
        uuid=measured.uuid if measured is not None else None,
        product=measured.product if measured is not None else None,
        memory_used_bytes=measured.memory_used_bytes if measured is not None else None,
        memory_total_bytes=measured.memory_total_bytes if measured is not None else None,
    )


def effective_mode(pressure: PressureConfig) -> str:
    """The mode that is run: the retired `adaptive` is `calibrated` (R78)."""
    if not pressure.enabled:
        return "off"
    return "fixed" if pressure.mode == "fixed" else "calibrated"


def profile_in_force(device: LentDevice, config: Config) -> Profile | None:
    """Whose learning counts now; None while attendance is unknown. Headless machines have one (D34)."""
    if config.owner.presence == "headless":
        return "unlocked"
    return None if device.attendance == "unknown" else device.attendance


def summaries(device: LentDevice, pressure: PressureConfig) -> list[ProfileSummary]:
    """What is learned; nothing in fixed mode, where a usable threshold implies no learning (R70)."""
    if device.pressure is None or effective_mode(pressure) != "calibrated":
        return []
    return list(device.pressure.summaries())


def freshness(device: LentDevice, pressure: PressureConfig, now_boot: float) -> Freshness:
    """Whether the newest valid reading can be relied on, and if not, the cause (R59)."""
    if device.pressure is None:
        return Freshness("off", "gpu_pressure.enabled is false", None, None)
    age_s = None if device.valid_at_s is None else max(now_boot - device.valid_at_s, 0.0)
    stale = None if age_s is None or age_s <= gap_limit_s(pressure) else f"no reading for {age_s:.0f} s"
    measured = device.measurement
    if measured is None:
        return Freshness("missing", stale or "nothing was measured yet", None, age_s)
    if measured.result in ("ok", "first"):
        if stale is not None:
            return Freshness("missing", stale, None, age_s)
        if measured.result == "first":
            return Freshness("missing", "measuring has just begun", None, age_s)
        return Freshness("ok", None, measured.reading_pct, age_s)
    cause = "; ".join(part for part in (measured.reason, stale) if part)
    return Freshness(measured.result, cause or None, None, age_s)


def _threshold_text(summary: ProfileSummary | None, pressure: PressureConfig) -> str | None:
    if effective_mode(pressure) == "fixed":
        return fixed_text(pressure.threshold_pct)
    if summary is None or summary.threshold_pct is None:
        return None
    return threshold_text(summary.threshold_pct, summary.target_pct, summary.learned_s)  # R50


def _in_force(device: LentDevice, now_wall: float) -> TakenBack | None:
    taken = device.taken_back
    return None if taken is None or (taken.ends_at is not None and taken.ends_at <= now_wall) else taken


def _sentence(device: LentDevice, verdict: Verdict) -> str:
    if verdict.admit and device.state == "returning":
        return "its workers are starting again"
    return verdict.sentence


def _threshold(summary: ProfileSummary | None, pressure: PressureConfig) -> float | None:
    if effective_mode(pressure) == "fixed":
        return pressure.threshold_pct
    return summary.threshold_pct if summary is not None else None


def _calibrated(summary: ProfileSummary | None, pressure: PressureConfig) -> bool:
    if effective_mode(pressure) == "fixed":
        return fixed_threshold_pct(pressure) is not None  # R70
    return summary is not None and summary.calibrated


def _profile_view(summary: ProfileSummary, warmup_samples: int) -> ProfileView:
    return ProfileView(
        calibrated=summary.calibrated,
        warmup_have=summary.warmup_have,
        warmup_samples=warmup_samples,
        learned_samples=summary.learned_samples,
        learned_s=summary.learned_s,
        threshold_pct=_known(summary.threshold_pct),
        baseline_pct=_known(summary.baseline_pct),
        target_pct=_known(summary.target_pct),
        maturing_from_pct=_known(summary.maturing_from_pct),
        hint=_known(summary.hint),
    )


def _known(value: T | None) -> T | UnsetType:
    """What is not known yet has no key (R66)."""
    return UNSET if value is None else value


def learning_view(device: LentDevice, config: Config) -> LearningView:
    """The histograms of a device with what follows from them."""
    pressure = config.owner.gpu_pressure
    return LearningView(
        mode=effective_mode(pressure),
        quantile=pressure.learn_quantile,
        half_life_h=pressure.learn_half_life_h,
        floor_pct=pressure.floor_pct,
        cap_pct=effective_cap_pct(pressure),
        profiles=tuple(
            LearnedProfile(
                profile=summary.profile,
                calibrated=summary.calibrated,
                learned_s=summary.learned_s,
                bins=summary.bins,
                baseline_pct=summary.baseline_pct,
                target_pct=summary.target_pct,
                threshold_pct=summary.threshold_pct,
                absorption=_absorption(summary, pressure),
            )
            for summary in summaries(device, pressure)
        ),
    )


def _absorption(summary: ProfileSummary, pressure: PressureConfig) -> tuple[Absorption, ...]:
    if summary.threshold_pct is None or summary.target_pct is None:
        return ()
    threshold, target = summary.threshold_pct, summary.target_pct
    lowest, highest = math.floor(threshold) + 1.0, math.ceil(effective_cap_pct(pressure)) - 1.0
    return tuple(
        Absorption(load, absorbed_after_s(pressure, summary.bins, threshold, target, load))
        for load in dict.fromkeys((lowest, highest))
        if lowest <= highest
    )
