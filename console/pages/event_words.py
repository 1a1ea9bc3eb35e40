"""What happened to a device, in words for its owner. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from console.pages.reason_words import why_words
from console.phrases import duration
from swapd.device_views import DeviceEvent

_KINDS: Final = {
    "engaged": "Your work came first",
    "released": "Your work was over",
    "taken_back": "You took it back",
    "take_back_ended": "Your claim on it ended",
    "vacating": "What ran on it began to leave",
    "free": "It was yours",
    "returning": "Its workers were started again",
    "lent": "It was lent",
    "refused": "It took no new work",
}
_ENDED: Final = {
    "told": "because you said so",
    "unlock": "until the screen is unlocked",
    "time": "for a time",
}
"""How long a claim on a device holds, and how it ended."""


class EventWords(NamedTuple):
    """One line of a device's history. `rising`: whether it is about the owner's work coming first."""

    at: float
    what: str
    detail: str
    rising: bool


def event_words(event: DeviceEvent) -> EventWords:
    """How to put an event; what has no words of ours is shown as it is named."""
    detail = _ENDED.get(event.why or "") or why_words(event.why).event
    if event.seconds is not None:
        span = f"{'after' if event.kind == 'free' else 'for'} {duration(event.seconds)}"
        detail = f"{detail}, {span}" if detail else span
    return EventWords(
        event.at, _KINDS.get(event.kind, event.kind.replace("_", " ")), detail, event.kind == "engaged"
    )
