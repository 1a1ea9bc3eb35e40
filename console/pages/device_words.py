"""What a device's state means to its owner: one sentence, and what they can do next. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from console.pages.reason_words import why_words
from console.phrases import clock, duration, plural
from swapd.device_views import DeviceView, HeldUp
from swapd.lending.reasons import Why

Tone = Literal["lent", "yours", "rising", "waiting", "wrong"]
"""The look of a state; never alone: a word and a sign go with it."""


class Words(NamedTuple):
    """`label` is one word, `headline` the sentence, `detail` why, `next_step` what the owner can do."""

    tone: Tone
    sign: str
    label: str
    headline: str
    detail: str
    next_step: str


NEEDS_OWNER: Final = frozenset({Why.NO_CONSENT, Why.UNSUPPORTED, Why.ATTENDANCE_UNKNOWN, Why.NO_READINGS})
"""Reasons that do not go away by themselves, or that the owner should look at."""


def words(view: DeviceView, sessions: int) -> Words:
    """How to put a device's state; `sessions` is how many generations run on it."""
    why = view.why
    detail, next_step = _sentence(view.sentence), why_words(why).next_step
    running = plural(sessions, "generation") if sessions else "nothing"
    match view.state:
        case "lent" if view.admitting:
            doing = f"{running} running on it" if sessions else "idle, waiting for work"
            return Words(
                "lent",
                "●",
                "Lent",
                f"Lent to language models: {doing}.",
                detail,
                "Your own work always comes first. You can also take it back now.",
            )
        case "vacating" if view.held_up is not None:
            return Words(
                "wrong",
                "▲",
                "Held up",
                "On its way back to you, but held up: swapd cannot write to its disk.",
                f"{detail} What runs on it cannot move away: nothing of a move could be written down.",
                _held_up(view.held_up),
            )
        case "vacating":
            return Words(
                "rising",
                "◐",
                "Coming back",
                f"Coming back to you: {running} left on it.",
                detail,
                "It is yours as soon as the generations have moved away or ended.",
            )
        case "free":
            return Words("yours", "○", "Yours", "It is yours.", detail, next_step)
        case "returning":
            return Words(
                "waiting",
                "◔",
                "Starting",
                "About to be lent again.",
                detail,
                "Nothing to do: its workers are starting.",
            )
        case _ if why in NEEDS_OWNER:
            return Words("wrong", "▲", "Not lent", "Not lent, and it needs a look.", detail, next_step)
        case _ if why == Why.CALIBRATING:
            return Words(
                "waiting",
                "◔",
                "Learning",
                "Learning what is normal on it before lending it.",
                detail,
                next_step,
            )
        case _:
            return Words("waiting", "◔", "Not lent", "Not lent right now.", detail, next_step)


def _held_up(held: HeldUp) -> str:
    """How a device comes back although the store has failed."""
    if held.ends_at is not None:
        return (
            f"At {clock(held.ends_at)} swapd ends what runs on it, and it is yours. What was received until "
            "then is kept; whether the rest goes on is decided when swapd is started again."
        )
    ends = " and ".join(f"process {pid} (worker {name})" for name, pid in held.processes.items())
    return (
        "swapd must not end it: a generation was just moving when the disk failed, and only a new start can "
        "tell where it belongs. See to the disk, then start swapd again. If you cannot wait, end "
        f"{ends or 'its workers'} yourself: what was received is kept."
    )


def running_on(view: DeviceView, workers: Iterable[str | None]) -> int:
    """How many generations run on a device, by the worker that has each; none once it is its owner's.

    With a store that failed, a worker that was ended still owns its sessions: only a new start decides.
    """
    return 0 if view.state == "free" else sum(worker in view.workers for worker in workers)


def free_text(view: DeviceView) -> str | None:
    """How the last give-back went: `free in 2.1 s` with when. None before the first, or if called off."""
    last = view.last_give_back
    if last is None:
        return None
    when = clock(last.began_at)
    if last.free_in_s is None:
        return f"being freed since {when}" if view.state == "vacating" else None
    return f"free in {duration(last.free_in_s)} ({when})"


def is_headless(view: DeviceView) -> bool:
    """Whether its machine is configured as one at whose screen nobody sits."""
    return (view.attendance_detail or "").startswith("headless")


def attendance_text(view: DeviceView) -> str:
    """Whether its owner is there, as swapd holds it; why, where nobody looks or nobody knows."""
    detail = view.attendance_detail or ""
    if is_headless(view):
        return f"not watched: {detail}"  # it counts as unlocked, which says nothing of a person
    match view.attendance:
        case "locked":
            return "away, screen locked"
        case "unlocked":
            return "at the machine"
        case _:
            return f"unknown: {detail}" if detail else "unknown"


def taken_text(view: DeviceView) -> str | None:
    """Until when the owner keeps it, or None where it is not taken back."""
    taken = view.taken_back
    if taken is None:
        return None
    if taken.ends_at is not None:
        return f"Yours until {clock(taken.ends_at)}."
    if taken.until == "unlock":
        return "Yours until you unlock the screen again."
    return "Yours until you lend it again."


def _sentence(text: str) -> str:
    """The verdict's clause as a sentence of its own."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
