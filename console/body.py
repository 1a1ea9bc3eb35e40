"""A request body, bounded, decoded into a struct, and never echoed.

Quart refuses a Content-Length over the limit; what comes without one is counted here, because Quart
0.23 keeps it all before it counts.
"""

from __future__ import annotations

import math
import re
from typing import Final, TypeVar

import msgspec
import trio
from quart import Request
from werkzeug.datastructures import Headers

from swapd.errors import Code, SwapdError

T = TypeVar("T")

BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})

_TYPES: Final = re.compile(r"Expected `[a-z |]+`, got `[a-z]+`")
_MISSING: Final = re.compile(r"Object missing required field `[a-z_]+`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `[A-Za-z_]\w{0,39}`", re.ASCII)
_PATH: Final = re.compile(r" - at `(\$[\w.\[\]]*)`\Z", re.ASCII)


def check_no_body(headers: Headers) -> None:
    """Refuse a body where none belongs, before any of it is kept. Raises `invalid_request`."""
    length = headers.get("Content-Length", "0")
    if "Transfer-Encoding" in headers or length.strip("0") != "":
        raise SwapdError(Code.INVALID_REQUEST, "this call takes no body")


async def read_json(request: Request, shape: type[T]) -> T:
    """The body as `shape`.

    Raises `unsupported_media_type`, `body_too_large` (H8), `body_timeout`, `malformed_json`,
    `invalid_request`.
    """
    if request.mimetype != "application/json":
        raise SwapdError(Code.UNSUPPORTED_MEDIA_TYPE)
    return decode(await read_bytes(request), shape)


async def read_optional_json(request: Request, shape: type[T]) -> T | None:
    """As `read_json`; None where there is no body."""
    raw = await read_bytes(request)
    if not raw:
        return None
    if request.mimetype != "application/json":
        raise SwapdError(Code.UNSUPPORTED_MEDIA_TYPE)
    return decode(raw, shape)


async def read_bytes(request: Request, limit: int | None = None) -> bytes:
    """The whole body; a byte over the limit ends the reading, not the end of the body (H8)."""
    limit = limit or request.max_content_length
    assert limit is not None
    body = bytearray()
    with trio.move_on_after(request.body_timeout or math.inf):
        async for piece in request.body:
            body += piece
            if len(body) > limit:
                raise SwapdError(Code.BODY_TOO_LARGE)
        return bytes(body)
    raise SwapdError(Code.BODY_TIMEOUT)


def decode(raw: bytes, shape: type[T]) -> T:
    """`raw` as `shape`. Raises `malformed_json`, `invalid_request`."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.ValidationError as error:
        raise SwapdError(Code.INVALID_REQUEST, _explain(str(error))) from None
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise SwapdError(Code.MALFORMED_JSON) from None


def _explain(message: str) -> str:
    """What is safe to repeat of a decoder's message: field names, types and the path, never a value."""
    place = _PATH.search(message)
    head = message[: place.start()] if place else message
    if not any(known.fullmatch(head) for known in (_TYPES, _MISSING, _UNKNOWN)):
        head = "A value is not allowed here"
    return f"{head} at {place.group(1)}" if place else head
