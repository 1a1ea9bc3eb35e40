"""One drain: the sentence, its deadline, a row a session, and how to cancel it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from quart import Response, request

from console.forms import owner_form
from console.pages.drain_words import MODES, ROWS, STATES, reasons, tell, why
from console.pages.layout import Layout, see_other
from console.visitors import Visitor, visitor
from swapd.api import Service


class DrainPage:
    """`/drains/<id>`."""

    def __init__(self, service: Service, layout: Layout) -> None:
        self._service = service
        self._layout = layout

    async def view(self, drain: str) -> Response:
        who = await visitor(self._service, request.headers)
        context = await self._context(who, drain)
        return self._layout.page(who, "pages/drain.html", path="/drains", **context)

    async def part(self, who: Visitor, name: str) -> str:
        """The living part."""
        return self._layout.html("parts/_drain.html", who=who, **await self._context(who, name))

    async def cancel(self, drain: str) -> Response:
        """Reopen the worker; moves under way come to a clean end first (H61)."""
        who, _ = await owner_form(self._service, request)
        await self._service.cancel_drain(who.caller, drain)
        return see_other(f"/drains/{quote(drain, safe='')}")

    async def _context(self, who: Visitor, drain: str) -> dict[str, Any]:
        view = await self._service.drain(who.caller, drain)
        told = tell(view)
        return {
            "drain": view,
            "told": told,
            "rows": told.rows[:ROWS],
            "left_out": max(len(told.rows) - ROWS, 0),
            "state": STATES[view.state],
            "origin": why(view),
            "reasons": reasons(view),
            "mode": MODES[view.mode],
            "deadline_at": view.created_at + view.deadline_s,
        }
