"""What all pages share: their frame, their security headers, and the way from a form back to a page.

Everything a page loads is a file of this package: it works where there is no internet.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from quart import Response

import swapd
from console import phrases
from console.static_files import StaticFiles
from console.visitors import Visitor
from swapd.errors import SwapdError

SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": (
        "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=(), serial=(), hid=()"
    ),
    # Not `no-referrer`: then a form says `Origin: null`, and where there is no https nothing else tells
    # our own form from another site's.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
HTML: Final = "text/html; charset=utf-8"

CSRF_MARK: Final = secrets.token_hex(16)
"""Stands for a visitor's form token while HTML is made, so that one rendering can serve many visitors."""


def folder(name: str) -> Path:
    """`templates` or `static`: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    packaged = package / name
    return packaged if packaged.is_dir() else package.parent / name


class NavEntry(NamedTuple):
    path: str
    label: str


NAVIGATION: Final = (
    NavEntry("/", "Devices"),
    NavEntry("/sessions", "Sessions"),
    NavEntry("/drains", "Drains"),
    NavEntry("/away", "Report"),
    NavEntry("/settings", "Settings"),
    NavEntry("/diagnostics", "Diagnostics"),
)


class Layout:
    """Renders templates. Not Quart's own: live fragments are rendered outside of any request."""

    def __init__(self, files: StaticFiles) -> None:
        self._templates = Environment(
            loader=FileSystemLoader(folder("templates")),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters.update(
            clock=phrases.clock,
            iso=phrases.iso,
            duration=phrases.duration,
            pause=phrases.pause,
            size=phrases.size,
            percent=phrases.percent,
            count=phrases.count,
            plural=phrases.plural,
        )
        self._templates.globals.update(
            csrf=CSRF_MARK, navigation=NAVIGATION, version=swapd.__version__, static=files.address
        )

    def html(self, template: str, **context: Any) -> str:
        """One template as text; a visitor's form token is still `CSRF_MARK` in it."""
        return self._templates.get_template(template).render(context)

    def page(
        self,
        who: Visitor | None,
        template: str,
        *,
        path: str,
        http_status: int = 200,
        problem: SwapdError | None = None,
        headers: Mapping[str, str] | None = None,
        **context: Any,
    ) -> Response:
        """A whole page. `path` is its entry of the navigation; `problem` is why an action was refused."""
        text = self.html(template, who=who, here=path, problem=problem, **context)
        text = text.replace(CSRF_MARK, who.csrf if who is not None else "")
        return Response(
            text, problem.status if problem else http_status, dict(headers or {}), content_type=HTML
        )


def see_other(path: str) -> Response:
    """After an action: show the page at `path`, so that a reload does not act again."""
    # An empty body in so many words: the default one is an iterator that only asyncio can run.
    return Response(b"", 303, {"Location": path})
