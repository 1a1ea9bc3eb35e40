"""Pages that keep themselves current: one SSE stream a page.

A page registers how to render its living part. While somebody watches, that part is rendered anew at most
`1 / PERIOD_S` times a second, once for all visitors of a role, and is sent only when it is another text than
before. No task of its own: whoever comes first in a period renders, the others find it done.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Final, NamedTuple

import trio
from quart import Response, request
from quart.wrappers.response import ResponseBody
from werkzeug.datastructures import Headers

from console.pages.layout import CSRF_MARK
from console.streams import SSE_HEADERS
from console.visitors import Visitor, visitor
from swapd.api import Service
from swapd.errors import Code, SwapdError
from swapd.views import Role

PERIOD_S: Final = 0.5
BEAT_S: Final = 10.0
"""Between signs of life; a browser that hears none for three of them comes back anew."""

Render = Callable[[Visitor, str], Awaitable[str]]
"""`(who, name) -> HTML` of the living part; `name` is what the page is about, or empty."""


class Picture(NamedTuple):
    """What a living part looks like now: `frame` is its SSE message."""

    made_at: float
    html: str
    frame: bytes


class LivePart:
    """The living part of one page for one role, rendered once for all who watch it."""

    def __init__(self, render: Render, name: str) -> None:
        self._render = render
        self._name = name
        self._lock = trio.Lock()
        self._picture = Picture(-math.inf, "", b"")
        self.watchers = 0

    async def picture(self, who: Visitor) -> Picture:
        """The part as it is now, `PERIOD_S` old at most. Raises what the page's rendering raises."""
        async with self._lock:
            now = trio.current_time()
            if now - self._picture.made_at >= PERIOD_S * 0.9:
                html = await self._render(who, self._name)
                frame = self._picture.frame if html == self._picture.html else sse_message(html)
                self._picture = Picture(now, html, frame)
            return self._picture


class LivePages:
    """`GET /live/<page>` and `GET /live/<page>/<name>`."""

    def __init__(self, service: Service, pages: Mapping[str, Render]) -> None:
        self._service = service
        self._pages = pages
        self._parts: dict[tuple[str, str, Role], LivePart] = {}

    async def stream(self, page: str, name: str = "") -> Response:
        """The page's living part, now and whenever it changes."""
        headers = request.headers
        who = await visitor(self._service, headers)
        if page not in self._pages:
            raise SwapdError(Code.NOT_FOUND)
        key = (page, name, who.role)
        part = self._parts.get(key) or LivePart(self._pages[page], name)
        await part.picture(who)  # an unknown name is refused before anything is sent
        if request.method == "HEAD":
            return Response(b"", 200, SSE_HEADERS)  # a stream that sends nothing would never end
        answer = Response(LiveStream(self, key, part, who, headers), 200, SSE_HEADERS)
        answer.timeout = None  # as long as somebody watches
        return answer

    @property
    def stopping(self) -> bool:
        return self._service.stopping

    async def wait_stopping(self) -> None:
        await self._service.wait_stopping()

    async def still_welcome(self, headers: Headers) -> None:
        """Raise `unauthenticated` when who sent these headers has been signed out since."""
        await visitor(self._service, headers)

    def join(self, key: tuple[str, str, Role], part: LivePart) -> LivePart:
        """Watch: the part that others watch already, or `part`."""
        part = self._parts.setdefault(key, part)
        part.watchers += 1
        return part

    def leave(self, key: tuple[str, str, Role], part: LivePart) -> None:
        part.watchers -= 1
        if part.watchers == 0 and self._parts.get(key) is part:
            del self._parts[key]


class LiveStream(ResponseBody):
    """The body of one live response; it watches while Quart sends it, and no longer."""

    def __init__(
        self, pages: LivePages, key: tuple[str, str, Role], part: LivePart, who: Visitor, headers: Headers
    ) -> None:
        self._pages = pages
        self._key = key
        self._part = part
        self._who = who
        self._headers = headers
        self._sent = ""
        self._beat_at = trio.current_time() + BEAT_S

    async def __aenter__(self) -> AsyncIterator[bytes]:
        self._part = self._pages.join(self._key, self._part)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._pages.leave(self._key, self._part)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """The next change or sign of life; the end when the service stops or the visitor may not look."""
        while not self._pages.stopping:
            try:
                # Who signs out anywhere sees nothing more here.
                await self._pages.still_welcome(self._headers)
                picture = await self._part.picture(self._who)
                now = trio.current_time()
            except SwapdError:
                # What it is about is gone, or the visitor is: the browser learns which when it comes back.
                raise StopAsyncIteration from None
            if picture.html != self._sent:
                self._sent = picture.html
                self._beat_at = now + BEAT_S
                return picture.frame.replace(CSRF_MARK.encode(), self._who.csrf.encode())
            if now >= self._beat_at:
                self._beat_at = now + BEAT_S
                return b"event: beat\ndata: \n\n"
            with trio.move_on_after(PERIOD_S - now % PERIOD_S):
                await self._pages.wait_stopping()
        raise StopAsyncIteration


def sse_message(html: str) -> bytes:
    """HTML as one unnamed message: htmx puts it in the place of the living part."""
    return b"".join(b"data: %s\n" % line for line in html.encode().splitlines()) + b"\n"
