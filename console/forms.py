"""Forms: an action of a person, one POST each, answered with the page to look at next."""

from __future__ import annotations

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


async def owner_form(service: Service, request: Request) -> tuple[Visitor, Mapping[str, str]]:
    """Who acts, and the fields of their form; of a field given twice the last.

    Raises `unauthenticated`, `operator_required`, `unsupported_media_type`, `body_too_large`, `body_timeout`,
    `invalid_request`.
    """
    who = await visitor(service, request.headers)
    if who.role != "owner":
        raise SwapdError(Code.OPERATOR_REQUIRED)
    if request.mimetype != FORM_TYPE:
        raise SwapdError(Code.UNSUPPORTED_MEDIA_TYPE)
    raw = await read_bytes(request)
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except ValueError:
        raise SwapdError(Code.INVALID_REQUEST, "the form cannot be read") from None
    return who, dict(pairs)
