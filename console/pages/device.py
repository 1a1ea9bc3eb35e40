"""One device: six hours of its load, what is normal on it and how that is known, and what happened to it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from quart import Response, request

from console.errors import reply
from console.pages.device_words import attendance_text, free_text, running_on, taken_text, words
from console.pages.event_words import event_words
from console.pages.layout import Layout
from console.pages.overview import take_back_choices
from console.phrases import duration, percent
from console.plots import Bars, bars, load_plot
from console.trends import happened, trend
from console.visitors import Visitor, visitor
from swapd.api import Service
from swapd.device_views import LearnedProfile, LearningView

SPAN_S: Final = 6 * 3600.0
PICTURE_POINTS: Final = 360
PLOT_POINTS: Final = 720
EVENTS_SHOWN: Final = 40
PROFILE_NAMES: Final = {"unlocked": "While you are at the machine", "locked": "While the screen is locked"}


class LoadSeries(msgspec.Struct, frozen=True):
    """The columns of a plot; `at` is seconds since 1970, `engaged` is 100 or None."""

    at: list[float]
    load_pct: list[float | None]
    threshold_pct: list[float | None]
    engaged: list[float | None]


class ProfileCard(NamedTuple):
    """One profile as its histogram and sentences."""

    name: str
    profile: LearnedProfile
    bars: Bars
    sentences: tuple[str, ...]


class DevicePage:
    """`/devices/<device>`."""

    def __init__(self, service: Service, layout: Layout) -> None:
        self._service = service
        self._layout = layout

    async def view(self, device: str) -> Response:
        """The page. Raises `device_unknown`."""
        who = await visitor(self._service, request.headers)
        context = await self._context(who, device)
        points = await trend(self._service, who.caller, device, SPAN_S, PICTURE_POINTS)
        return self._layout.page(who, "pages/device.html", path="", plot=load_plot(points), **context)

    async def part(self, who: Visitor, device: str) -> str:
        """The living part."""
        return self._layout.html("parts/_device.html", who=who, plot=None, **await self._context(who, device))

    async def load(self, device: str) -> Response:
        """The six hours as columns, for the plot that a script draws over the picture."""
        who = await visitor(self._service, request.headers)
        points = await self._service.trend(who.caller, device, SPAN_S, PLOT_POINTS)
        return reply(
            LoadSeries(
                at=[point.at for point in points],
                load_pct=[None if p.load_pct is None else round(p.load_pct, 1) for p in points],
                threshold_pct=[
                    None if p.threshold_pct is None else round(p.threshold_pct, 1) for p in points
                ],
                engaged=[100.0 if point.engaged else None for point in points],
            )
        )

    async def _context(self, who: Visitor, name: str) -> dict[str, Any]:
        device = await self._service.device(who.caller, name)
        learning = await self._service.learning(who.caller, name)
        sessions = running_on(device, [s.worker for s in await self._service.sessions(who.caller)])
        events = await happened(self._service, who.caller, name)
        return {
            "device": device,
            "words": words(device, sessions),
            "sessions": sessions,
            "learning": learning,
            "profiles": [_card(each, learning) for each in learning.profiles],
            "in_force": PROFILE_NAMES.get(device.profile or ""),
            "events": [event_words(event) for event in (events or ())[:EVENTS_SHOWN]],
            "events_unread": events is None,
            "choices": take_back_choices(device),
            "free_text": free_text(device),
            "taken_text": taken_text(device),
            "you": attendance_text(device),
        }


def _card(profile: LearnedProfile, learning: LearningView) -> ProfileCard:
    return ProfileCard(
        PROFILE_NAMES[profile.profile], profile, bars(profile.bins), tuple(_sentences(profile, learning))
    )


def _sentences(profile: LearnedProfile, learning: LearningView) -> list[str]:
    """What the histogram says, and what it cannot tell (R9)."""
    if profile.baseline_pct is None or profile.threshold_pct is None:
        return [f"Not enough is known yet: {duration(profile.learned_s)} of readings so far."]
    half = duration(learning.half_life_h * 3600)
    found = [
        f"For {percent(learning.quantile * 100)} of the time you used {percent(profile.baseline_pct)} or "
        f"less, as learned from {duration(profile.learned_s)}. What is {half} old counts half.",
        f"Your work is noticed from {percent(profile.threshold_pct)} on. Less than that is never noticed, "
        "however long it lasts.",
    ]
    if not profile.absorption:
        return [*found, "A load that is noticed is never taken for normal, however long it lasts."]
    first, last = profile.absorption[0], profile.absorption[-1]
    if first.after_s is None or last.after_s is None:
        return [*found, "The threshold does not rise by itself, so no load is ever taken for normal."]
    if first == last:
        span = f"{percent(first.load_pct)} would be taken for normal after {duration(first.after_s)} of it"
    else:
        span = (
            f"{percent(first.load_pct)} would be taken for normal after {duration(first.after_s)} of it, "
            f"one of {percent(last.load_pct)} after {duration(last.after_s)}"
        )
    return [*found, f"A steady load of {span}; from {percent(learning.cap_pct)} on, never."]
