"""The crash-point matrix as data: where each step is held, what is done to whom, and what must come of it.

A cell allows classes in order: the first is what the rules want, the others are what may come instead, by the
cell's own note (before and after a commit, a short and a long stop) or because it is the least that is
allowed where roll-forward or re-home is not possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

STEPS: Final = {
    "P": "plan",
    "R": "reserve",
    "C": "pre-copy",
    "F": "freeze",
    "X": "export",
    "T": "transcript",
    "I": "prepare",
    "K": "commit",
    "V": "activate",
    "L": "release",
    "Z": "finish",
}

SITES: Final = {
    "P": "coordinator",
    "R": "target",
    "C": "source",
    "F": "source",
    "X": "source",
    "T": "coordinator",
    "I": "target",
    "K": "coordinator",
    "V": "target",
    "L": "coordinator",
    "Z": "coordinator",
}
"""Who does the step, and is held there; that a step has been done is the coordinator's to know."""

VICTIMS: Final = {
    "source": "the source is killed",
    "target": "the target is killed",
    "coordinator": "the coordinator is killed",
    "store": "a COMMIT fails, without effect",
    "store-after": "a COMMIT fails after it took effect",
    "arena": "the arena has no room",
    "source-stop": "the source is stopped until it is given up",
    "source-pause": "the source is stopped for a moment",
    "target-stop": "the target is stopped until it is given up",
    "target-pause": "the target is stopped for a moment",
    "target-late": "the target comes back after the session has gone home",
    "client": "the client goes and comes back",
    "cancel": "the session is cancelled",
    "cancel-drain": "the drain is cancelled",
    "owner": "the target is to be given back",
}

CLASSES: Final = {
    "GO": "goes on, moved",
    "NB": "not begun, never paused",
    "AB0": "aborted without a pause",
    "AB1": "aborted after the freeze, the source goes on",
    "OL": "owner lost: replayed where permitted, else ended",
    "RF": "rolled forward, the source not needed",
    "RH": "came home to the source",
    "RQ": "restart, not committed: the source goes on",
    "RY": "restart, committed: the target goes on",
    "EN": "ended on the way by itself: the hang was shorter than a step's patience",
    "o": "moved; the target's own drain moves it on",
    "x": "cancelled",
    "x5": "moved, then cancelled",
    "d": "drain cancelled, the session stays",
    "d3": "moved, drain cancelled",
}


def _row(*groups: str) -> dict[str, tuple[str, ...]]:
    cells = " ".join(groups).split()
    return {step: tuple(cell.split("|")) for step, cell in zip(STEPS, cells, strict=True) if cell != "-"}


MATRIX: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    # Each row: P R C | F X T I | K | V L Z
    "source": _row("OL OL OL", "OL OL RF|OL RF|OL", "RF|OL", "GO GO GO"),
    "target": _row("NB NB|AB0 AB0", "AB1|AB0 AB1 AB1 AB1", "RH|AB1", "RH OL OL"),
    "coordinator": _row("RQ RQ RQ", "RQ RQ RQ RQ", "RQ", "RY RY RY"),
    "store": _row("RQ RQ RQ", "RQ RQ RQ RQ", "RQ", "RY RY RY"),
    "store-after": _row("- - -", "- - - -", "RY", "- - -"),
    "arena": _row("NB NB AB0", "- AB1 - -", "-", "- - -"),
    "source-stop": _row("OL OL OL", "OL OL RF|OL RF|OL", "GO", "GO GO GO"),
    "source-pause": _row(
        "AB0|GO|EN AB0|GO|EN AB0|GO|EN", "AB1|AB0|GO AB1|GO GO|AB1 GO|AB1", "GO", "GO GO GO"
    ),
    "target-stop": _row("NB|AB0 AB0 AB0", "AB1|AB0 AB1 AB1 AB1", "RH", "RH OL OL"),
    "target-pause": _row(
        "NB|AB0|GO|EN AB0|GO|EN AB0|GO|EN", "AB1|AB0|GO AB1|GO AB1|GO AB1|GO", "RH|GO", "RH|GO GO GO"
    ),
    "target-late": _row("- - -", "- - - -", "RH", "RH - -"),
    "client": _row("GO GO GO", "GO GO GO GO", "GO", "GO GO GO"),
    "cancel": _row("x x x", "x x x x", "x", "x x5 x5"),
    "cancel-drain": _row("d d d", "d d d d", "d3|d", "d3 d3 d3|GO"),
    "owner": _row("NB AB0 AB0", "AB1|AB0 AB1 AB1 AB1", "o", "o o o"),
}

MINIMUM: Final = frozenset({("RF", "OL")})
"""Where the second class is the least that the rules allow: reported, not failed."""


class Cell(NamedTuple):
    """One crossing of the matrix; `replay`: whether the session may be rebuilt from its transcript.

    `after`: held where the step has been done; then what the next step's cell allows is allowed, too.
    """

    step: str
    victim: str
    replay: bool = True
    after: bool = False

    @property
    def name(self) -> str:
        return f"{self.step}:{self.victim}" + ("" if self.replay else ":no-replay")

    @property
    def site(self) -> str:
        """Who is held. x4: an Activate that is on its way cannot be called back."""
        if (self.step, self.victim) == ("V", "cancel"):
            return "coordinator"
        # That a step has been done, the coordinator knows, but for the export, which is half of the freeze.
        return "coordinator" if self.after and self.step != "X" else SITES[self.step]

    @property
    def point(self) -> str:
        return f"{self.step}.{'after' if self.after else 'before'}"

    @property
    def allowed(self) -> tuple[str, ...]:
        row, steps = MATRIX[self.victim], list(STEPS)
        # The coordinator hears of freeze and export in one message, and needs the transcript at the commit.
        further = {"F": 2, "T": 2, "Z": 0}.get(self.step, 1) if self.after else 0
        at = steps.index(self.step)
        return tuple(
            dict.fromkeys(name for step in steps[at : at + further + 1] for name in row.get(step, ()))
        )


def all_cells() -> Iterator[Cell]:
    """Every cell, those that lose an owner also without the permission to replay."""
    for victim, row in MATRIX.items():
        for step, allowed in row.items():
            yield Cell(step, victim)
            if "OL" in allowed:
                yield Cell(step, victim, replay=False)


SAMPLE: Final = tuple(
    Cell(step, victim)
    for victim in ("source", "target", "coordinator", "target-stop", "store")
    for step in ("C", "X", "K", "V")
)
"""Of each kind of end, for an engine that takes its time."""


def _with_either(step: str) -> Iterator[Cell]:
    for victim, row in MATRIX.items():
        if step in row:
            yield from (Cell(step, victim), Cell(step, victim, replay=False))


def chosen(text: str) -> list[Cell]:
    """The cells of `P:source,K:target:no-replay`. Raises ValueError naming one that there is not."""
    known = {cell.name: cell for step in STEPS for cell in _with_either(step)}
    cells = []
    for name in text.split(","):
        if name not in known:
            raise ValueError(f"there is no cell {name!r}; a cell is STEP:VICTIM of {', '.join(VICTIMS)}")
        cells.append(known[name])
    return cells
