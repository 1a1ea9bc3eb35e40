"""One-time codes: who has one may come in once, within a quarter of an hour. Pure; only digests are kept.

They live in memory: a restart ends them, and a new link is one command away.
"""

from __future__ import annotations

import hmac
from typing import Final, NamedTuple

from swapd.views import Role

VALID_S: Final = 15 * 60.0
MAX_CODES: Final = 16
"""More than a person needs; the oldest ends."""


class _Code(NamedTuple):
    digest: bytes
    role: Role
    expires_at: float


class OneTimeCodes:
    """The codes that were given out and not used. Times are of one monotonic clock."""

    def __init__(self) -> None:
        self._codes: list[_Code] = []

    def __len__(self) -> int:
        return len(self._codes)

    def add(self, digest: bytes, role: Role, now: float) -> None:
        """Give out a code."""
        self._codes = [code for code in self._codes if now < code.expires_at][-(MAX_CODES - 1) :]
        self._codes.append(_Code(digest, role, now + VALID_S))

    def take(self, digest: bytes, now: float) -> Role | None:
        """The role of a code that is good, which it is never again. All are compared, in constant time."""
        found = [code for code in self._codes if hmac.compare_digest(code.digest, digest)]
        self._codes = [code for code in self._codes if code not in found and now < code.expires_at]
        return found[0].role if found and now < found[0].expires_at else None

    def clear(self) -> None:
        """Take back all that were given out."""
        self._codes.clear()
