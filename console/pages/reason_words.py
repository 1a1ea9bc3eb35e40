"""Why something is as it is, in words for people: one table for each closed set of reasons. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from swapd.errors import REASONS, Code
from swapd.lending.reasons import Why
from swapd.views import DrainOrigin

NAMES: Final = 3
"""Names that a reason tells."""


class WhyWords(NamedTuple):
    """Why a device is not lent."""

    event: str
    """In a line of its history."""
    given_back: str
    """Why it came back to its owner, with how often behind it; empty for what only closes admission."""
    next_step: str
    """What the owner can do."""


WHYS: Final[Mapping[str, WhyWords]] = {
    Why.NO_CONSENT: WhyWords(
        "you have not agreed to lend it",
        "you had not agreed to lend",
        "To lend it, say so under Settings and start swapd again.",
    ),
    Why.TAKEN_BACK: WhyWords("you took it back", "you took it back", "Lend it again whenever you like."),
    Why.PRESSURE: WhyWords(
        "your own load",
        "you used it",
        "Just work on. It is lent again by itself once your work has paused.",
    ),
    Why.OWNER_PROCESS: WhyWords(
        "a program of yours",
        "one of your programs ran",
        "It is lent again by itself once that program has ended.",
    ),
    Why.OWNER_MEMORY: WhyWords(
        "its memory was short",
        "your programs needed its memory",
        "It is lent again by itself once enough of its memory is free.",
    ),
    Why.GAME: WhyWords("a game", "you played", "Enjoy the game. It is lent again by itself afterwards."),
    Why.QUIET_HOURS: WhyWords(
        "quiet hours", "quiet hours began", "It is lent again by itself when the quiet hours end."
    ),
    Why.OWNER_PRESENT: WhyWords(
        "you were at the machine",
        "you came back to the machine",
        "It is lent again by itself when you lock the screen.",
    ),
    Why.RESUMING: WhyWords(
        "a rest after your work",
        "it rested after your work",
        "Nothing to do: it is lent again by itself after a short rest.",
    ),
    Why.UNSUPPORTED: WhyWords(
        "your load cannot be measured",
        "",
        "See Diagnostics for what the driver says; until then it is not lent.",
    ),
    Why.ATTENDANCE_UNKNOWN: WhyWords(
        "whether you are there could not be told",
        "",
        "See Diagnostics: swapd cannot ask the system whether you are there.",
    ),
    Why.NO_READINGS: WhyWords(
        "there were no readings", "", "See Diagnostics if this lasts longer than a minute."
    ),
    Why.CALIBRATING: WhyWords(
        "learning what is normal",
        "",
        "Nothing to do: use your machine as always while swapd learns what is normal.",
    ),
}


class OriginWords(NamedTuple):
    """Who asked for a drain: `now` while they do, `for_a_while` where they no longer did at its end."""

    now: str
    for_a_while: str


ORIGINS: Final[Mapping[DrainOrigin, OriginWords]] = {
    "operator": OriginWords("an operator asked for it", "an operator asked for it for a while"),
    "owner_pressure": OriginWords("the owner's work came back", "the owner's work came back for a while"),
    "take_back_now": OriginWords("the owner took it back", "the owner took it back for a while"),
    "shutdown": OriginWords("the service stopped", "the service was stopping"),
}


def why_words(why: str | None) -> WhyWords:
    """What has no words of ours is shown as it is named."""
    name = why or ""
    return WHYS.get(name) or WhyWords(name, name, "Nothing to do.")


def reason(code: str | None, detail: str | None = None) -> str:
    """A reason code's sentence, with its numbers and first names; empty without one."""
    if code is None:
        return ""
    if code not in set(Code):
        return code
    told = REASONS[Code(code)].sentence
    told = told[:1].upper() + told[1:].rstrip(".")
    return f"{told} ({_brief(detail)})." if detail else f"{told}."


def _brief(detail: str) -> str:
    """A full worker names everybody on it; that is a page long on a phone, once for each who waits."""
    names = detail.split(", ")
    return detail if len(names) <= NAMES else f"{', '.join(names[:NAMES])} and {len(names) - NAMES} more"
