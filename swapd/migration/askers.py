"""Who wants a worker empty, since when and why: the askers of one drain (B16). Pure.

    operator < shutdown < owner_pressure < take_back_now

Whoever began the drain is its first asker. An owner who wants the device while it runs joins it, so that no
session is moved twice for two wishes; when the owner wants it no more, the drain goes on for whoever is left.
The drain's origin is the strongest of those who still ask.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from swapd.errors import Code, SwapdError
from swapd.views import Asker, DrainOrigin

STRENGTH: Final[tuple[DrainOrigin, ...]] = ("operator", "shutdown", "owner_pressure", "take_back_now")
OWNERS: Final[frozenset[DrainOrigin]] = frozenset({"owner_pressure", "take_back_now"})
"""What an owner's device asks for."""
MAX_REASON_CHARS: Final = 200

Askers = tuple[Asker, ...]


def check_reason(text: str | None) -> str | None:
    """The words that go with a drain, without space around them; None for nothing said.

    Raises `invalid_request` for what is no single line of at most `MAX_REASON_CHARS`.
    """
    told = (text or "").strip()
    if len(told) > MAX_REASON_CHARS or not told.isprintable():
        raise SwapdError(
            Code.INVALID_REQUEST, f"reason is one line of at most {MAX_REASON_CHARS} printable characters"
        )
    return told or None


def shortened(text: str) -> str:
    """Words of our own, cut to what a reason may be."""
    told = "".join(each if each.isprintable() else " " for each in text).strip()
    return told if len(told) <= MAX_REASON_CHARS else told[: MAX_REASON_CHARS - 1] + "…"


def origin_of(askers: Sequence[Asker]) -> DrainOrigin:
    """The strongest of those who still ask; where nobody does, of all."""
    asking = [each for each in askers if each.until is None] or askers
    return max((each.origin for each in asking), key=STRENGTH.index)


def reason_of(askers: Sequence[Asker]) -> str | None:
    """What was said first."""
    return next((each.reason for each in askers if each.reason is not None), None)


def asks(askers: Sequence[Asker], origins: Set[DrainOrigin]) -> bool:
    """Whether one of these still asks."""
    return any(each.origin in origins and each.until is None for each in askers)


def joined(askers: Askers, asker: Asker) -> Askers:
    """With one more who asks; unchanged when the same asks already.

    An owner asks once: pressure that becomes a take-back ends as pressure. Of each origin the latest is kept.
    """
    if any(each.origin == asker.origin and each.until is None for each in askers):
        return askers if asker.origin not in OWNERS else left(askers, OWNERS - {asker.origin}, asker.at)
    kept = tuple(each for each in askers if each.origin != asker.origin)
    if asker.origin in OWNERS:
        kept = left(kept, OWNERS, asker.at)
    return (*kept, asker)


def left(askers: Askers, origins: Set[DrainOrigin], at: float) -> Askers:
    """These ask no more."""
    return tuple(
        Asker(each.origin, each.at, each.reason, at)
        if each.origin in origins and each.until is None
        else each
        for each in askers
    )
