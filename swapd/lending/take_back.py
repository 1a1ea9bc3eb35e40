"""What an owner may ask for with "take back now". Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from swapd.device_views import TakeBack
from swapd.errors import Code, SwapdError

MAX_TAKE_BACK_S: Final = 30 * 86400.0
"""Longer is "until told": a forgotten number must not lend a device in half a year."""


def check_take_back(request: TakeBack) -> TakeBack:
    """The request with `until` filled in: "time" with `for_s`, else "told". Raises `invalid_request`."""
    if request.for_s is None:
        if request.until == "time":
            raise SwapdError(Code.INVALID_REQUEST, 'until "time" needs for_s')
        return msgspec.structs.replace(request, until=request.until or "told")
    if request.until in ("told", "unlock"):
        raise SwapdError(Code.INVALID_REQUEST, f'for_s and until "{request.until}" exclude each other')
    # Written so that NaN is refused.
    if not 0 < request.for_s <= MAX_TAKE_BACK_S:
        raise SwapdError(Code.INVALID_REQUEST, f"for_s is above 0 and at most {MAX_TAKE_BACK_S:.0f}")
    return msgspec.structs.replace(request, until="time")
