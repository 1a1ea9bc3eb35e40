"""The owner's settings: what the file says beside what is in force, tried out, then saved for the next start.

One form. "Preview" shows what a save would do; "Save" saves what was previewed and nothing else: a form that
was changed since is previewed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from quart import Response, request

from console.forms import owner_form
from console.pages.layout import Layout, see_other
from console.phrases import plural
from console.visitors import Visitor, visitor
from swapd.api import Service
from swapd.errors import Code, SwapdError
from swapd.settings.views import FieldView, SettingsChange, SettingsPreview, SettingsRefused, SettingsView

PATH = "/settings"


class Row(NamedTuple):
    """One setting as the form shows it: what was entered, and what is wrong with that."""

    field: FieldView
    text: str
    problem: str | None
    first: bool
    """Whether it is the first that is wrong: it gets the focus."""


class Filled(NamedTuple):
    """A form that was sent."""

    values: dict[str, str]
    digest: str
    previewed: str

    @property
    def mark(self) -> str:
        """Names this form's content: a save is only for what was previewed."""
        content = msgspec.json.encode([self.digest, sorted(self.values.items())])
        return hashlib.sha256(content).hexdigest()

    def change(self) -> SettingsChange:
        return SettingsChange(self.values, self.digest)


class SettingsPage:
    """`/settings`, its preview and its save."""

    def __init__(self, service: Service, layout: Layout) -> None:
        self._service = service
        self._layout = layout

    async def view(self) -> Response:
        who = await visitor(self._service, request.headers)
        return await self._page(who, saved="saved" in request.args)

    async def preview(self) -> Response:
        """Show what a save would do; nothing is written."""
        who, form = await owner_form(self._service, request)
        filled = _filled(form)
        return await self._previewed(who, filled)

    async def save(self) -> Response:
        """Write the file (R40, R126)."""
        who, form = await owner_form(self._service, request)
        filled = _filled(form)
        if filled.previewed != filled.mark:
            return await self._previewed(who, filled)
        try:
            await self._service.save_settings(who.caller, filled.change())
        except SwapdError as error:
            return await self._page(who, filled=filled, problem=error)
        return see_other(f"{PATH}?saved=1")

    async def _previewed(self, who: Visitor, filled: Filled) -> Response:
        try:
            preview = await self._service.preview_settings(who.caller, filled.change())
        except SwapdError as error:
            return await self._page(who, filled=filled, problem=error)
        return await self._page(who, filled=filled, preview=preview)

    async def _page(
        self,
        who: Visitor,
        *,
        filled: Filled | None = None,
        preview: SettingsPreview | None = None,
        problem: SwapdError | None = None,
        saved: bool = False,
    ) -> Response:
        view = await self._service.settings(who.caller)
        if filled is not None and preview is not None and filled.digest != view.digest:
            # It was changed while the preview was made; what was shown would not be what is saved.
            preview, problem = None, SwapdError(Code.SETTINGS_CHANGED)
        wrong = problem.problems if isinstance(problem, SettingsRefused) else ()
        problems = {each.field: each.sentence for each in wrong}
        sections = rows(view, filled.values if filled is not None else {}, problems)
        return self._layout.page(
            who,
            "pages/settings.html",
            path=PATH,
            problem=problem,
            view=view,
            sections=sections,
            wrong=[row for section in sections for row in section[3] if row.problem],
            elsewhere=problems.get(""),
            preview=preview,
            mark=filled.mark if filled is not None and preview is not None else "",
            saved=saved and filled is None,
            summary=summary(view, preview, problem),
            can_save=who.role == "owner" and view.problem is None,
        )


def rows(
    view: SettingsView, values: Mapping[str, str], problems: Mapping[str, str]
) -> list[tuple[str, str, str, list[Row]]]:
    """The form's sections: name, heading, introduction, rows."""
    first = next((f.key for group in view.groups for f in group.fields if f.key in problems), None)
    return [
        (
            group.name,
            group.heading,
            group.intro,
            [
                Row(f, values.get(f.key, f.value), problems.get(f.key), first=f.key == first)
                for f in group.fields
            ],
        )
        for group in view.groups
    ]


def summary(view: SettingsView, preview: SettingsPreview | None, problem: SwapdError | None) -> str:
    """The page's sentence."""
    if isinstance(problem, SettingsRefused):
        return "Something needs correcting."
    if problem is not None:
        return "Nothing was saved."
    if preview is not None:
        return "Nothing is saved yet."
    if view.problem is not None:
        return "Your settings cannot be changed from here."
    if view.pending:
        verb = "applies" if len(view.pending) == 1 else "apply"
        return f"{plural(len(view.pending), 'setting')} {verb} when swapd next starts."
    return "Your settings are in force."


def _filled(form: Mapping[str, str]) -> Filled:
    values = {
        key: text.replace("\r\n", "\n")
        for key, text in form.items()
        if key not in ("csrf", "digest", "previewed")
    }
    return Filled(values, form.get("digest", ""), form.get("previewed", ""))
