"""The crash-point matrix as data: where each step is held, what is done to whom, and what must come of it.

A cell allows classes in order: the first is what the rules want, the others are what may come instead, by the
cell's own note (before and after a commit, a short and a long stop) or because it is the least that is
allowed where roll-forward or re-home is not possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ops.crashing.pace import Kind

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
    "client": "the client goes, looks in, and comes back",
    "client-lost": "the client does not come back within its grace",
    "cancel": "the session is cancelled",
    "cancel-drain": "the drain is cancelled",
    "owner": "the owner's load on the target's device rises",
}

KINDS: Final[dict[str, Kind]] = {
    "source-stop": "hurried",
    "source-pause": "hurried",
    "target-stop": "hurried",
    "target-pause": "hurried",
    "target-late": "hurried",
    "client-lost": "grace",
    "owner": "owner",
}
"""The pace that a victim needs; all others are patient."""

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
    "o": "moved; the target's own drain moves it on",
    "x": "cancelled before the commit",
    "x4": "cancelled after the commit, before the target ran",
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
    "target": _row("NB NB|AB0 AB0", "AB1|AB0 AB1 AB1 AB1", "RH", "RH OL OL"),
    "coordinator": _row("RQ RQ RQ", "RQ RQ RQ RQ", "RQ", "RY RY RY"),
    "store": _row("RQ RQ RQ", "RQ RQ RQ RQ", "RQ", "RY RY RY"),
    "store-after": _row("- - -", "- - - -", "RY", "- - -"),
    "arena": _row("NB NB AB0", "- AB1 - -", "-", "- - -"),
    "source-stop": _row("OL OL OL", "OL OL RF|OL RF|OL", "GO", "GO GO GO"),
    "source-pause": _row("AB0|GO AB0|GO AB0|GO", "AB1|AB0|GO AB1|GO GO GO", "GO", "GO GO GO"),
    "target-stop": _row("NB|AB0 AB0 AB0", "AB1|AB0 AB1 AB1 AB1", "RH", "RH OL OL"),
    "target-pause": _row(
        "NB|AB0|GO AB0|GO AB0|GO", "AB1|AB0|GO AB1|GO AB1|GO AB1|GO", "RH|GO", "RH|GO GO GO"
    ),
    "target-late": _row("- - -", "- - - -", "RH", "RH - -"),
    "client": _row("GO GO GO", "GO GO GO GO", "GO", "GO GO GO"),
    "client-lost": _row("x x x", "x x x x", "x", "x4 x5 x5"),
    "cancel": _row("x x x", "x x x x", "x", "x4 x5 x5"),
    "cancel-drain": _row("d d d", "d d d d", "d3", "d3 d3 d3"),
    "owner": _row("NB AB0 AB0", "AB1|AB0 AB1 AB1 AB1", "o", "o o o"),
}

MINIMUM: Final = frozenset({("RF", "OL")})
"""Where the second class is the least that the rules allow: reported, not failed."""


THEN: Final = {
    "P": "R",
    "R": "C",
    "C": "CF",
    "F": "FT",
    "X": "XT",
    "T": "K",
    "I": "IK",
    "K": "V",
    "V": "VL",
    "L": "LZ",
    "Z": "Z",
}
"""What a cell that is held after its step may end in: as one of these steps, held before it.

More than one where the coordinator does not know yet that it was done, or where that may not be the last of
it: the copy has rounds, a source that is not ready is asked to freeze again, the export is told with the
freeze, and an acknowledged activation is no token.
"""


class Cell(NamedTuple):
    """One crossing of the matrix; `replay`: whether the session may be rebuilt from its transcript.

    `after`: held where the step has been done.
    """

    step: str
    victim: str
    replay: bool = True
    after: bool = False

    @property
    def name(self) -> str:
        name = f"{self.step}:{self.victim}" + ("" if self.replay else ":no-replay")
        return name + (":after" if self.after else "")

    @property
    def exists(self) -> bool:
        """Whether there is something to see: an arena is full before a step, late is who did not answer."""
        nothing_after = self.victim == "arena" or (self.step, self.victim) == ("V", "target-late")
        return bool(self.allowed) and not (self.after and nothing_after)

    @property
    def committed(self) -> bool:
        """Whether the target owns the session when the step is held."""
        return self.step in "VLZ" or (self.after and self.step == "K")

    @property
    def kind(self) -> Kind:
        return KINDS.get(self.victim, "patient")

    @property
    def site(self) -> str:
        """Who is held. x4: an Activate that is on its way cannot be called back."""
        if self.step == "V" and self.victim in ("cancel", "client-lost"):
            return "coordinator"
        # That a step has been done, the coordinator knows, but for the export, which is half of the freeze.
        return "coordinator" if self.after and self.step != "X" else SITES[self.step]

    @property
    def point(self) -> str:
        return f"{self.step}.{'after' if self.after else 'before'}"

    @property
    def allowed(self) -> tuple[str, ...]:
        row = MATRIX[self.victim]
        steps = THEN[self.step] if self.after else self.step
        names = [name for step in steps for name in row.get(step, ())]
        if self.after and (self.step, self.victim) == ("Z", "cancel-drain"):
            names.append("GO")  # it may have been over already
        return tuple(dict.fromkeys(names))


def all_cells(*, after: bool = False) -> Iterator[Cell]:
    """Every cell, those that lose an owner also without the permission to replay.

    `after`: held where a step has been done.
    """
    for victim, row in MATRIX.items():
        for step in row:
            cell = Cell(step, victim, after=after)
            if not cell.exists:
                continue
            yield cell
            if "OL" in cell.allowed:
                yield cell._replace(replay=False)
    if not after:
        yield COMMITTED


COMMITTED: Final = Cell("K", "coordinator", after=True)
"""The other half of the coordinator's death at the commit: durable, and nobody told."""


SAMPLE: Final = tuple(
    Cell(step, victim)
    for victim in ("source", "target", "coordinator", "target-stop", "store")
    for step in ("C", "X", "K", "V")
)
"""Of each kind of end, for an engine that takes its time."""


def chosen(text: str) -> list[Cell]:
    """The cells of `P:source,K:target:no-replay,K:store:after`. Raises ValueError for one that is not."""
    known = {}
    for victim, row in MATRIX.items():
        for step in row:
            for replay in (True, False):
                for after in (False, True):
                    cell = Cell(step, victim, replay, after)
                    known[cell.name] = cell
    cells = []
    for name in text.split(","):
        if name not in known or not known[name].exists:
            raise ValueError(f"there is no cell {name!r}; a cell is STEP:VICTIM of {', '.join(VICTIMS)}")
        cells.append(known[name])
    return cells
