"""Workers and their drains: what is under way, what was, and how an operator begins one."""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import quote

from quart import Response, request

from console.forms import owner_form
from console.pages.drain_words import (
    MODES,
    OFFERED,
    ROWS,
    STATES,
    Tag,
    ahead_order,
    fate,
    foreseen,
    longest_pause_ms,
    outcomes,
    reasons,
    tell,
    why,
)
from console.pages.layout import Layout, see_other
from console.pages.reason_words import reason
from console.phrases import plural
from console.visitors import Visitor, visitor
from swapd.api import Service
from swapd.errors import Code, SwapdError
from swapd.migration.askers import MAX_REASON_CHARS
from swapd.views import DrainMode, DrainView, Switch, WorkerView

HISTORY: Final = 20
"""Drains on one page of the history."""
SWITCHES: Final[dict[str, Switch]] = {"admission": "admission", "migration": "migration"}

_WORKERS: Final = {
    "starting": Tag("", "◔", "Starting"),
    "ready": Tag("lent", "●", "Ready"),
    "closed": Tag("", "○", "Closed"),
    "draining": Tag("rising", "→", "Draining"),
    "quarantined": Tag("wrong", "!", "Not trusted"),
    "suspect": Tag("rising", "▲", "Not heard of"),
    "dead": Tag("wrong", "!", "Lost"),
    "stopped": Tag("", "○", "Stopped"),
}


class WorkerRow(NamedTuple):
    worker: WorkerView
    tag: Tag
    why: str


class DrainRow(NamedTuple):
    drain: DrainView
    tag: Tag
    origin: str
    reasons: list[str]
    told: str
    done: int
    pause_ms: float | None


