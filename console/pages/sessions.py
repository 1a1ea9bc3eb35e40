"""The sessions that run, are moved or wait: how far each is, never what it says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from quart import Response, request

from console.forms import owner_form
from console.pages.drain_words import Tag
from console.pages.layout import Layout, see_other
from console.pages.reason_words import reason
from console.phrases import plural
from console.visitors import Visitor, visitor
from swapd.api import Service
from swapd.errors import Code, SwapdError
from swapd.views import SessionView

SHOWN: Final = 50
"""Rows of one page; the counts are of all. What is shown is sent again twice a second while it changes."""
TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})

_STATES: Final = {
    "created": Tag("", "…", "Reading its prompt"),
    "running": Tag("lent", "●", "Writing"),
    "held": Tag("", "‖", "Held"),
    "migrating": Tag("", "→", "Moving"),
    "recovering": Tag("", "↻", "Being rebuilt"),
    "parked": Tag("rising", "◫", "Parked"),
    "completed": Tag("", "✓", "Finished"),
    "failed": Tag("wrong", "!", "Failed"),
    "cancelled": Tag("", "✕", "Cancelled"),
}


class Row(NamedTuple):
    """One session as the table shows it."""

    session: SessionView
    tag: Tag
    why: str
    """Why it makes no token now; empty where it does."""
    place: str


class SessionsPage:
    """`/sessions`, and ending one."""

    def __init__(self, service: Service, layout: Layout) -> None:
        self._service = service
        self._layout = layout

    async def view(self) -> Response:
        who = await visitor(self._service, request.headers)
        context = await self._context(who, request.args.get("page", ""))
        return self._layout.page(who, "pages/sessions.html", path="/sessions", **context)

    async def part(self, who: Visitor, name: str) -> str:
        """The living part; `name` is the number of the page, if it is not the first."""
        return self._layout.html("parts/_sessions.html", who=who, **await self._context(who, name))

    async def ask(self, session: str) -> Response:
        """Whether that is meant: ending a generation cannot be undone."""
        who = await visitor(self._service, request.headers)
        if who.role != "owner":
            raise SwapdError(Code.OPERATOR_REQUIRED)
        return await self._ask(who, session)

    async def cancel(self, session: str) -> Response:
        """End it; its client keeps what it has (H3)."""
        who, _ = await owner_form(self._service, request)
        await self._service.cancel_session(who.caller, session)
        return see_other("/sessions")

    async def _ask(self, who: Visitor, session: str) -> Response:
        view = await self._service.session(who.caller, session)
        return self._layout.page(
            who,
            "pages/session_end.html",
            path="/sessions",
            row=row(view),
            over=view.state in TERMINAL,
        )

    async def _context(self, who: Visitor, page: str) -> dict[str, Any]:
        sessions = sorted(
            await self._service.sessions(who.caller), key=lambda each: (each.created_at, each.id)
        )
        rows = [row(each) for each in sessions]
        counts = Counter(each.tag.label for each in rows)
        # Those of the last page may have ended while somebody looked at it.
        number = min(_number(page), max(math.ceil(len(rows) / SHOWN), 1))
        first = (number - 1) * SHOWN
        return {
            "summary": summary(rows),
            "counts": counts.most_common(),
            "rows": rows[first : first + SHOWN],
            "page": number,
            "more": len(rows) > first + SHOWN,
        }


def row(view: SessionView) -> Row:
    held = view.waits == Code.NO_READER and view.state in ("created", "running")
    return Row(
        session=view,
        tag=_STATES["held" if held else view.state],
        why=reason(view.waits),
        place=_place(view),
    )


def _place(view: SessionView) -> str:
    if view.state != "parked":
        return view.worker or "nowhere yet"
    return "nowhere: to be computed again" if view.without_kv else "host memory"


def summary(rows: Sequence[Row]) -> str:
    """The page's sentence."""
    if not rows:
        return "No generation is running."
    parked = sum(each.session.state == "parked" for each in rows)
    running = len(rows) - parked
    verb = "is" if running == 1 else "are"
    told = f"{plural(running, 'generation')} {verb} running" if running else "No generation is running"
    return f"{told}, {parked} parked." if parked else f"{told}."


def _number(page: str) -> int:
    """The number of a page; raises `not_found` for what is none."""
    if not page:
        return 1
    if not (page.isascii() and page.isdigit() and 0 < len(page) < 6 and int(page)):
        raise SwapdError(Code.NOT_FOUND)
    return int(page)
