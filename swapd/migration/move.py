"""One move while it runs: its phase, its lease, its figures. The phases are `transaction`'s."""

from __future__ import annotations

from dataclasses import dataclass, field

from swapd.errors import Code
from swapd.messages.from_worker import FrozenItem
from swapd.messages.generation import Lease, Owner
from swapd.migration.transaction import Event, Phase, advance
from swapd.sessions.live import LiveSession
from swapd.views import Outcome, SessionOutcome


@dataclass
class Move:
    """A session on its way from `source` to `target`; `epoch` is the source's."""

    id: str
    session: LiveSession
    drain: str | None
    source: Owner
    target: Owner
    epoch: int
    lease: Lease
    phase: Phase = Phase.PLANNED
    frontier: int = 0
    """Blocks below it are in the target's engine."""
    rounds: int = 0
    precopied_bytes: int = 0
    frozen_bytes: int = 0
    loaded: int = 0
    """KV positions that came with the blocks, by the manifests of what the target took."""
    frozen: FrozenItem | None = None
    frozen_at: float | None = None
    resumed_at: float | None = None
    copy_started_at: float | None = None
    copy_ended_at: float | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    failed_in: Phase | None = None
    target_fault: Code | None = None
    """What the target did wrong, if that is why the move failed (H79)."""
    withdrawn: Code | None = None
    """Why it goes no further than it must: its drain was cancelled (H61), or its target closes (OP)."""
    timings_ms: dict[str, float] = field(default_factory=dict)

    def enter(self, event: Event) -> None:
        """Take a step of the transaction. Raises `IllegalMove`."""
        self.phase = advance(self.phase, event)

    def mark(self, name: str, now: float) -> None:
        """Note a moment of the pause, by the freeze command's clock."""
        if self.frozen_at is not None:
            self.timings_ms[name] = (now - self.frozen_at) * 1000

    def fail(self, code: Code | str, event: Event = Event.FAILED) -> None:
        """End the move early; where it stood is kept for the clean-up and the record."""
        self.failed_in = self.phase
        self.reason = str(code)
        self.enter(event)

    @property
    def over(self) -> bool:
        return self.phase is Phase.FINISHED

    def result(self) -> SessionOutcome:
        """The drain's entry for this session (H54)."""
        native = self.outcome == "completed_native"
        frozen_ms = None
        if self.frozen_at is not None and self.resumed_at is not None:
            frozen_ms = (self.resumed_at - self.frozen_at) * 1000
        failed_in = self.failed_in
        return SessionOutcome(
            session=self.session.id,
            outcome=self.outcome,
            reason=self.reason,
            phase=str(failed_in if failed_in is not None else self.phase),
            target=self.target.worker,
            frozen_ms=frozen_ms,
            precopied_bytes=self.precopied_bytes,
            frozen_bytes=self.frozen_bytes,
            rounds=self.rounds,
            reuse=self._reuse() if native else None,
            recomputed_tokens=self._recomputed() if native else 0,
            copy_started_at=self.copy_started_at,
            copy_ended_at=self.copy_ended_at,
            timings_ms=self.timings_ms,
        )

    def _reuse(self) -> float | None:
        """Positions loaded of the N - 1 that the source had computed (H208)."""
        frozen = self.frozen
        return self.loaded / frozen.computed if frozen is not None and frozen.computed else None

    def _recomputed(self) -> int:
        """Positions below N - 1 that did not come, which only computing could have replaced (H209)."""
        return self.frozen.computed - self.loaded if self.frozen is not None else 0
