"""What came of a cell, against the classes that it may end in. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

from ops.crashing.matrix import MINIMUM, Cell
from swapd.errors import Code

Kind = Literal["lost", "doubled", "left", "other"]

SOURCE_LOST: Final = str(Code.SOURCE_LOST)


class Fault(NamedTuple):
    """Something that must not be. lost and doubled: tokens, ends. left: what is still held at rest."""

    kind: Kind
    text: str


class MoveRow(NamedTuple):
    """A move as the store has it in the end."""

    outcome: str | None
    reason: str | None
    phase: str
    epoch: int
    source: str = "a"
    target: str = "b"
    drain: str | None = None
    recomputed: int = 0
    reuse: float | None = None

    @property
    def gain(self) -> int:
        """By how much it raised the session's epoch."""
        if self.outcome == "rehomed_source":
            return 2
        committed = self.phase in ("committed", "activated", "released", "finished")
        return int(
            self.outcome == "completed_native" or (self.outcome in ("cancelled", "failed") and committed)
        )


class Evidence(NamedTuple):
    """All that is known of the session and its drain, in the end."""

    moves: tuple[MoveRow, ...]
    """From the one on that was held; what ended before that had nothing to do with the cell."""
    drain_state: str
    outcome: str | None
    reason: str | None
    """What the drain says of the session."""
    state: str
    code: str | None
    """How the session ended."""
    source: str = "a"
    """The worker that was drained."""
    worker: str = "b"
    """Who owned the session in the end."""
    epoch_before: int = 1
    epoch: int = 2
    recomputed: int = 0
    """What the drain says of the session: positions that were computed again."""
    drain: str | None = None

    @property
    def gain(self) -> int:
        return self.epoch - self.epoch_before


def completed(seen: Evidence) -> bool:
    return seen.state == "completed"


def _first(seen: Evidence, *outcomes: str) -> bool:
    return bool(seen.moves) and seen.moves[0].outcome in outcomes


def _moved(seen: Evidence) -> bool:
    return seen.worker != seen.source and seen.gain == 1


def _goes_on(seen: Evidence) -> bool:
    """The whole move, with nothing to be noted of it."""
    return _went_on(seen) and (seen.reason, seen.moves[0].reason) == (None, None)


def _went_on(seen: Evidence) -> bool:
    native = seen.outcome == "completed_native" and _first(seen, "completed_native")
    return completed(seen) and len(seen.moves) == 1 and native and _moved(seen)


def _rolled_forward(seen: Evidence) -> bool:
    """RF: the record notes that the source was lost, both the drain's and the move's."""
    return _went_on(seen) and (seen.reason, seen.moves[0].reason) == (SOURCE_LOST, SOURCE_LOST)


def _not_begun(seen: Evidence) -> bool:
    if not completed(seen):
        return False
    return _first(seen, "completed_native") or not seen.moves or _aborted(seen, "planned")


def _aborted(seen: Evidence, *phases: str) -> bool:
    return completed(seen) and _first(seen, "aborted_source_resumed") and seen.moves[0].phase in phases


def _lost_owner(seen: Evidence, replay: bool) -> bool:
    if replay:
        rebuilt = seen.outcome == "completed_replay" and seen.recomputed > 0
        return completed(seen) and rebuilt and seen.gain >= 1
    return seen.state == "failed" and seen.code == "recovery_unavailable" and seen.outcome == "failed"


def _lost_target(seen: Evidence, replay: bool) -> bool:
    """The session had moved: the drain's own business with it was done before its new owner was lost."""
    if not _first(seen, "completed_native"):
        return False
    return completed(seen) if replay else seen.state == "failed" and seen.code == "recovery_unavailable"


def _restarted(seen: Evidence) -> bool:
    return (
        completed(seen)
        and _first(seen, "aborted_source_resumed")
        and seen.moves[0].reason == "coordinator_restart"
    )


def _restarted_before_plan(seen: Evidence) -> bool:
    return completed(seen) and (not seen.moves or _first(seen, "completed_native"))


def _cancelled(seen: Evidence, gain: int) -> bool:
    """x1, x2: no commit may follow; x4: it had, and the target never ran."""
    moved = not seen.moves or _first(seen, "cancelled")
    told = (seen.outcome, seen.reason) == ("cancelled", "session_cancelled")
    return seen.state == "cancelled" and moved and told and seen.gain == gain


def _drain_cancelled(seen: Evidence) -> bool:
    """d1, d2: its move was given up, and it goes on where it was."""
    told = (seen.drain_state, seen.outcome, seen.reason) == ("cancelled", "cancelled", "drain_cancelled")
    given_up = not seen.moves or _first(seen, "aborted_source_resumed")
    return completed(seen) and told and given_up and seen.worker == seen.source and seen.gain == 0


def _cancelled_there(seen: Evidence) -> bool:
    """x5: it had moved, and both records go on saying so."""
    native = seen.outcome == "completed_native" and _first(seen, "completed_native")
    return seen.state == "cancelled" and native and seen.gain == 1


