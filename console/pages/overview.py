"""The overview: one card a device. What is lent, to what, why or why not, and how to have it back."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import trio
from quart import Response, request

from console.forms import owner_form
from console.pages.away import AwayPage, Report
from console.pages.device_words import (
    NEEDS_OWNER,
    Words,
    attendance_text,
    free_text,
    is_headless,
    running_on,
    taken_text,
    words,
)
from console.pages.layout import Layout, see_other
from console.plots import LoadPlot, load_plot
from console.trends import trend
from console.visitors import Visitor, visitor
from swapd.api import Service
from swapd.device_views import DeviceView, TakeBack
from swapd.errors import Code, SwapdError
from swapd.views import StatusView, WorkerView

PLOT_SPAN_S: Final = 3600.0
PLOT_POINTS: Final = 120
PLOT_KEPT_S: Final = 5.0
"""How long a plot serves before it is read anew: its stretches are half a minute long."""

TAKE_BACK_CHOICES: Final[tuple[tuple[str, str], ...]] = (
    ("3600", "for an hour"),
    ("14400", "for 4 hours"),
    ("told", "until I lend it again"),
    ("unlock", "until I unlock the screen"),
)
RUNNING: Final = frozenset({"ready", "suspect"})

_TROUBLE: Final = {
    Code.STORE_FAILED: "The database cannot be written: nothing is served, and what runs cannot move away. "
    "See to the disk and start swapd again; Diagnostics says more.",
    Code.STORE_STUCK: "The disk of the database does not answer: nothing is served until it does. "
    "Diagnostics says more.",
    Code.DISK_FULL: "The disk of the database is full: nothing is served until there is room. "
    "Diagnostics says more.",
}
"""Reasons for which the whole service stands still; the first that holds is told."""


class Card(NamedTuple):
    """One device as its card shows it."""

    device: DeviceView
    words: Words
    sessions: int
    plot: LoadPlot
    free_text: str | None
    taken_text: str | None
    you: str
    choices: tuple[tuple[str, str], ...]


class OverviewPage:
    """`/`, and what an owner does there."""

    def __init__(self, service: Service, layout: Layout, away: AwayPage) -> None:
        self._service = service
        self._layout = layout
        self._away = away
        self._plots: dict[str, tuple[float, LoadPlot]] = {}

    async def view(self) -> Response:
        who = await visitor(self._service, request.headers)
        return await self._page(who)

    async def part(self, who: Visitor, _name: str) -> str:
        """The living part."""
        return self._layout.html("parts/_overview.html", who=who, **await self._context(who))

    async def take_back(self, device: str) -> Response:
        """Close the device at once; what runs on it leaves (B17)."""
        who, form = await owner_form(self._service, request)
        try:
            await self._service.take_back(who.caller, device, _take_back(form.get("for", "told")))
        except SwapdError as error:
            return await self._page(who, error)
        return see_other(f"/#device-{device}")

    async def lend(self, device: str) -> Response:
        """End a take-back."""
        who, _ = await owner_form(self._service, request)
        try:
            await self._service.lend(who.caller, device)
        except SwapdError as error:
            return await self._page(who, error)
        return see_other(f"/#device-{device}")

    async def _page(self, who: Visitor, problem: SwapdError | None = None) -> Response:
        context = await self._context(who)
        away = await self._report(who)
        return self._layout.page(who, "pages/overview.html", path="/", problem=problem, away=away, **context)

    async def _report(self, who: Visitor) -> Report | None:
        """The last report; none where the disk cannot be read, for then the page matters most."""
        try:
            return await self._away.report(who, "visit")
        except SwapdError as error:
            if error.code is not Code.DISK_ERROR:
                raise
            return None

    async def _context(self, who: Visitor) -> dict[str, Any]:
        status = await self._service.status(who.caller)
        on = [session.worker for session in await self._service.sessions(who.caller)]
        cards = []
        for device in status.devices:
            sessions = running_on(device, on)
            plot = await self._plot(who, device.name)
            cards.append(
                Card(
                    device,
                    words(device, sessions),
                    sessions,
                    plot,
                    free_text(device),
                    taken_text(device),
                    attendance_text(device),
                    take_back_choices(device),
                )
            )
        return {
            "cards": cards,
            "status": status,
            "notices": notices(status),
            "summary": summary(cards),
        }

    async def _plot(self, who: Visitor, device: str) -> LoadPlot:
        now = trio.current_time()
        made_at, plot = self._plots.get(device, (-PLOT_KEPT_S, None))
        if plot is None or now - made_at >= PLOT_KEPT_S:
            plot = load_plot(await trend(self._service, who.caller, device, PLOT_SPAN_S, PLOT_POINTS))
            self._plots[device] = now, plot
        return plot


def summary(cards: list[Card]) -> str:
    """The page's sentence: how many devices are lent."""
    if not cards:
        return "No device is set up for lending."
    lent = sum(card.words.tone == "lent" for card in cards)
    if len(cards) == 1:
        return cards[0].words.headline
    if lent == len(cards):
        return "Both of your devices are lent." if lent == 2 else f"All {lent} of your devices are lent."
    if not lent:
        return "None of your devices is lent right now."
    return f"{lent} of your {len(cards)} devices {'is' if lent == 1 else 'are'} lent."


def notices(status: StatusView) -> list[str]:
    """What needs the owner or an operator, in sentences; empty when all is well."""
    found = [told for reason, told in _TROUBLE.items() if reason in status.reasons][:1]
    if not status.consent:
        found.append(
            "You have not agreed to lend yet. Settings has the switch; swapd lends from its next start on."
        )
    if not status.switches.admission:
        found.append("New work is stopped for the whole service. An operator can reopen it under Drains.")
    if not status.switches.migration:
        found.append("Moves are switched off: generations stay on a device until they end.")
    found += [
        f"{device.name}: {device.sentence}."
        for device in status.devices
        if device.why in NEEDS_OWNER and device.why != "no_consent"
    ]
    found += [
        f"Worker {worker.id} is not trusted with new work ({worker.quarantine.code}). See Drains."
        for worker in status.workers
        if worker.quarantine is not None
    ]
    for device in status.devices:
        if device.state == "lent":
            found += _idle(device, [worker for worker in status.workers if worker.id in device.workers])
    return found


def _idle(device: DeviceView, workers: list[WorkerView]) -> list[str]:
    """Why nothing new runs on a device although it is lent."""
    if workers and not any(worker.state in RUNNING for worker in workers):
        return [
            f"{device.name}: none of its workers runs just now, so nothing can run on it. See Diagnostics."
        ]
    return [
        f"Worker {worker.id} is being drained: nothing new runs on it, though its device is lent. See Drains."
        for worker in workers
        if worker.drain is not None
    ]


def take_back_choices(view: DeviceView) -> tuple[tuple[str, str], ...]:
    """How long a device can be kept: where nobody sees the screen, not until it is unlocked."""
    watched = not is_headless(view)
    return tuple(choice for choice in TAKE_BACK_CHOICES if watched or choice[0] != "unlock")


def _take_back(choice: str) -> TakeBack:
    """The form's choice. Raises `invalid_request`."""
    if choice in ("told", "unlock"):
        return TakeBack(until="told" if choice == "told" else "unlock")
    if choice in {value for value, _ in TAKE_BACK_CHOICES}:
        return TakeBack(for_s=float(choice))
    raise SwapdError(Code.INVALID_REQUEST, "choose one of the times that are offered")
