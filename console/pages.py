"""The page at `/`: what runs here. Its parts are files of this package; nothing comes from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from quart import Response, render_template

import swapd
from swapd.api import Service

SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def folder(name: str) -> Path:
    """`templates` or `static`: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    packaged = package / name
    return packaged if packaged.is_dir() else package.parent / name


class PageRoutes:
    """Pages for people."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def landing(self) -> Response:
        page = await render_template(
            "landing.html", version=swapd.__version__, readiness=self._service.readiness()
        )
        return Response(page, content_type="text/html; charset=utf-8")
