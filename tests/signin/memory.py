"""A door without disk: the real one over the real tables in memory, with tokens that a test knows."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable
from typing import Any

from swapd.signin.door import ConsoleDoor
from swapd.store.schema import migrate
from swapd.views import Role

OWNER_TOKEN = "owner-" + "o" * 40
VIEWER_TOKEN = "viewer-" + "v" * 40


class MemoryStore:
    """What a door needs of the store: operations run at once, each in a transaction of its own."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        migrate(self.db)
        weakref.finalize(self, self.db.close)
        self.writes = 0
        self.fail_with: Exception | None = None

    async def commit(self, op: Callable[[sqlite3.Connection], Any]) -> Any:
        if self.fail_with is not None:
            raise self.fail_with
        self.writes += 1
        return op(self.db)

    def post(self, op: Callable[[sqlite3.Connection], Any], done: Callable[[Any], None]) -> None:
        self.writes += 1
        done(op(self.db))

    async def read(self, fn: Callable[[sqlite3.Connection], Any]) -> Any:
        return fn(self.db)


class KnownTokens:
    """Two tokens; `renew` makes others."""

    def __init__(self) -> None:
        self.tokens: dict[Role, str] = {"owner": OWNER_TOKEN, "viewer": VIEWER_TOKEN}

    def load(self) -> dict[Role, str]:
        return dict(self.tokens)

    def renew(self) -> dict[Role, str]:
        self.tokens = {role: token + "x" for role, token in self.tokens.items()}
        return self.load()


class Clocks:
    """Both clocks of a door, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class MemoryDoor(ConsoleDoor):
    """Loaded from the start."""

    def __init__(self, store: MemoryStore | None = None, tokens: KnownTokens | None = None) -> None:
        self.store = store or MemoryStore()
        self.keys = tokens or KnownTokens()
        self.clocks = Clocks()
        super().__init__(self.store, self.keys, wall=self.clocks, clock=self.clocks)  # type: ignore[arg-type]
        self._know(self.keys.load())
