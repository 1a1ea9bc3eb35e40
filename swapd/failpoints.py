"""Named points of a move at which a test may hold a process, end it, or have the step refused (A36).

Each step of the transaction has a `.before` and an `.after`, in the coordinator and, where a worker does the
work, in the worker. Unless `allow_failpoints` is set, a point is one comparison with None.

Armed, a point looks for a file of its own in the failpoints folder, which whoever runs the test writes:

    <role>.<point>.arm       taken once, renamed to .reached; says what to do there:
        hold                 wait until <role>.<point>.go is there
        kill                 end this process as a crash would
        refuse <code>        raise that code, as if the step had been refused
    break.<name>             a step is done wrong on purpose, so that a drill can be seen to fail
    store.fail               the next COMMIT fails, `before` it took effect or `after` it did; with `-move`
                             the next one that hands a session over

`role` is `coordinator` or a worker's id. A hold in the coordinator keeps one task, the rest of the service
goes on; in a worker it keeps the thread that does the step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import trio

from swapd.errors import Code, SwapdError

COORDINATOR: Final = "coordinator"
STEPS: Final = ("P", "R", "C", "F", "X", "T", "I", "K", "V", "L", "Z")
"""Plan, reserve, pre-copy, freeze, export, transcript, import, commit, activate, release, finish."""
COMMIT_ORDER: Final = "commit_order"
"""A break: the source is released before the commit."""
KEPT_IMPORT: Final = "kept_import"
"""A break: nobody tells the target of an aborted move to throw away what it took in."""
LOOK_S: Final = 0.003
HOLD_MAX_S: Final = 120.0
"""A hold that nobody ends goes on: a drill that died must not leave a service standing."""


class Failpoints:
    """The points of one process and the folder that arms them."""

    def __init__(self, folder: Path, role: str) -> None:
        self._folder = folder
        self._role = role

    def take(self, point: str) -> str | None:
        """What is to be done at a point, once; None: nothing. A `kill` does not return."""
        name = f"{self._role}.{point}"
        armed, reached = self._folder / f"{name}.arm", self._folder / f"{name}.reached"
        try:
            os.rename(armed, reached)
            action = reached.read_text().strip()
        except FileNotFoundError:
            return None
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if action.startswith("refuse "):
            raise SwapdError(Code(action.split()[1]), "a failpoint refused")
        return action

    def looks(self, point: str) -> Iterator[None]:
        """One item for each time that a hold must look again."""
        go = self._folder / f"{self._role}.{point}.go"
        until = time.monotonic() + HOLD_MAX_S
        while time.monotonic() < until:
            with contextlib.suppress(FileNotFoundError):
                go.unlink()
                return
            yield

    def broken(self, name: str) -> bool:
        return (self._folder / f"break.{name}").exists()

    def store_failure(self) -> str | None:
        """How the COMMIT that is about to run must fail; None: it need not."""
        try:
            return (self._folder / "store.fail").read_text().strip()
        except FileNotFoundError:
            return None


_armed: Failpoints | None = None


def arm(folder: str | Path, role: str) -> None:
    """Look for armed points in `folder` from now on, as `role`. The folder is made if it is not there."""
    global _armed
    path = Path(folder)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _armed = Failpoints(path, role)


def disarm() -> None:
    """Make every point a no-op again."""
    global _armed
    _armed = None


def reach(point: str) -> None:
    """A point in a thread. Raises what an armed `refuse` says."""
    if _armed is not None and _armed.take(point) is not None:
        for _ in _armed.looks(point):
            time.sleep(LOOK_S)


async def pass_by(point: str) -> None:
    """A point in a Trio task; a checkpoint only while it holds. Raises what an armed `refuse` says."""
    if _armed is not None and _armed.take(point) is not None:
        for _ in _armed.looks(point):
            await trio.sleep(LOOK_S)


def broken(name: str) -> bool:
    """Whether a test wants a step done wrong."""
    return _armed is not None and _armed.broken(name)


class FailingConnection(sqlite3.Connection):
    """The writer's connection of a service under test: `store.fail` makes COMMIT fail (H160)."""

    _moves = False
    """Whether this transaction hands a session over."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql.startswith("BEGIN"):
            self._moves = False
        self._moves = self._moves or sql.startswith("UPDATE moves SET state = 'committed'")
        how = _armed.store_failure() if _armed is not None and sql == "COMMIT" else None
        if how is None or (how.endswith("-move") and not self._moves):
            return super().execute(sql, parameters)
        if how.startswith("after"):
            super().execute(sql)
        raise sqlite3.OperationalError("disk I/O error")
