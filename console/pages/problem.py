"""A refusal as a page, for people; programs get the same as JSON (see `console.errors`)."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from quart import Response, has_request_context, request

from console.errors import error_headers, retry_after
from console.pages.layout import Layout, see_other
from console.visitors import Visitor, visitor
from swapd.api import Service
from swapd.errors import Code, SwapdError

_FOR_PROGRAMS: Final = ("/v1/", "/live/", "/status", "/metrics", "/healthz", "/readyz")
_NOBODY: Final = frozenset({Code.HOST_REFUSED, Code.ORIGIN_REFUSED, Code.INTERNAL})
"""What another site's page brought about is told to nobody in particular; and after a bug, what finds out
who asks may be what failed."""

_TITLES: Final = {
    400: "That cannot be read.",
    403: "That is not allowed.",
    404: "There is nothing here.",
    405: "That is not how this address works.",
    408: "That took too long.",
    409: "That is not possible now.",
    413: "That is too much at once.",
    415: "That cannot be read.",
    421: "swapd does not answer under this name.",
    422: "That cannot be taken.",
    429: "Too many tries.",
    500: "Something went wrong in swapd.",
    503: "Not available just now.",
}


class ProblemPage:
    """What a browser is shown when a page or a form is refused."""

    def __init__(self, service: Service, layout: Layout) -> None:
        self._service = service
        self._layout = layout

    async def answer(self, error: SwapdError) -> Response | None:
        """The page of a refusal, or the way to the sign-in; None where a program asks."""
        if not has_request_context() or not _wants_page():
            return None
        if error.code is Code.UNAUTHENTICATED:
            return see_other(f"/sign-in?next={quote(_here(), safe='/')}")
        who = None if error.code in _NOBODY else await self._who()
        headers = error_headers(error)
        return self._layout.page(
            who,
            "pages/problem.html",
            path="",
            http_status=error.status,
            headers=headers,
            error=error,
            title=_TITLES.get(error.status, "That did not work."),
            wait_s=retry_after(error) if "Retry-After" in headers else None,
        )

    async def _who(self) -> Visitor | None:
        try:
            return await visitor(self._service, request.headers)
        except SwapdError:
            return None


def _wants_page() -> bool:
    accept = request.accept_mimetypes
    return not request.path.startswith(_FOR_PROGRAMS) and accept.quality("text/html") > accept.quality(
        "application/json"
    )


def _here() -> str:
    """Where a person wanted to go; after a form, its page is not known."""
    return request.full_path.rstrip("?") if request.method in ("GET", "HEAD") else "/"
