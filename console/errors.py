"""Every refusal as the same JSON, whoever refused: a route, Quart, werkzeug or a bug. People get a page.

`{"error": {"code", "message", "retryable"}}`, with `retry_after_s` where that is known. An internal error is
logged by its type only (H183): its text and its traceback may hold a prompt.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
import trio
from quart import Response
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from swapd.errors import Code, SwapdError

RETRY_AFTER_S: Final = 2
"""Where nothing better is known."""
MAX_RETRY_AFTER_S: Final = 3600
JSON: Final = "application/json"

log = logging.getLogger("swapd.http")

_BY_STATUS: Final[Mapping[int, Code]] = {
    404: Code.NOT_FOUND,
    405: Code.METHOD_NOT_ALLOWED,
    408: Code.BODY_TIMEOUT,
    413: Code.BODY_TOO_LARGE,
    415: Code.UNSUPPORTED_MEDIA_TYPE,
}


def reply(view: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """One view as JSON."""
    return Response(msgspec.json.encode(view), status, headers, content_type=JSON)


def error_body(error: SwapdError) -> dict[str, object]:
    body: dict[str, object] = {
        "code": error.code,
        "message": error.sentence,
        "retryable": error.retryable,
    }
    if error.retry_after_s is not None:
        body["retry_after_s"] = retry_after(error)
    return {"error": body}


def retry_after(error: SwapdError) -> int:
    """Whole seconds, at least one, until trying again may help (R60)."""
    after_s = error.retry_after_s
    return RETRY_AFTER_S if after_s is None else min(max(math.ceil(after_s), 1), MAX_RETRY_AFTER_S)


def error_headers(error: SwapdError) -> dict[str, str]:
    """Headers that belong to a refusal: when to come back (H41, H44, R60), how to authenticate (H9)."""
    if error.retryable and error.status in (429, 503):
        return {"Retry-After": str(retry_after(error))}
    if error.status == 401:
        return {"WWW-Authenticate": "Bearer"}
    return {}


def refusal(error: SwapdError) -> Response:
    return reply(error_body(error), error.status, error_headers(error))


def internal(error: BaseException) -> SwapdError:
    """What a bug is to who asked: log its type, nothing else (H183)."""
    log.error("internal error in a request", extra={"error_type": type(error).__name__})
    return SwapdError(Code.INTERNAL)


def _from_werkzeug(error: HTTPException) -> SwapdError:
    status = error.code or 500
    code = _BY_STATUS.get(status)
    if code is None and status >= 500:
        return internal(error)
    return SwapdError(code or Code.INVALID_REQUEST)


AsPage = Callable[[SwapdError], Awaitable[Response | None]]
"""The page of a refusal, where a person asks; else None."""


def install(app: QuartTrio, as_page: AsPage) -> None:
    """Answer every error in one form, unknown routes and methods included."""

    async def on_refusal(error: SwapdError) -> Response:
        return await as_page(error) or refusal(error)

    async def on_http(error: HTTPException) -> Response:
        answer = await on_refusal(_from_werkzeug(error))
        if error.code == 405:
            # The Allow header is required with a 405; the body is ours.
            for name, value in error.get_headers():
                if name.lower() == "allow":
                    answer.headers["Allow"] = value
        return answer

    async def on_bug(error: Exception) -> Response:
        # A client that left cancels its request; what its leaving provoked is not a bug.
        await trio.lowlevel.checkpoint()
        return await on_refusal(internal(error))

    app.register_error_handler(SwapdError, on_refusal)
    app.register_error_handler(HTTPException, on_http)
    # The supervision boundary of a request: a bug in one answers 500 and ends nothing else.
    app.register_error_handler(Exception, on_bug)
