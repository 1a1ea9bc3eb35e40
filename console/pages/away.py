"""While you were away: what was lent, served and moved, since the last visit or for a day or a week."""

from __future__ import annotations

import math
import time
from typing import Any, Final, NamedTuple

from quart import Response, request

from console.pages.drain_words import OUTCOMES
from console.pages.layout import Layout
from console.pages.reason_words import why_words
from console.phrases import clock
from console.visitors import Visitor, visitor
from swapd.activity.view import times_text
from swapd.api import Service
from swapd.device_views import ActivityView
from swapd.errors import Code, SwapdError

DAY_S: Final = 86_400.0
PICTURE_WIDTH: Final = 600.0
PICTURE_HEIGHT: Final = 100.0
SPANS_S: Final = {"day": DAY_S, "week": 7 * DAY_S}
TABS: Final = (("visit", "Since your last visit"), ("day", "Last 24 hours"), ("week", "Last 7 days"))


class Report(NamedTuple):
    """The report of one span; `span_s` is its length, for the share that a device was lent."""

    activity: ActivityView
    heading: str
    span_s: float
    made_at: float


class Bar(NamedTuple):
    """One step of the picture, in its units: what of the step's time was lent, at the bottom."""

    x: float
    width: float
    height: float


class DeviceRow(NamedTuple):
    name: str
    lent_s: float
    share_pct: float
    pressure_events: int
    given_back: tuple[str, ...]


class AwayPage:
    """`/away`, and its sentence on the overview."""

    def __init__(self, service: Service, layout: Layout) -> None:
        self._service = service
        self._layout = layout

    async def view(self) -> Response:
        who = await visitor(self._service, request.headers)
        given = request.args.getlist("since") or ["visit"]
        if len(given) != 1 or given[0] not in dict(TABS):
            raise SwapdError(Code.INVALID_REQUEST, "since is visit, day or week")
        report = await self.report(who, given[0])
        return self._layout.page(
            who,
            "pages/away.html",
            path="/away",
            tabs=TABS,
            chosen=given[0],
            times=times_text,
            **context(report),
        )

    async def report(self, who: Visitor, since: str) -> Report:
        """What happened; a first visit has none before it, and gets the last day."""
        now = time.time()
        before = self._service.visit(who.caller)
        if since == "visit" and before is not None:
            heading, begin = f"While you were away, since {clock(before)}", before
        else:
            span = SPANS_S.get(since, DAY_S)
            heading, begin = ("The last 7 days" if since == "week" else "The last 24 hours"), now - span
        activity = await self._service.activity(who.caller, begin)
        recorded_from = max(activity.since, activity.recorded_since or 0.0)
        return Report(activity, heading, max(now - recorded_from, 1.0), now)


def context(report: Report) -> dict[str, Any]:
    """What the page's template shows."""
    activity = report.activity
    return {
        "report": report,
        "activity": activity,
        "rows": [
            DeviceRow(
                one.device,
                one.lent_s,
                min(one.lent_s / report.span_s * 100.0, 100.0),
                one.pressure_events,
                tuple(
                    f"{why_words(why).given_back or why} {times_text(times)}"
                    for why, times in sorted(one.given_back.items())
                ),
            )
            for one in activity.devices
        ],
        "bars": bars(activity, report.made_at),
        "begin": activity.since,
        "outcomes": [(count, words) for count, words in _outcomes(activity) if count],
    }


def _outcomes(activity: ActivityView) -> list[tuple[int, str]]:
    """Moves by outcome, those out of host memory apart: who came back from there had left once."""
    back = activity.returned
    counts = activity.moves | (
        {"completed_native": activity.moves["completed_native"] - back} if back else {}
    )
    told = [
        (count, OUTCOMES[outcome].counted if outcome in OUTCOMES else outcome)
        for outcome, count in sorted(counts.items())
    ]
    return [*told, (back, "came back from memory, nothing computed again")]


def bars(activity: ActivityView, now: float) -> list[Bar]:
    """When devices were lent, a bar a step; full height: all of them, all the time."""
    steps = max(math.ceil((now - activity.since) / activity.step_s), 1)
    width = PICTURE_WIDTH / steps
    full_s = activity.step_s * max(len(activity.devices), 1)
    return [
        Bar(
            round((step.at - activity.since) / activity.step_s * width, 1),
            round(width * 0.85, 1),
            round(min(step.lent_s / full_s, 1.0) * PICTURE_HEIGHT, 1),
        )
        for step in activity.course
    ]
