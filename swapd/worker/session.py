"""One generation as its worker sees it.

Two questions are kept apart. `stage` is what was decided about the session; `place` is where the engine has
it now. `Book.settle` compares the two before every step and says what to tell the engine, so a command only
ever has to change the stage or the limit.

`position` counts all output tokens, from before a move too. `tokens` are those after `accepted`: kept until
a credit says that they are durable, at most a window of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from swapd.messages.from_worker import Finish, InventoryItem, Phase, TokenRun
from swapd.messages.generation import GenerationSpec

Stage = Literal["running", "frozen", "reserved", "prepared", "finished"]
Place = Literal["outside", "prefill", "stepping", "held", "reserved"]


@dataclass(slots=True)
class Session:
    """Mutable; owned by the engine thread. `outputs` are those that the engine was or will be given."""

    spec: GenerationSpec
    epoch: int
    key: str
    stage: Stage
    limit: int
    position: int
    accepted: int
    outputs: tuple[int, ...] = ()
    place: Place = "outside"
    move: str | None = None
    finish: Finish | None = None
    kept: int | None = None
    """Positions taken up from a move whose source was lost (B24); None: it came whole, or from nothing."""
    recomputed: int | None = None
    """Positions that were computed again before its first token here (H209); None: it was not rebuilt."""
    muted: bool = False
    """A new coordinator has not said yet what it has: nothing is sent until it does."""
    tokens: list[int] = field(default_factory=list)

    @property
    def may_emit(self) -> bool:
        """Activate is permission to emit: what a prepared session computes stays here (decision 1)."""
        return not self.muted and self.stage not in ("reserved", "prepared")

    @property
    def wants_steps(self) -> bool:
        """A session steps unless its window is full or it is being moved (H33)."""
        return self.finish is None and self.stage in ("running", "prepared") and self.position < self.limit

    @property
    def phase(self) -> Phase:
        if self.stage != "running":
            return self.stage
        if self.place == "outside":
            return "waiting"
        return "running" if self.position < self.limit else "held"

    def append(self, token_id: int, finish: Finish | None) -> None:
        """Take the next output token; with `finish`, the engine has let the session go."""
        self.tokens.append(token_id)
        self.position += 1
        if self.place == "prefill":
            self.place = "stepping"
        if finish is not None:
            self.end(finish)

    def end(self, finish: Finish) -> None:
        self.finish = finish
        self.place = "outside"
        if self.stage != "prepared":
            self.stage = "finished"

    def accept(self, accepted: int) -> None:
        """Forget tokens that are durable. What was never sent stays, whatever the number says."""
        if self.stage in ("reserved", "prepared") or not self.accepted < accepted <= self.position:
            return
        del self.tokens[: accepted - self.accepted]
        self.accepted = accepted

    def run_after(self, position: int) -> TokenRun | None:
        """All kept tokens after `position`, with the finish; None when there is neither."""
        start = max(position, self.accepted)
        ids = tuple(self.tokens[start - self.accepted :])
        if not ids and self.finish is None:
            return None
        recomputed = self.recomputed if start == len(self.outputs) else None
        return TokenRun(self.spec.session, self.epoch, start + 1, ids, self.finish, recomputed)

    def item(self) -> InventoryItem:
        return InventoryItem(
            session=self.spec.session,
            epoch=self.epoch,
            phase=self.phase,
            position=self.position,
            unaccepted=tuple(self.tokens),
            move=self.move,
            finish=self.finish,
        )
