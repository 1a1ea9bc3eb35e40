"""Where a move can be made to abort: every failpoint before the commit, and how it comes to an end there.

refuse   the step is refused, as if by who does it: the source goes on, the drain is cancelled
cancel   the drain is cancelled while the step is held
end      the session is cancelled while the step is held: at the commit nothing else can stop a move
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from swapd.errors import Code

Role = Literal["coordinator", "source", "target"]
Way = Literal["refuse", "cancel", "end"]


class Abort(NamedTuple):
    """One way for a move to end before its commit."""

    role: Role
    point: str
    way: Way

    @property
    def name(self) -> str:
        return f"{self.role} {self.point} {self.way}"

    @property
    def code(self) -> Code:
        """The refusal, where one comes: an honest one, which costs no worker its trust."""
        return Code.NOT_READY if self.role == "target" else Code.ARENA_EXHAUSTED

    @property
    def action(self) -> str:
        """What the failpoint is armed with."""
        return f"refuse {self.code}" if self.way == "refuse" else "hold"

    @property
    def ending(self) -> tuple[str, str]:
        """Outcome and reason of the move."""
        if self.way == "end":
            return "cancelled", Code.SESSION_CANCELLED
        return "aborted_source_resumed", self.code if self.way == "refuse" else Code.DRAIN_CANCELLED


ABORTS: Final = (
    Abort("coordinator", "P.before", "cancel"),
    Abort("coordinator", "P.after", "cancel"),
    Abort("coordinator", "R.before", "refuse"),
    Abort("target", "R.before", "refuse"),
    Abort("coordinator", "R.after", "refuse"),
    Abort("coordinator", "C.before", "refuse"),
    Abort("source", "C.before", "refuse"),
    Abort("coordinator", "C.after", "refuse"),
    Abort("coordinator", "F.before", "cancel"),
    Abort("source", "F.before", "refuse"),
    Abort("source", "X.before", "refuse"),
    Abort("source", "X.after", "refuse"),
    Abort("coordinator", "F.after", "cancel"),
    Abort("coordinator", "T.before", "cancel"),
    Abort("coordinator", "I.before", "cancel"),
    Abort("target", "I.before", "refuse"),
    Abort("target", "I.after", "cancel"),
    Abort("coordinator", "I.after", "cancel"),
    Abort("coordinator", "T.after", "end"),
    Abort("coordinator", "K.before", "end"),
)


class Rotation:
    """Which abort is next, for each direction on its own, so that each is seen both ways."""

    def __init__(self, aborts: tuple[Abort, ...]) -> None:
        self._aborts = aborts
        self._begun: dict[str, int] = {}

    def next(self, source: str) -> Abort:
        """The next one for a session that leaves `source`."""
        # The two directions begin half a round apart: a short run sees more of the points.
        at = self._begun.setdefault(source, len(self._begun) * len(self._aborts) // 2)
        self._begun[source] = at + 1
        return self._aborts[at % len(self._aborts)]