class DrainsPage:
    """`/drains` and `/drains/new`."""

    def __init__(self, service: Service, layout: Layout) -> None:
        self._service = service
        self._layout = layout

    async def view(self) -> Response:
        who = await visitor(self._service, request.headers)
        before = request.args.get("before", "")
        context = await self._context(who, before)
        return self._layout.page(who, "pages/drains.html", path="/drains", **context)

    async def part(self, who: Visitor, name: str) -> str:
        """The living part; `name` is the drain before which the history begins, if it is not the newest."""
        return self._layout.html("parts/_drains.html", who=who, **await self._context(who, name))

    async def preflight(self) -> Response:
        """`/drains/new`: what a drain would do, before it is begun."""
        who = await visitor(self._service, request.headers)
        worker, mode = request.args.get("worker", ""), _mode(request.args.get("mode", "native"))
        if not worker:
            return see_other("/drains")
        try:
            context = await self._ahead(who, f"{mode}.{worker}")
        except SwapdError as error:
            if error.code is Code.DRAIN_EXISTS and error.detail:
                return see_other(f"/drains/{quote(error.detail, safe='')}")
            if error.code is not Code.PARKING_OFF:
                raise
            context = {"ahead": None, "rows": [], "summary": f"{worker} cannot be drained so.", "why": error}
        return self._layout.page(
            who,
            "pages/drain_new.html",
            path="/drains",
            worker=worker,
            mode=mode,
            modes={each: MODES[each][0] for each in OFFERED},
            reason_chars=MAX_REASON_CHARS,
            meaning=MODES[mode][1],
            **context,
        )

    async def ahead(self, who: Visitor, name: str) -> str:
        """The living part of a pre-flight; `name` is its mode, a dot, and its worker."""
        return self._layout.html("parts/_preflight.html", who=who, **await self._ahead(who, name))

    async def start(self) -> Response:
        """Begin a drain and show it (H50)."""
        who, form = await owner_form(self._service, request)
        worker, mode = form.get("worker", ""), _mode(form.get("mode", "native"))
        deadline_s, reason = _seconds(form.get("deadline_s", "")), form.get("reason", "")
        try:
            view = await self._service.start_drain(
                who.caller, worker, deadline_s, "operator", mode, reason or None
            )
        except SwapdError as error:
            if error.code is Code.DRAIN_EXISTS and error.detail:
                return see_other(f"/drains/{quote(error.detail, safe='')}")
            raise
        return see_other(f"/drains/{quote(view.id, safe='')}")

    async def turn_switch(self, switch: str) -> Response:
        """Stop or reopen admission, or moves, for the whole service (H163, A13)."""
        who, form = await owner_form(self._service, request)
        if switch not in SWITCHES or form.get("on") not in ("yes", "no"):
            raise SwapdError(Code.NOT_FOUND)
        await self._service.turn_switch(who.caller, SWITCHES[switch], on=form["on"] == "yes")
        return see_other("/drains#operator")

    async def clear_quarantine(self, worker: str) -> Response:
        """Trust a worker again (H79)."""
        who, _ = await owner_form(self._service, request)
        try:
            await self._service.clear_quarantine(who.caller, worker)
        except SwapdError as error:
            context = await self._context(who, "")
            return self._layout.page(who, "pages/drains.html", path="/drains", problem=error, **context)
        return see_other("/drains#operator")

    async def _context(self, who: Visitor, before: str) -> dict[str, Any]:
        drains = await self._service.drains(who.caller, before or None, HISTORY)
        workers = [_worker(each) for each in await self._service.workers(who.caller)]
        # A drain is on its worker's row, whatever page of the history is open.
        names = {each.worker.drain for each in workers if each.worker.drain is not None}
        known = {each.id: each for each in drains}
        running = [
            known[name] if name in known else await self._service.drain(who.caller, name)
            for name in sorted(names)
        ]
        return {
            "summary": summary(running),
            "workers": workers,
            "running": [_row(each) for each in running],
            "history": [_row(each) for each in drains if each.finished_at is not None],
            "before": before,
            "older": drains[-1].id if len(drains) == HISTORY else None,
            "switches": await self._service.switches(who.caller),
            "quarantined": [each.worker for each in workers if each.worker.quarantine is not None],
        }

    async def _ahead(self, who: Visitor, name: str) -> dict[str, Any]:
        mode, _, worker = name.partition(".")
        ahead = await self._service.preflight(who.caller, worker, _mode(mode))
        return {
            "ahead": ahead,
            "rows": [(each, *fate(each)) for each in sorted(ahead.sessions, key=ahead_order)[:ROWS]],
            "left_out": max(len(ahead.sessions) - ROWS, 0),
            "summary": foreseen(ahead.sessions),
            "why": None,
        }


def summary(running: list[DrainView]) -> str:
    """The page's sentence."""
    if not running:
        return "No worker is draining."
    if len(running) == 1:
        return tell(running[0]).sentence
    return f"{plural(len(running), 'worker')} are draining."


def _worker(view: WorkerView) -> WorkerRow:
    state = view.state
    if view.quarantine is not None:
        return WorkerRow(view, _WORKERS["quarantined"], reason(view.quarantine.code))
    if state == "ready" and view.drain is not None:
        return WorkerRow(view, _WORKERS["draining"], "")
    if state == "ready" and not view.admitting:
        return WorkerRow(view, _WORKERS["closed"], view.reason or "")
    return WorkerRow(view, _WORKERS[state], view.reason or "" if state != "ready" else "")


def _row(drain: DrainView) -> DrainRow:
    told = tell(drain)
    over = drain.finished_at is not None
    return DrainRow(
        drain=drain,
        tag=STATES[drain.state],
        origin=why(drain),
        reasons=reasons(drain),
        told=outcomes(drain) if over else told.sentence,
        done=told.done,
        pause_ms=longest_pause_ms(drain),
    )


def _mode(text: str) -> DrainMode:
    """Raises `invalid_request`."""
    for mode in MODES:
        if mode == text:
            return mode
    raise SwapdError(Code.INVALID_REQUEST, f"the modes are {', '.join(MODES)}")


def _seconds(text: str) -> float | None:
    """Raises `invalid_request`."""
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        raise SwapdError(Code.INVALID_REQUEST, "the deadline is a number of seconds") from None
