"""Forms: an action of a person, one POST each, answered with the page to look at next.

A form of a signed-in browser carries a token of its sign-in, beside what is checked of every request (see
`console.auth`): a page elsewhere can neither read nor guess it.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from quart import Request

from console.body import read_bytes
from console.visitors import Visitor, visitor
from swapd.api import Service
from swapd.errors import Code, SwapdError

FORM_TYPE: Final = "application/x-www-form-urlencoded"
MAX_FIELDS: Final = 100
MAX_FORM_BYTES: Final = 64 * 1024
CSRF_FIELD: Final = "csrf"


async def owner_form(service: Service, request: Request) -> tuple[Visitor, Mapping[str, str]]:
    """The owner who acts, and the fields of their form.

    Raises what `visitor_form` raises, and `operator_required`.
    """
    who = await visitor(service, request.headers)
    if who.role != "owner":
        raise SwapdError(Code.OPERATOR_REQUIRED)
    return who, await _checked(who, request)


async def visitor_form(service: Service, request: Request) -> tuple[Visitor, Mapping[str, str]]:
    """Who sends a form, and its fields.

    Raises `unauthenticated`, `csrf_refused`, and what `read_form` raises.
    """
    who = await visitor(service, request.headers)
    return who, await _checked(who, request)


async def read_form(request: Request) -> Mapping[str, str]:
    """The fields of a form; of a field given twice the last.

    Raises `unsupported_media_type`, `body_too_large`, `body_timeout`, `invalid_request`.
    """
    if request.mimetype != FORM_TYPE:
        raise SwapdError(Code.UNSUPPORTED_MEDIA_TYPE, f"a form comes as {FORM_TYPE}")
    raw = await read_bytes(request, MAX_FORM_BYTES)
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except ValueError:
        raise SwapdError(Code.INVALID_REQUEST, "the form cannot be read") from None
    return dict(pairs)


async def _checked(who: Visitor, request: Request) -> Mapping[str, str]:
    fields = await read_form(request)
    given = fields.get(CSRF_FIELD, "")
    # A program's token has no form token: no browser sends it along by itself.
    if who.csrf and not hmac.compare_digest(given.encode(), who.csrf.encode()):
        raise SwapdError(Code.CSRF_REFUSED)
    return fields
