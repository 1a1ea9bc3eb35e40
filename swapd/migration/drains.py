"""The book of one drain: which sessions were on the worker and what became of each (H50-H65). Pure.

    running → drained      nothing is left on the worker
    running → blocked      the deadline passed with sessions left; re-evaluated until cancelled (B14)
    blocked → drained      it emptied after all
    running, blocked → cancelled

The deadline never ends a session (H58). Each session has exactly one outcome in the end (H54).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from swapd.errors import Code, SwapdError
from swapd.messages.generation import Owner
from swapd.migration.askers import Askers, joined, left, origin_of, reason_of
from swapd.migration.outcomes import within
from swapd.views import (
    Asker,
    DrainMode,
    DrainOrigin,
    DrainState,
    DrainView,
    Outcome,
    SessionOutcome,
)

DRAIN_TRANSITIONS: Final[dict[DrainState, frozenset[DrainState]]] = {
    "running": frozenset({"drained", "blocked", "cancelled"}),
    "blocked": frozenset({"drained", "cancelled"}),
    "drained": frozenset(),
    "cancelled": frozenset(),
}
MAX_DEADLINE_S: Final = 24 * 3600.0
FINAL_OUTCOMES: Final[frozenset[str]] = frozenset(
    {"completed_native", "completed_replay", "completed_redispatch", "parked", "cancelled", "failed"}
)
"""Outcomes after which a session no longer stands in the drain's way; others may be tried again."""

RETRY_FIRST_S: Final = 0.25
RETRY_MAX_S: Final = 8.0


def check_deadline(deadline_s: float | None) -> None:
    """Raise `invalid_request` for a deadline that no drain can have (A23)."""
    if deadline_s is not None and not 0 < deadline_s <= MAX_DEADLINE_S:
        raise SwapdError(Code.INVALID_REQUEST, f"deadline_s is above 0 and at most {MAX_DEADLINE_S:.0f}")


class Landing(NamedTuple):
    """Where a committed move sent a session, and what that is called if the session came there."""

    target: Owner
    epoch: int
    outcome: Outcome