def _moved_on(seen: Evidence) -> bool:
    """The commit stands, and the target's own drain moves the session away from there."""
    if not completed(seen) or not _first(seen, "completed_native"):
        return False
    return any(
        move.outcome == "completed_native" and move.drain != seen.drain and move.source != seen.source
        for move in seen.moves[1:]
    )


_CHECKS: Final[dict[str, Callable[[Evidence], bool]]] = {
    "GO": _goes_on,
    "NB": _not_begun,
    "AB0": lambda seen: _aborted(seen, "planned", "reserved", "precopying"),
    "AB1": lambda seen: _aborted(seen, "frozen", "prepared"),
    "o": _moved_on,
    "RF": _rolled_forward,
    "RH": lambda seen: completed(seen) and _first(seen, "rehomed_source"),
    "RY": lambda seen: completed(seen) and _first(seen, "completed_native") and _moved(seen),
    "x": lambda seen: _cancelled(seen, 0),
    "x4": lambda seen: _cancelled(seen, 1),
    "x5": _cancelled_there,
    "d": _drain_cancelled,
    "d3": lambda seen: _goes_on(seen) and seen.drain_state == "cancelled",
}


def fits(cell: Cell, name: str, seen: Evidence) -> bool:
    """Whether what came is of that class."""
    if name == "OL":
        if cell.victim.startswith("target"):
            return _lost_target(seen, cell.replay)
        return _lost_owner(seen, cell.replay)
    if name == "GO" and cell.victim in ("source", "source-stop") and _rolled_forward(seen):
        # It was lost after the commit: whether it had released by then hangs on where it was held.
        return cell.step != "Z"
    if name == "RQ":
        return _restarted(seen) or (cell.step == "P" and _restarted_before_plan(seen))
    return _CHECKS[name](seen)


def judge(cell: Cell, seen: Evidence) -> tuple[str, list[Fault]]:
    """The class that came, with a star where it is the least allowed; and what is wrong with it.

    A copy that did not catch up ended before anything was done to anybody: it is left out.
    """
    seen = seen._replace(moves=tuple(move for move in seen.moves if move.reason != "precopy_diverged"))
    for at, name in enumerate(cell.allowed):
        if fits(cell, name, seen):
            least = at > 0 and (cell.allowed[0], name) in MINIMUM
            return name + ("*" if least else ""), []
    wanted = " or ".join(cell.allowed)
    # A session that ends where it could have gone on is lost, with all the tokens that it still had to come.
    kind: Kind = "lost" if seen.state == "failed" else "other"
    return "?", [Fault(kind, f"{wanted} was required; what came is {seen}")]


def check_record(cell: Cell, seen: Evidence) -> list[Fault]:
    """What holds of every cell: its epochs, what the drain says, nothing recomputed where KV came."""
    faults: list[Fault] = []
    may_rebuild = cell.replay and "OL" in cell.allowed
    epoch = seen.epoch_before
    for move in seen.moves:
        if move.epoch < epoch or (move.epoch > epoch and not may_rebuild):
            faults.append(Fault("doubled", f"a move began under epoch {move.epoch}, after {epoch}"))
        epoch = move.epoch + move.gain
        # What came with the blocks need not be computed: of a native move that is everything (H75).
        if move.outcome == "completed_native" and (move.recomputed or move.reuse not in (None, 1.0)):
            faults.append(
                Fault("other", f"{move.recomputed} positions were recomputed, reuse is {move.reuse}")
            )
    if seen.epoch < epoch or (seen.epoch > epoch and not may_rebuild):
        faults.append(Fault("doubled", f"the epoch is {seen.epoch} in the end, after {epoch}"))
    if seen.recomputed and seen.outcome != "completed_replay":
        faults.append(Fault("other", f"{seen.outcome}, and yet {seen.recomputed} positions were recomputed"))
    own = [move for move in seen.moves if move.drain == seen.drain]
    if own and seen.outcome in BY_MOVE and seen.outcome != own[-1].outcome:
        faults.append(Fault("other", f"the drain says {seen.outcome}, its last move {own[-1].outcome}"))
    return faults


BY_MOVE: Final = frozenset({"completed_native", "rehomed_source", "aborted_source_resumed"})
"""Outcomes that a drain can only have from a move; any other may be how the session went on afterwards."""


def compare(tokens: Sequence[int], reference: Sequence[int], state: str, accepted: int) -> list[Fault]:
    """The client's stream against the uninterrupted one, token by token."""
    faults: list[Fault] = []
    for at, (got, wanted) in enumerate(zip(tokens, reference, strict=False)):
        if got != wanted:
            twice = at > 0 and got == reference[at - 1]
            faults.append(Fault("doubled" if twice else "lost", f"token {at + 1} is not the reference's"))
            break
    if len(tokens) > len(reference):
        faults.append(Fault("doubled", f"{len(tokens)} tokens came of {len(reference)}"))
    if state == "completed" and len(tokens) < len(reference):
        faults.append(Fault("lost", f"{len(tokens)} tokens came of {len(reference)}"))
    if accepted != len(tokens):
        faults.append(Fault("lost", f"{accepted} tokens are accepted, the client has {len(tokens)}"))
    return faults
