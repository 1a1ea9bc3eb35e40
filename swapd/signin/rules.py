"""How long a sign-in to the console lasts, and which one ends when there are too many. Pure.

A sign-in is one browser that was let in; "session" means a generation here. Its cookie is a random number
that nobody keeps: memory and store know its SHA-256. It hangs on the token of its role as that was when it
began: another token, and it is over.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

import msgspec

from swapd.views import Role

IDLE_S: Final = 7 * 86_400.0
"""A sign-in ends when nobody looked for so long."""
LASTS_S: Final = 30 * 86_400.0
"""A sign-in ends after so long, however much it is used."""
TOUCH_S: Final = 60.0
"""How exactly it is known when a sign-in was last used: not every request writes."""
MAX_SIGNED_IN: Final = 64

_CSRF: Final = b"swapd console form"


class SignInRecord(msgspec.Struct, frozen=True):
    """One sign-in; times in seconds since 1970. `token`: SHA-256 of the token that it hangs on."""

    id: bytes
    role: Role
    token: bytes
    created_at: float
    seen_at: float


def digest(secret: str) -> bytes:
    """What is kept of a secret: enough to know it again."""
    return hashlib.sha256(secret.encode()).digest()


def csrf_of(cookie: str) -> str:
    """The token of a sign-in's forms: only who has the cookie, or a page made for it, knows it."""
    return hmac.digest(cookie.encode(), _CSRF, "sha256").hex()


def ends_at(record: SignInRecord) -> float:
    """When it ends if nobody uses it any more."""
    return min(record.created_at + LASTS_S, record.seen_at + IDLE_S)


def is_over(record: SignInRecord, now: float) -> bool:
    return now >= ends_at(record)


def crowded_out(records: Iterable[SignInRecord], limit: int = MAX_SIGNED_IN) -> list[SignInRecord]:
    """Those that must end so that there is room for one more: whoever was away for longest."""
    by_use = sorted(records, key=lambda record: (record.seen_at, record.created_at, record.id))
    return by_use[: max(len(by_use) - limit + 1, 0)]
