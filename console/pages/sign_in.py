"""`/sign-in` and `/sign-out`: how a browser comes in, and how it goes.

A one-time code stands in the fragment of its link, which no browser sends: the page's script puts it into
the form, and without a script a person does. Only sending the form uses it up, so whoever opens links in
advance takes nothing away.
"""

from __future__ import annotations

import re
import time
from typing import Any, Final

from quart import Response, request

from console.errors import error_headers, retry_after
from console.forms import owner_form, read_form, visitor_form
from console.pages.layout import Layout, see_other
from console.visitors import Visitor, cookie_of, forget_cookies, set_cookie, visitor
from swapd.api import Service
from swapd.errors import Code, SwapdError

SIGN_IN: Final = "/sign-in"
MAX_NEXT_CHARS: Final = 500

_OWN_PATH: Final = re.compile(r"/(?![/\\])[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*", re.ASCII)


def own_path(text: str) -> str:
    """Where to go after signing in: an address of this console, whatever `text` says (no open redirect)."""
    path = text.partition("?")[0]
    if len(text) > MAX_NEXT_CHARS or not _OWN_PATH.fullmatch(text) or path in (SIGN_IN, "/sign-out"):
        return "/"
    return text


class SignInPage:
    """Open to everybody, so it tells no more than whether the service takes work."""

    def __init__(self, service: Service, layout: Layout) -> None:
        self._service = service
        self._layout = layout

    async def view(self) -> Response:
        """The form, or for who is signed in already, how to go on and how to sign out."""
        return await self._page(own_path(request.args.get("next", "/")))

    async def enter(self) -> Response:
        """Let a browser in by a one-time code or a token, with a new cookie whatever it had before."""
        fields = await read_form(request)
        to = own_path(fields.get("next", "/"))
        door = self._service.door
        try:
            made = await door.sign_in(fields.get("key", ""), request.remote_addr)
        except SwapdError as error:
            if error.code not in (Code.SIGN_IN_REFUSED, Code.SIGN_IN_LIMITED):
                raise
            return await self._page(to, error)
        await self._sign_out()
        answer = see_other(to)
        answer.headers.add("Set-Cookie", set_cookie(made, request.headers))
        return answer

    async def leave(self) -> Response:
        """Sign this browser out, here and in it."""
        await visitor_form(self._service, request)
        await self._sign_out()
        return _gone()

    async def leave_everywhere(self) -> Response:
        """Sign everybody out."""
        who, _ = await owner_form(self._service, request)
        await self._service.door.sign_out_everywhere(who.caller)
        return _gone()

    async def _sign_out(self) -> None:
        """End what the browser's cookie stands for. Where that cannot be stored, it still forgets."""
        try:
            await self._service.door.sign_out(cookie_of(request.headers))
        except SwapdError as error:
            if error.code is not Code.STORE_FAILED:
                raise

    async def _page(self, to: str, problem: SwapdError | None = None) -> Response:
        who = await self._who()
        wait_s = retry_after(problem) if problem is not None and problem.retry_after_s is not None else None
        context: dict[str, Any] = {
            "next": to,
            "readiness": self._service.readiness(),
            "wait_s": wait_s,
            "again_at": time.strftime("%H:%M:%S", time.localtime(time.time() + (wait_s or 0))),
        }
        headers = error_headers(problem) if problem is not None else {}
        # Not a challenge: a browser would answer it with a dialog of its own.
        headers.pop("WWW-Authenticate", None)
        return self._layout.page(
            who, "pages/sign_in.html", path=SIGN_IN, problem=problem, headers=headers, **context
        )

    async def _who(self) -> Visitor | None:
        try:
            return await visitor(self._service, request.headers)
        except SwapdError:
            return None


def _gone() -> Response:
    answer = see_other(SIGN_IN)
    for line in forget_cookies():
        answer.headers.add("Set-Cookie", line)
    return answer
