"""The last six hours of one device, replayed under the settings in force and under new ones. Pure.

What can be known: the readings as they were stored, with who was at the machine. What was learned six hours
ago is not known; both replays begin with what is learned now, so that they differ by the settings alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from swapd.config import OwnerConfig, PressureConfig
from swapd.device_views import SamplePoint
from swapd.pressure.calibration import DevicePressure
from swapd.pressure.reading import Profile, ProfileState, reading_from
from swapd.pressure.replay import Totals
from swapd.pressure.restoring import same_ignore_list
from swapd.settings.fields import FIELDS, PRESSURE
from swapd.settings.views import DevicePreview, Replayed

CHECK_EVERY: Final = 256
"""Readings between two looks at whether anybody still waits."""

Learned = Mapping[Profile, ProfileState]


class Given(NamedTuple):
    """What is known of one device: its readings, oldest first, and what was learned, by side."""

    device: str
    samples: Sequence[SamplePoint]
    running: Learned
    new: Learned


class Stopped(Exception):
    """Nobody waits for this replay any more, or it has taken too long."""


def compare(
    given: Given, running: OwnerConfig, new: OwnerConfig, stopped: Callable[[], bool]
) -> DevicePreview:
    """Replay both sides. Raises `Stopped` soon after `stopped()` says so."""
    samples = given.samples
    recorded = sum(
        sample.engaged and not (index and samples[index - 1].engaged) for index, sample in enumerate(samples)
    )
    if not samples:
        return DevicePreview(given.device, "No readings of the last six hours.", 0, None, 0, None, None)
    headless = running.presence == "headless"
    before = _replayed(samples, running.gpu_pressure, given.running, headless, stopped)
    after = _replayed(samples, new.gpu_pressure, given.new, headless, stopped)
    return DevicePreview(
        device=given.device,
        sentence=sentence(before, after),
        readings=sum(sample.reading_pct is not None for sample in samples),
        since=samples[0].at,
        recorded_events=recorded,
        running=before,
        new=after,
    )


def sentence(before: Replayed, after: Replayed) -> str:
    """`3 pressure events, would be 1`."""
    events = f"{before.events or 'No'} pressure event{'' if before.events == 1 else 's'}"
    would = "the same" if after.events == before.events else str(after.events or "none")
    return f"{events}, would be {would}"


def notes(running: OwnerConfig, new: OwnerConfig, changed: frozenset[str]) -> tuple[str, ...]:
    """What a replay cannot know of a change, in sentences."""
    said = [
        "Both replays begin with what is learned now; these six hours are part of that already.",
    ]
    pressure = {key for key in changed if FIELDS[key].table == PRESSURE}
    if not same_ignore_list(running.ignore, new.ignore):
        said.append(
            "Another list of programs that do not count starts learning anew: the new side begins with"
            " nothing learned. What those programs used was taken out of the readings by the old list."
        )
    if running.gpu_pressure.mode == "fixed" and new.gpu_pressure.mode != "fixed":
        said.append("The new side begins with what was learned before the threshold was fixed, if anything.")
    if changed - pressure - {"ignore"}:
        said.append(
            "Only readings are replayed. Quiet hours, free memory, games, programs that always count, the"
            " screen's lock and the rest before lending are not part of it."
        )
    return tuple(said)


def _replayed(
    samples: Sequence[SamplePoint],
    config: PressureConfig,
    learned: Learned,
    headless: bool,
    stopped: Callable[[], bool],
) -> Replayed:
    device = DevicePressure(config, headless=headless)
    for profile, state in learned.items():
        device.restore(profile, state)
    totals = Totals()
    refused = 0
    for number, sample in enumerate(samples):
        if number % CHECK_EVERY == 0 and stopped():
            raise Stopped
        decision = device.observe(
            sample.at, reading_from(sample.result, sample.reading_pct), sample.attendance
        )
        totals.add(decision)
        refused += decision.profile is not None and not decision.calibrated
    last = totals.last
    return Replayed(
        totals.engagements, totals.engaged_s, last.threshold_pct if last is not None else None, refused
    )
