"""How long a visit to the console lasts, and which one ends when there are too many. Pure.

A visit is one browser that signed in; "session" means a generation here. Its cookie is a random number that
nobody keeps: memory and store know its SHA-256. It hangs on the token of its role as that was when it began:
another token, and it is over.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

import msgspec

from swapd.views import Role

IDLE_S: Final = 7 * 86_400.0
"""A visit ends when nobody looked for so long."""
LASTS_S: Final = 30 * 86_400.0
"""A visit ends after so long, however much it is used."""
TOUCH_S: Final = 60.0
"""How exactly it is known when a visit was last used: not every request writes."""
MAX_VISITS: Final = 64

_CSRF: Final = b"swapd console form"


class VisitRecord(msgspec.Struct, frozen=True):
    """One visit; times in seconds since 1970. `token`: SHA-256 of the token that it hangs on."""

    id: bytes
    role: Role
    token: bytes
    created_at: float
    seen_at: float


def digest(secret: str) -> bytes:
    """What is kept of a secret: enough to know it again."""
    return hashlib.sha256(secret.encode()).digest()


def csrf_of(cookie: str) -> str:
    """The token of a visit's forms: only who has the cookie, or a page made for it, knows it."""
    return hmac.digest(cookie.encode(), _CSRF, "sha256").hex()


def ends_at(record: VisitRecord) -> float:
    """When it ends if nobody uses it any more."""
    return min(record.created_at + LASTS_S, record.seen_at + IDLE_S)


def is_over(record: VisitRecord, now: float) -> bool:
    return now >= ends_at(record)


def crowded_out(records: Iterable[VisitRecord], limit: int = MAX_VISITS) -> list[VisitRecord]:
    """Those that must end so that there is room for one more: whoever was away for longest."""
    by_use = sorted(records, key=lambda record: (record.seen_at, record.created_at, record.id))
    return by_use[: max(len(by_use) - limit + 1, 0)]
