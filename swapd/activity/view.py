"""What happened while the owner was away, as it is told. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from swapd.device_views import ActivityStep, ActivityView, DeviceActivity
from swapd.lending.reasons import Why

OWNERS_NEED: Final = frozenset(
    map(str, (Why.PRESSURE, Why.OWNER_PROCESS, Why.OWNER_MEMORY, Why.GAME, Why.OWNER_PRESENT))
)
"""Reasons that are the owner's own use of the machine; a take-back and quiet hours are the owner's word."""
MOVED: Final = ("completed_native", "completed_replay", "completed_redispatch", "parked")
"""Outcomes after which a session goes on elsewhere, or waits to."""
HOUR_S: Final = 3600.0
STEPS_S: Final = (300.0, 900.0, HOUR_S, 2 * HOUR_S, 6 * HOUR_S, 24 * HOUR_S)
STEPS_MAX: Final = 30
MINUTE_S: Final = 60.0
MS_PER_S: Final = 1000.0


class Sums(Protocol):
    """What the store has recorded since a time (`swapd.store.activity.Recorded`)."""

    @property
    def first_at(self) -> float | None: ...
    @property
    def tokens(self) -> int: ...
    @property
    def lent_s(self) -> Mapping[str, float]: ...
    @property
    def engaged(self) -> Mapping[str, int]: ...
    @property
    def given_back(self) -> Mapping[str, Mapping[str, int]]: ...
    @property
    def moves(self) -> Mapping[str, int]: ...
    @property
    def returned(self) -> int: ...
    @property
    def longest_pause_ms(self) -> float | None: ...
    @property
    def course(self) -> Sequence[tuple[float, float, int]]: ...


def step_of(span_s: float) -> float:
    """How long the steps of a span are, so that there are no more than `STEPS_MAX`: an hour for a day."""
    return next((step for step in STEPS_S if span_s <= step * STEPS_MAX), STEPS_S[-1])


def activity_view(sums: Sums, since: float, devices: Sequence[str], step_s: float) -> ActivityView:
    """What was recorded from `since` on, of the configured devices in their order."""
    each = tuple(
        DeviceActivity(
            name,
            round(sums.lent_s.get(name, 0.0), 1),
            sums.engaged.get(name, 0),
            dict(sums.given_back.get(name, {})),
        )
        for name in devices
    )
    came_first = sum(count for one in each for why, count in one.given_back.items() if why in OWNERS_NEED)
    lent_s = sum(one.lent_s for one in each)
    # Who was parked and came back left its worker once.
    moved = sum(sums.moves.get(outcome, 0) for outcome in MOVED) - sums.returned
    later = sums.first_at is None or sums.first_at > since
    return ActivityView(
        since=since,
        recorded_since=sums.first_at if later else None,
        tokens=sums.tokens,
        devices=each,
        lent_s=lent_s,
        pressure_events=sum(one.pressure_events for one in each),
        came_first=came_first,
        moves=dict(sums.moves),
        moved=moved,
        longest_pause_ms=sums.longest_pause_ms,
        sentence=sentence(lent_s, sums.tokens, came_first, moved, sums.longest_pause_ms),
        step_s=step_s,
        returned=sums.returned,
        course=tuple(ActivityStep(at, round(lent, 1), tokens) for at, lent, tokens in sums.course),
    )


def sentence(lent_s: float, tokens: int, came_first: int, moved: int, pause_ms: float | None) -> str:
    """Tell it in one sentence; what did not happen is left out."""
    if not lent_s and not tokens and not came_first and not moved:
        return "Nothing was lent and nothing was served."
    parts = [f"lent {duration_text(lent_s)}" if lent_s else "not lent"]
    if tokens:
        parts.append(f"{tokens:,} {_plural(tokens, 'token')} served")
    if came_first:
        parts.append(f"{times_text(came_first)} your work came first")
    if moved:
        parts.append(f"{moved} {_plural(moved, 'generation')} moved")
    if moved and pause_ms is not None:
        parts.append(f"longest pause {pause_text(pause_ms)}")
    told = ", ".join(parts)
    return f"{told[0].upper()}{told[1:]}."


def times_text(count: int) -> str:
    """How often: `never`, `once`, `twice`, `3 times`."""
    return ("never", "once", "twice")[count] if count < 3 else f"{count:,} times"


def duration_text(seconds: float) -> str:
    """A length of time as people say it: `6.2 h`, `12 min`, `40 s`."""
    if seconds >= HOUR_S:
        return f"{seconds / HOUR_S:.1f} h"
    if seconds >= MINUTE_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds:.0f} s"


def pause_text(pause_ms: float) -> str:
    """A pause: `0.1 s`; below a tenth of a second in ms."""
    return f"{pause_ms / MS_PER_S:.1f} s" if pause_ms >= MS_PER_S / 10 else f"{pause_ms:.0f} ms"


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"
