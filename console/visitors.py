"""Who looks at a page or acts on it.

A program sends a bearer token, as to `/v1`. A browser has a session of its own (see the sign-in page).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from werkzeug.datastructures import Headers

from console import auth
from swapd.api import Service
from swapd.views import Caller

Role = Literal["owner", "viewer"]


class Visitor(NamedTuple):
    """A person at the console. `csrf` stands in each form of theirs; empty for a program's token."""

    caller: Caller
    role: Role
    csrf: str = ""


async def visitor(service: Service, headers: Headers) -> Visitor:
    """Who sent this request. Raises `unauthenticated`, `operator_required` (H9)."""
    return Visitor(auth.operator(service, headers), "owner")
