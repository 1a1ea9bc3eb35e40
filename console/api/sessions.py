"""Sessions for clients: start, look, end, and read by SSE."""

from __future__ import annotations

from quart import Response, request

from console import auth
from console.body import read_json
from console.errors import reply
from console.streams import SSE_HEADERS, TERMINAL, EventStream, StreamTimers, parse_cursor, parse_notices
from swapd.api import Service
from swapd.config import LimitConfig
from swapd.errors import Code, SwapdError
from swapd.sessions.requests import check_new_session
from swapd.views import NewSession, SessionView


class SessionRoutes:
    """A session of another namespace does not exist here (H9)."""

    def __init__(self, service: Service, limits: LimitConfig, timers: StreamTimers) -> None:
        self._service = service
        self._limits = limits
        self._timers = timers

    async def create(self) -> Response:
        """201 once the session is durable (H1)."""
        who = auth.caller(self._service, request.headers)
        asked = await read_json(request, NewSession)
        check_new_session(asked, self._limits)
        view = await self._service.create_session(who, asked)
        return reply(view, 201, {"Location": f"/v1/sessions/{view.id}"})

    async def index(self) -> Response:
        who = auth.caller(self._service, request.headers)
        return reply({"sessions": await self._service.sessions(who)})

    async def view(self, session: str) -> Response:
        """State, owner, cursor and how it ended (H10)."""
        who = auth.caller(self._service, request.headers)
        return reply(await self._service.session(who, session))

    async def cancel(self, session: str) -> Response:
        """End it; a second time changes nothing and answers the same (H3)."""
        who = auth.caller(self._service, request.headers)
        return reply(await self._service.cancel_session(who, session))

    async def events(self, session: str) -> Response:
        """Events strictly after the reader's cursor, then close (H20-H28)."""
        who = auth.caller(self._service, request.headers)
        after = parse_cursor(request.headers.get("Last-Event-ID"), request.args.getlist("after"))
        notices = parse_notices(request.args.getlist("notices"))
        view = await self._service.session(who, session)
        check_cursor(view, after)
        if view.state in TERMINAL and after == view.cursor:
            # H25: an EventSource takes 204 as "do not come back".
            return Response(b"", 204)
        if request.method == "HEAD":
            # A subscription counts as a reader (H32), and a HEAD reads nothing.
            return Response(b"", 200, SSE_HEADERS)
        subscription = self._service.subscribe(who, session, after, notices=notices)
        events = EventStream(subscription, after, self._timers)
        answer = Response(events, 200, SSE_HEADERS)
        answer.timeout = None  # as long as the session; Quart would end it after RESPONSE_TIMEOUT
        return answer


def check_cursor(view: SessionView, after: int | None) -> None:
    """Refuse a cursor past the last durable event (H24), before the response has begun."""
    if after is not None and after > view.cursor:
        raise SwapdError(Code.CURSOR_AHEAD)
