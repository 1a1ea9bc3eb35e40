"""Whether a worker is wanted at all: what its link was last told, for the link's own task to follow.

wanted ──unwant──► unwanted ──stop_soon──► stopping ──► at rest: ended and collected
   ▲                   │                       │            │
   └──────────────── resume ───────────────────┴────────────┘
"""

from __future__ import annotations

import trio


class Wanted:
    """A desired state. Telling it returns at once and may be repeated; the latest counts."""

    def __init__(self) -> None:
        self.reason: str | None = None
        """Why the worker is not wanted; None: it is."""
        self.stopping = False
        self.at_rest = False
        """Not wanted, and no process of it is left. Set by the link's task alone."""
        self.starting: trio.CancelScope | None = None
        """A start that is broken off when nobody wants it any more."""
        self._changed = trio.Event()

    def unwant(self, reason: str) -> None:
        """Start none from now on; one that is there goes on."""
        self._tell(reason, self.stopping)

    def stop_soon(self, reason: str) -> None:
        """Start none, and end the one that is there."""
        self._tell(reason, True)

    def resume(self) -> None:
        """It is wanted."""
        self._tell(None, False)

    def rest(self, at_rest: bool) -> bool:
        """Note whether anything is left. True when that changed."""
        changed = at_rest != self.at_rest
        self.at_rest = at_rest
        if changed:
            self._wake()
        return changed

    async def wait_changed(self) -> None:
        """Return when it was told something else, or came to rest. Check before waiting."""
        await self._changed.wait()

    def _tell(self, reason: str | None, stopping: bool) -> None:
        changed = (reason is None, stopping) != (self.reason is None, self.stopping)
        self.reason, self.stopping = reason, stopping
        if reason is None:
            self.at_rest = False
        elif self.starting is not None:
            self.starting.cancel()
        if changed:
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
