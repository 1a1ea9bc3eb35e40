"""Drains, and what they do with each session, in words for people. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from console.pages.reason_words import ORIGINS, reason
from console.phrases import pause, plural
from swapd.errors import Code
from swapd.views import DrainMode, DrainView, Foreseen, SessionOutcome, Would

_LOOKED_AT: Final[tuple[Would, ...]] = ("stay", "wait", "park", "replay", "anew", "move", "end")


class Tag(NamedTuple):
    """A state: `tone` is its look, which a sign and a word always go with."""

    tone: str
    sign: str
    label: str


class OutcomeWords(NamedTuple):
    """What became of a session: its state, and as the report counts it, after how many."""

    tag: Tag
    counted: str


STATES: Final[Mapping[str, Tag]] = {
    "running": Tag("", "→", "Draining"),
    "blocked": Tag("rising", "▲", "Waiting"),
    "drained": Tag("", "✓", "Empty"),
    "cancelled": Tag("", "✕", "Cancelled"),
}
OFFERED: Final[tuple[DrainMode, ...]] = ("native", "park", "replay")
"""Modes that a page offers; the other one is for measuring."""
MODES: Final[Mapping[DrainMode, tuple[str, str]]] = {
    "native": ("Move", "Each generation moves with what it has computed. What finds no place stays."),
    "park": ("Move or park", "The same, and what finds no place waits in host memory until there is one."),
    "replay": (
        "Rebuild",
        "Each generation is computed again on another worker, if its client permits that. Its client waits "
        "for that long.",
    ),
    "cold_replay": ("Rebuild without cache", "As rebuild, and nothing that the other worker has is used."),
}
"""What a drain does with sessions: its name, and what that means."""

_PHASES: Final[Mapping[str, str]] = {
    "planned": "Waiting for its turn",
    "reserved": "Its place is reserved",
    "precopying": "Copying while it goes on",
    "frozen": "Paused: the rest is copied",
    "prepared": "Paused: starting at its new place",
    "committed": "Has moved: starting there",
    "activated": "Has moved: waiting for its first token there",
}
OUTCOMES: Final[Mapping[str, OutcomeWords]] = {
    "completed_native": OutcomeWords(Tag("lent", "✓", "Moved"), "went on elsewhere, nothing computed again"),
    "completed_replay": OutcomeWords(
        Tag("", "✓", "Rebuilt"), "went on elsewhere, rebuilt from the transcript"
    ),
    "completed_redispatch": OutcomeWords(Tag("", "✓", "Begun anew"), "were started elsewhere"),
    "rehomed_source": OutcomeWords(Tag("", "↩", "Back where it was"), "came back to where they were"),
    "parked": OutcomeWords(Tag("", "◫", "Parked"), "waited in memory"),
    "aborted_source_resumed": OutcomeWords(Tag("", "↩", "Went on where it was"), "stayed after all"),
    "cancelled": OutcomeWords(Tag("", "○", "Ended"), "were called off"),
    "blocked": OutcomeWords(Tag("rising", "▲", "Cannot leave yet"), "could not move"),
    "failed": OutcomeWords(Tag("wrong", "!", "Failed"), "were lost"),
}
_LEFT: Final = frozenset({"completed_native", "completed_replay", "completed_redispatch", "parked"})
_WOULD: Final[Mapping[str, Tag]] = {
    "move": Tag("lent", "→", "Moves"),
    "park": Tag("", "◫", "Is parked"),
    "replay": Tag("", "↻", "Is rebuilt"),
    "anew": Tag("", "↻", "Begins anew"),
    "wait": Tag("", "…", "Waits"),
    "stay": Tag("rising", "▲", "Stays"),
    "end": Tag("", "○", "Ends"),
}


ROWS: Final = 100
"""Sessions that a drain or its pre-flight lists, those first that need a look; the sentences count all."""


class Row(NamedTuple):
    """One session of a drain."""

    session: str
    tag: Tag
    what: str
    """How far it is, or why it is as it is."""
    target: str | None
    copied_bytes: int
    pause_ms: float | None
    code: str | None


class Told(NamedTuple):
    """A drain as its page shows it."""

    sentence: str
    rows: list[Row]
    done: int
    pause_ms: float | None


def tell(drain: DrainView) -> Told:
    """The sentence, the sessions that are under way first, then those that wait, then the rest."""
    over = drain.finished_at is not None
    sessions = sorted(drain.sessions, key=_order)
    pauses = [each.frozen_ms for each in sessions if each.frozen_ms is not None]
    pause_ms = max(pauses, default=None)
    done = sum(_done(each) for each in sessions)
    return Told(_sentence(drain, done, pause_ms), [_row(each, over) for each in sessions], done, pause_ms)


def why(drain: DrainView) -> str:
    """Who wanted the worker empty, in their order (B16)."""
    told = [
        ORIGINS[each.origin].now if each.until is None else ORIGINS[each.origin].for_a_while
        for each in drain.askers
    ]
    return _listed(told or [ORIGINS[drain.origin].now])


def reasons(drain: DrainView) -> list[str]:
    """What they said."""
    return [each.reason for each in drain.askers if each.reason is not None]


def outcomes(drain: DrainView) -> str:
    """What became of its sessions, counted: `5 moved, 1 parked, 2 ended`."""
    counts = Counter(outcome_tag(each).label.lower() for each in drain.sessions)
    return ", ".join(f"{number} {label}" for label, number in counts.most_common()) or "nothing was on it"


def longest_pause_ms(drain: DrainView) -> float | None:
    return max((each.frozen_ms for each in drain.sessions if each.frozen_ms is not None), default=None)


def outcome_tag(each: SessionOutcome) -> Tag:
    if each.outcome is not None:
        if each.reason == Code.DRAIN_CANCELLED:
            return Tag("", "↩", "Stayed")
        return OUTCOMES[each.outcome].tag
    return Tag("", "→", "Moving") if _under_way(each) else Tag("", "…", "Waiting")


def fate(each: Foreseen) -> tuple[Tag, str]:
    """What a drain would do with a session, and why."""
    why = reason(each.reason, each.detail)
    where = f" to {each.target}" if each.target else ""
    if each.would == "wait":
        how = {"move": "moves", "park": "is parked", "replay": "is rebuilt", "anew": "begins anew"}
        after = f"Then it {how[each.then]}{where}." if each.then else "Then it is looked at again."
        return _WOULD["wait"], f"{why or 'It is just on its way.'} {after}"
    if each.would == "stay":
        return _WOULD["stay"], f"{why} It goes on where it is; the drain waits for it."
    if each.would == "end":
        return _WOULD["end"], "Its last tokens are on their way."
    return _WOULD[each.would], {
        "move": f"To {each.target}, with all it has computed.",
        "park": "To host memory, until a worker has room.",
        "replay": f"On {each.target}, from its text so far.",
        "anew": f"On {each.target}, from its prompt: nothing has come of it yet.",
    }[each.would]


def ahead_order(each: Foreseen) -> tuple[int, str]:
    """What needs a look first: who stays, who waits."""
    return _LOOKED_AT.index(each.would), each.session


def foreseen(sessions: Iterable[Foreseen]) -> str:
    """A pre-flight in one sentence."""
    would = Counter(each.would for each in sessions)
    total = would.total()
    if not total:
        return "Nothing runs on it: it is empty at once."
    words = {
        "move": "would move",
        "park": "would be parked",
        "replay": "would be rebuilt",
        "anew": "would begin anew elsewhere",
        "wait": "would leave a little later",
        "stay": "would stay",
        "end": "are about to end",
    }
    if len(would) == 1:
        how = next(iter(would))
        if total == 1:
            return f"The one generation on it {words[how].replace('are about', 'is about')}."
        return f"{'Both' if total == 2 else f'All {total}'} generations {words[how]}."
    parts = [f"{number} {words[how]}" for how, number in would.most_common()]
    return f"Of {plural(total, 'generation')} {_listed(parts)}."


def _sentence(drain: DrainView, done: int, pause_ms: float | None) -> str:
    total, worker = len(drain.sessions), drain.worker
    longest = f", longest pause {pause(pause_ms)}" if pause_ms is not None else ""
    so_far = f"; {done} done{longest}" if done else ""
    generations = plural(total, "generation")
    moving = sum(_under_way(each) for each in drain.sessions if not _done(each))
    match drain.state:
        case "drained":
            if not total:
                return f"{worker} was empty already."
            return f"{worker} is empty: {generations} left it{longest}."
        case "cancelled":
            left = sum(each.outcome in _LEFT for each in drain.sessions)
            return f"Cancelled: {left} of {generations} had left {worker}{longest}."
        case "blocked":
            return f"{_some(total - done, total)} cannot leave {worker} yet{so_far}."
        case _:
            if not total:
                return f"{worker} is being closed."
            if moving:
                return f"Moving {_some(moving, total)} away from {worker}{so_far}."
            waiting = total - done
            return f"{_some(waiting, total)} {'waits' if waiting == 1 else 'wait'} to leave {worker}{so_far}."


def _some(number: int, total: int) -> str:
    return plural(total, "generation") if number == total else f"{number} of {plural(total, 'generation')}"


def _row(each: SessionOutcome, over: bool) -> Row:
    tag = outcome_tag(each)
    if each.outcome is None and _under_way(each):
        what = _PHASES.get(each.phase, "On its way")
    elif each.reason is not None and not _is_note(each):
        what = reason(each.reason, each.detail)
    else:
        what = _after(each, over)
    return Row(
        session=each.session,
        tag=tag,
        what=what,
        target=None if each.target in (None, "park") else each.target,
        copied_bytes=each.precopied_bytes + each.frozen_bytes,
        pause_ms=each.frozen_ms,
        code=each.reason,
    )


def _is_note(each: SessionOutcome) -> bool:
    """Whether the reason only adds to how well it went."""
    return each.outcome == "parked" or (each.outcome, each.reason) == ("completed_native", Code.SOURCE_LOST)


def _after(each: SessionOutcome, over: bool) -> str:
    match each.outcome:
        case "completed_native" if each.reason == Code.SOURCE_LOST:
            return "Nothing computed again, though its old worker was lost before it had let go of it."
        case "completed_native":
            computed = each.recomputed_tokens
            return f"{plural(computed, 'token')} computed again." if computed else "Nothing computed again."
        case "completed_replay":
            computed = each.recomputed_tokens
            return "Being rebuilt." if computed is None else f"{plural(computed, 'token')} computed again."
        case "completed_redispatch":
            return "Nothing had come of it yet."
        case "parked" if each.reason == Code.PARK_FULL:
            return "It waits without its KV, which is computed again once a worker has room."
        case "parked":
            return "In host memory until a worker has room."
        case None:
            return "" if over else _PHASES["planned"] + "."
        case _:
            return ""


def _done(each: SessionOutcome) -> bool:
    """Whether it no longer stands in the drain's way; who stayed as the drain was cancelled did not leave."""
    return each.outcome in _LEFT or (
        each.outcome in ("cancelled", "failed") and each.reason != Code.DRAIN_CANCELLED
    )


def _under_way(each: SessionOutcome) -> bool:
    return each.outcome is None and each.reason is None and each.target is not None


def _order(each: SessionOutcome) -> tuple[int, str]:
    rank = 0 if _under_way(each) else 2 if _done(each) else 1
    return rank, each.session


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
