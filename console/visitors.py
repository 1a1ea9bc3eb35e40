"""Who looks at a page or acts on it.

A program sends a bearer token, as to `/v1`. A browser was let in at the sign-in page and has a cookie since;
cookies are good for pages only, never for `/v1`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from werkzeug.datastructures import Headers
from werkzeug.http import dump_cookie

from console import auth
from swapd.api import Service
from swapd.views import Caller, NewSignIn, Role

COOKIE: Final = "swapd_session"
SECURE_COOKIE: Final = "__Host-swapd_session"
"""Behind https: browsers let nobody but this very host set it, and send it over https alone."""


class Visitor(NamedTuple):
    """A person at the console. `csrf` stands in each form of theirs; empty for a program's token."""

    caller: Caller
    role: Role
    csrf: str = ""


async def visitor(service: Service, headers: Headers) -> Visitor:
    """Who sent this request. Raises `unauthenticated`, `operator_required` (H9)."""
    if "Authorization" in headers:
        return Visitor(auth.operator(service, headers), "owner")
    signed_in = service.door.signed_in(cookie_of(headers))
    return Visitor(signed_in.caller, signed_in.role, signed_in.csrf)


def cookie_of(headers: Headers) -> str | None:
    """The secret of a browser that was let in; None where there is none, or more than one.

    Ports share cookies: another service on this host can set ours, and two of a name mean that one did.
    """
    # Not werkzeug's parser: it raises where somebody sends bytes that are no UTF-8.
    pairs = [part.strip().partition("=") for line in headers.getlist("Cookie") for part in line.split(";")]
    for name in (SECURE_COOKIE, COOKIE):
        found = [value for given, _, value in pairs if given == name]
        if found:
            return found[0] if len(found) == 1 and found[0].isascii() else None
    return None


def set_cookie(made: NewSignIn, headers: Headers) -> str:
    """The `Set-Cookie` of a browser that was let in.

    Strict: no other site's link or form brings it along. The links that let people in need no cookie, and
    what follows on them is a form of our own page.
    """
    name = SECURE_COOKIE if _is_https(headers) else COOKIE
    return dump_cookie(
        name,
        made.cookie,
        max_age=int(made.lasts_s),
        secure=name == SECURE_COOKIE,
        httponly=True,
        samesite="Strict",
    )


def forget_cookies() -> list[str]:
    """Each `Set-Cookie` that makes a browser forget."""
    return [
        dump_cookie(
            name, max_age=0, expires=0, secure=name == SECURE_COOKIE, httponly=True, samesite="Strict"
        )
        for name in (SECURE_COOKIE, COOKIE)
    ]


def _is_https(headers: Headers) -> bool:
    """Whether the browser that sends a form is at an https address, by its own word: no proxy is asked."""
    return headers.get("Origin", "").lower().startswith("https://")