@dataclass
class DrainBook:
    """State and outcomes of one drain; times are seconds of the caller's wall clock.

    It is begun by one asker, of origin `begun_by`; others may join (B16).
    """

    id: str
    worker: str
    begun_by: InitVar[DrainOrigin]
    created_at: float
    deadline_s: float
    state: DrainState = "running"
    finished_at: float | None = None
    mode: DrainMode = "native"
    askers: Askers = ()
    """Who asks, in their order; by itself the one who began it."""
    time_to_clear_s: float | None = None
    outcomes: dict[str, SessionOutcome] = field(default_factory=dict)
    refused: dict[str, str | None] = field(default_factory=dict)
    """Why a session could not be sent off at the last look; its outcome may tell of an earlier try."""
    to_park: set[str] = field(default_factory=set)
    """Sessions that are to be parked if no worker has room for them, whatever the mode."""
    to_begin: set[str] = field(default_factory=set)
    """Sessions that are to begin elsewhere while nothing has come of them, also while moves are off (B18)."""
    landed: dict[str, Landing] = field(default_factory=dict)
    """Sessions whose move was committed, not settled, when the coordinator ended."""
    _queued_at: dict[str, float] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)
    _not_before: dict[str, float] = field(default_factory=dict)

    def __post_init__(self, begun_by: DrainOrigin) -> None:
        self.askers = self.askers or (Asker(begun_by, self.created_at),)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return not DRAIN_TRANSITIONS[self.state]

    @property
    def origin(self) -> DrainOrigin:
        """The strongest of those who still ask."""
        return origin_of(self.askers)

    def join(self, asker: Asker) -> bool:
        """One more wants the worker empty. True when that is news."""
        before, self.askers = self.askers, joined(self.askers, asker)
        return self.askers != before

    def leave(self, origins: Set[DrainOrigin], now: float) -> bool:
        """These want it no more. True when others still do; else nothing is changed, but to be cancelled."""
        after = left(self.askers, origins, now)
        if not any(each.until is None for each in after):
            return False
        self.askers = after
        return True

    def cleared(self, at: float) -> bool:
        """Nothing of its sessions was left on the device at that time (B17). True when that is news."""
        if self.state != "drained" or self.time_to_clear_s is not None:
            return False
        self.time_to_clear_s = round(max(at - self.created_at, 0.0), 3)
        return True

    def note(self, outcome: SessionOutcome) -> bool:
        """Record what is known of a session; a final outcome stays. True when something changed."""
        outcome = within(outcome)
        old = self.outcomes.get(outcome.session)
        if old is not None and old.outcome in FINAL_OUTCOMES:
            return False
        if old == outcome:
            return False
        self.outcomes[outcome.session] = outcome
        return True

    def waiting(self, session: str, reason: str | None, phase: str, detail: str | None = None) -> bool:
        """A session that is still there, and why; `detail` has sizes and names for people."""
        self.refused[session] = reason
        old = self.outcomes.get(session)
        outcome = old.outcome if old is not None else None
        if outcome not in (None, "blocked"):
            return False
        return self.note(
            SessionOutcome(session=session, outcome=outcome, reason=reason, phase=phase, detail=detail)
        )

    def put_off(self, session: str, now: float) -> None:
        """A move came to nothing: the next try waits, twice as long each time."""
        failures = self._failures.get(session, 0)
        self._failures[session] = failures + 1
        self._not_before[session] = now + min(RETRY_FIRST_S * 2.0**failures, RETRY_MAX_S)

    def may_try(self, session: str, now: float) -> bool:
        """Whether a session may be sent off (again) now."""
        return now >= self._not_before.get(session, now)

    def queue(self, session: str, now: float, *, waits: bool) -> None:
        """What the last look found: whether a session waits for room on the way, as before or anew."""
        if waits:
            self._queued_at.setdefault(session, now)
        else:
            self._queued_at.pop(session, None)

    def waited_s(self, session: str, now: float) -> float:
        """For how long a session has waited for room on the way."""
        return max(now - self._queued_at.get(session, now), 0.0)

    def parks(self, session: str) -> bool:
        """Whether a session that no worker has room for is to be parked (B3)."""
        return self.mode == "park" or session in self.to_park

    def ended(
        self, session: str, outcome: Outcome, reason: str | None, recomputed_tokens: int | None = 0
    ) -> bool:
        """A session that left the worker unmoved; a replay says how many positions it cost (H73)."""
        return self.note(
            SessionOutcome(
                session=session,
                outcome=outcome,
                reason=reason,
                phase="planned",
                recomputed_tokens=recomputed_tokens,
            )
        )

    def rebuilt(self, session: str, recomputed_tokens: int) -> bool:
        """Add what a replay cost to its outcome. False: it is known, or it is another drain's."""
        outcome = self.outcomes.get(session)
        if outcome is None or outcome.recomputed_tokens is not None:
            return False
        self.outcomes[session] = msgspec.structs.replace(outcome, recomputed_tokens=recomputed_tokens)
        return True

    def unpriced(self) -> list[str]:
        """Sessions whose replay has not said yet what it cost."""
        return [name for name, outcome in self.outcomes.items() if outcome.recomputed_tokens is None]

    def evaluate(self, left: set[str], now: float) -> bool:
        """Settle the state from the sessions still on the worker. True when it changed."""
        if self.over:
            return False
        if not left:
            return self._enter("drained", now)
        if self.state == "running" and now >= self.created_at + self.deadline_s:
            for session in left:
                old = self.outcomes.get(session)
                if old is None or old.outcome not in FINAL_OUTCOMES:
                    reason = old.reason if old is not None and old.reason else "deadline"
                    phase = old.phase if old is not None else "planned"
                    detail = old.detail if old is not None else None
                    self.note(
                        SessionOutcome(
                            session=session, outcome="blocked", reason=reason, phase=phase, detail=detail
                        )
                    )
            return self._enter("blocked", now)
        return False

    def cancel(self, now: float) -> bool:
        """Close the book on request (H61). True unless it was over already."""
        return not self.over and self._enter("cancelled", now)

    def view(self, now: Mapping[str, SessionOutcome] = MappingProxyType({})) -> DrainView:
        """What callers see. `now`: what is known of sessions at this moment, beyond what was noted."""
        return DrainView(
            id=self.id,
            worker=self.worker,
            state=self.state,
            origin=self.origin,
            created_at=self.created_at,
            deadline_s=self.deadline_s,
            finished_at=self.finished_at,
            sessions=tuple({**self.outcomes, **now}.values()),
            mode=self.mode,
            reason=reason_of(self.askers),
            askers=self.askers,
            time_to_clear_s=self.time_to_clear_s,
        )

    def _enter(self, state: DrainState, now: float) -> bool:
        assert state in DRAIN_TRANSITIONS[self.state], (self.state, state)
        self.state = state
        self.finished_at = now if state != "blocked" else None
        return True
