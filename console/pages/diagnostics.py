"""Diagnostics: how each part of the service is, the latest log lines, and an archive for whoever helps."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple

from quart import Response, request

from console.api.diagnostics import archive_response
from console.forms import owner_form
from console.pages.layout import Layout, see_other
from console.phrases import plural
from console.series import families
from console.visitors import Visitor, visitor
from swapd.api import Service
from swapd.errors import Code, SwapdError
from swapd.views import DiagnosticsView, LogLine, PartView, PartWord

SIGNS: Final[dict[PartWord, tuple[str, str]]] = {
    "ok": ("●", "lent"),
    "waiting": ("◔", "waiting"),
    "off": ("○", "off"),
    "trouble": ("▲", "wrong"),
}
"""The sign and the look of each word."""
ORDER: Final[tuple[PartWord, ...]] = ("trouble", "waiting", "off", "ok")
MINUTES: Final = (5, 15, 60)
LEVELS: Final = {"warning": "rising", "error": "wrong", "critical": "wrong"}


class Line(NamedTuple):
    """A log line as it is shown: `time` in local time, `tone` the look of its level."""

    time: str
    iso: str
    tone: str
    line: LogLine


class DiagnosticsPage:
    """`/diagnostics`, and what an owner does there."""

    def __init__(self, service: Service, layout: Layout) -> None:
        self._service = service
        self._layout = layout

    async def view(self) -> Response:
        who = await visitor(self._service, request.headers)
        return await self._page(who)

    async def part(self, who: Visitor, _name: str) -> str:
        """The living part."""
        return self._layout.html("parts/_diagnostics.html", who=who, **await self._context(who))

    async def archive(self) -> Response:
        """The archive as a download (R128); a refusal is told on the page."""
        who = await visitor(self._service, request.headers)
        try:
            return archive_response(await self._service.export_diagnostics(who.caller))
        except SwapdError as error:
            return await self._page(who, error)

    async def debug(self) -> Response:
        """Log every decision for some minutes, or end that (R129)."""
        who, form = await owner_form(self._service, request)
        try:
            minutes = form.get("minutes", "")
            if minutes not in {"0", *map(str, MINUTES)}:
                raise SwapdError(Code.INVALID_REQUEST, "choose one of the times that are offered")
            await self._service.log_decisions(who.caller, int(minutes) * 60.0)
        except SwapdError as error:
            return await self._page(who, error)
        return see_other("/diagnostics")

    async def _page(self, who: Visitor, problem: SwapdError | None = None) -> Response:
        context = await self._context(who)
        return self._layout.page(
            who,
            "pages/diagnostics.html",
            path="/diagnostics",
            problem=problem,
            families=families(self._service.metrics(who.caller)),
            **context,
        )

    async def _context(self, who: Visitor) -> dict[str, Any]:
        view = await self._service.diagnostics(who.caller)
        return {
            "view": view,
            "summary": summary(view),
            "parts": in_order(view.parts),
            "signs": SIGNS,
            "minutes": MINUTES,
            "lines": [shown(line) for line in reversed(view.log)],
        }


def summary(view: DiagnosticsView) -> str:
    """The page's sentence."""
    troubled = [part.name for part in view.parts if part.word == "trouble"]
    waiting = sum(part.word == "waiting" for part in view.parts)
    if len(troubled) == 1:
        return f"Something needs a look: {troubled[0]}."
    if troubled:
        return f"{len(troubled)} parts need a look."
    if waiting:
        return f"Nothing is wrong; {plural(waiting, 'part is', 'parts are')} not ready yet."
    return "Everything works."


def in_order(parts: tuple[PartView, ...]) -> list[PartView]:
    """What needs a look first."""
    return sorted(parts, key=lambda part: ORDER.index(part.word))


def shown(line: LogLine) -> Line:
    """A line with its time as people read it."""
    try:
        at = datetime.fromisoformat(line.time).astimezone()
    except ValueError:
        return Line(line.time, "", LEVELS.get(line.level, ""), line)
    return Line(at.strftime("%H:%M:%S"), at.isoformat(), LEVELS.get(line.level, ""), line)
