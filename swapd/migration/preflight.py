"""What a drain would do with each session, found out on copies of the books that it would borrow from. Pure.

The first look of a drain is repeated exactly. What would have to wait for room that others of the same drain
give back is looked at again as if those had arrived; what is not ready yet, as if it were. So `move`, `park`,
`replay` and `anew` say what happens at once, `wait` what would come after, and `stay` what only a change
elsewhere could help. Nothing is promised to anybody: whatever happens in between can change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from swapd.errors import Code
from swapd.migration.planner import Refusal, Traveller
from swapd.views import DrainView, Leave, Would

DRAINS_MEASURED: Final = 5
"""How far back an estimate looks: the load and the length of sessions change."""

_IN_TIME: Final = frozenset({Code.NOT_ELIGIBLE, Code.ARENA_EXHAUSTED})
"""Reasons that pass by themselves."""


class Way(NamedTuple):
    """How a session leaves, and to which worker or the park."""

    how: Leave
    target: str


class Trial(Protocol):
    """Books that may be spoiled."""

    def look(self, travellers: Sequence[Traveller]) -> tuple[dict[str, Way], list[Refusal]]:
        """One look of the drain: the way of each that leaves now, and who stays."""

    def arrive(self) -> None:
        """All that left has arrived: what was borrowed for the way is given back."""


class Fate(NamedTuple):
    """What becomes of a session. `reason` is why it does not leave at once."""

    would: Would
    target: str | None = None
    reason: Code | None = None
    detail: str | None = None
    then: Leave | None = None


class Pace(NamedTuple):
    """How the last drains went. `longest_pause_ms`: of the clients of sessions that moved."""

    bytes_per_s: float
    longest_pause_ms: float | None
    drains: int


def foresee(trial: Trial, travellers: Sequence[Traveller]) -> dict[str, Fate]:
    """The fate of each traveller; `moving` ones are in other hands just now."""
    why: dict[str, Refusal] = {}
    """Of the first look at each."""
    still: dict[str, Refusal] = {}
    """Of the last one."""
    fates: dict[str, Fate] = {}

    def leave(here: list[Traveller]) -> list[Traveller]:
        while here:
            gone, stay = trial.look(here)
            for session, (how, target) in gone.items():
                refusal = why.get(session)
                if refusal is None and session not in late:
                    fates[session] = Fate(how, target)
                else:
                    code, detail = (refusal.code, refusal.detail) if refusal is not None else (None, None)
                    fates[session] = Fate("wait", target, code, detail, then=how)
            for refusal in stay:
                why.setdefault(refusal.session, refusal)
                still[refusal.session] = refusal
            here = [traveller for traveller in here if traveller.session not in gone]
            if not gone:
                break
            trial.arrive()
        return here

    late: set[str] = set()
    left = leave([traveller for traveller in travellers if not traveller.moving])
    late = {traveller.session for traveller in travellers if traveller.moving or not traveller.eligible}
    if late:
        busy = [traveller for traveller in travellers if traveller.moving]
        left = leave([_in_time(traveller) for traveller in (*left, *busy)])
    for traveller in left:
        refusal = still[traveller.session]
        code = refusal.code
        would: Would = "stay"
        if code is Code.ALREADY_FINISHED:
            would = "end"
        elif code in _IN_TIME:
            would = "wait"
        fates[traveller.session] = Fate(would, None, code, refusal.detail)
    return fates


def pace(drains: Iterable[DrainView]) -> Pace | None:
    """How fast the latest drains copied, all their sessions side by side; None where none has moved anything.

    `drains`: newest first.
    """
    moved, took_s, pauses, measured = 0, 0.0, [], 0
    for drain in drains:
        native = [each for each in drain.sessions if each.outcome == "completed_native"]
        began = [each.copy_started_at for each in native if each.copy_started_at is not None]
        ended = [each.copy_ended_at for each in native if each.copy_ended_at is not None]
        span_s = max(ended, default=0.0) - min(began, default=0.0)
        if not began or not ended or span_s <= 0:
            continue
        moved += sum(each.precopied_bytes + each.frozen_bytes for each in native)
        took_s += span_s
        pauses += [each.frozen_ms for each in native if each.frozen_ms is not None]
        measured += 1
        if measured == DRAINS_MEASURED:
            break
    if not moved:
        return None
    return Pace(moved / took_s, max(pauses, default=None), measured)


def _in_time(traveller: Traveller) -> Traveller:
    return msgspec.structs.replace(traveller, eligible=True, moving=False)
