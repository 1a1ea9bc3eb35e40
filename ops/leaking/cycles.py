"""One cycle: the session is moved, or its move is brought to an end before the commit."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import trio

from ops.crashing.stage import COORDINATOR, Stage
from ops.leaking.steps import Abort, Rotation
from ops.leaking.traveller import Traveller

LOOK_EVERY_S: Final = 0.01
CYCLE_S: Final = 120.0
HARMLESS: Final = frozenset({"precopy_diverged"})
"""A copy that did not catch up with the engine ends before anybody was paused; the drain tries again."""


class Moved(NamedTuple):
    """A move as the store has it in the end."""

    outcome: str | None
    reason: str | None
    recomputed: int


class Cycles:
    """Runs cycles on one stage. What must not be is collected in `faults`."""

    def __init__(self, stage: Stage, traveller: Traveller, aborts: tuple[Abort, ...]) -> None:
        self.faults: list[str] = []
        self.moved: Counter[tuple[str, str]] = Counter()
        """Native moves, by where from and where to."""
        self.aborted: Counter[tuple[str, Abort]] = Counter()
        self.again = 0
        """Tries that ended for want of time, and drains that moved a session after its move had aborted."""
        self.stuck = False
        """A cycle did not end: those after it would not, either."""
        self._stage = stage
        self._traveller = traveller
        self._rotation = Rotation(aborts)

    async def run(self, number: int) -> None:
        """Cycle `number`: even ones move, odd ones abort."""
        await self._traveller.ready()
        try:
            with trio.fail_after(CYCLE_S):
                await (self.abort() if number % 2 else self.migrate())
        except trio.TooSlowError:
            self.stuck = True
            self.faults.append(f"cycle {number} did not end: {await self._why()}")

    async def migrate(self) -> None:
        """Drain the worker that has the session, which must be native."""
        source, target = await self._sides()
        drain = await self._drain(source)
        await self._until(drain, lambda view: view["state"] != "running")
        moves = await self._moves(drain)
        *before, last = moves
        if last.outcome != "completed_native" or last.recomputed:
            self.faults.append(f"a move {source} to {target} was not native: {moves}")
        self.faults += [
            f"a move {source} to {target} ended: {move}" for move in before if move.reason not in HARMLESS
        ]
        self.again += len(before)
        self.moved[source, target] += 1

    async def abort(self) -> None:
        """Bring a move to an end at the next failpoint; the session stays where it is, or ends."""
        source, target = await self._sides()
        abort = self._rotation.next(source)
        role = {"source": source, "target": target}.get(abort.role, COORDINATOR)
        self._stage.clear()
        self._stage.arm(role, abort.point, abort.action)
        drain = await self._drain(source)
        if not await self._stage.reached(role, abort.point, self._traveller.over):
            self.faults.append(f"{abort.name} was not reached on {source}")
        await self._end(abort, role, drain)
        moves = await self._moves(drain)
        endings = [(move.outcome, move.reason) for move in moves if move.reason not in HARMLESS]
        if endings[:1] != [abort.ending]:
            self.faults.append(f"{abort.name} on {source} ended otherwise: {moves}")
        self.again += len(moves) - 1
        self.aborted[source, abort] += 1

    async def _end(self, abort: Abort, role: str, drain: str) -> None:
        stage = self._stage
        if abort.way == "refuse":
            await self._until(drain, lambda view: any(one["outcome"] for one in view["sessions"]))
            await stage.view("DELETE", f"/v1/drains/{drain}")
            return
        async with trio.open_nursery() as nursery:
            if abort.way == "cancel":
                # It answers when the move has ended, which is held.
                nursery.start_soon(stage.view, "DELETE", f"/v1/drains/{drain}")
                await self._until(drain, lambda view: view["state"] != "running")
            else:
                await stage.view("DELETE", f"/v1/sessions/{self._traveller.session}")
            stage.let_go(role, abort.point)
        await stage.view("DELETE", f"/v1/drains/{drain}")

    async def _why(self) -> list[str]:
        """What the newest drain says of its session."""
        newest = (await self._stage.view("GET", "/v1/drains"))["drains"][0]
        told = [f"{one['outcome']} {one['reason']} {one['detail'] or ''}" for one in newest["sessions"]]
        return [f"the drain is {newest['state']}", *told]

    async def _sides(self) -> tuple[str, str]:
        source = await self._stage.deployment.where(self._traveller.session)
        [target] = {"a", "b"} - {source}
        return source, target

    async def _drain(self, source: str) -> str:
        view = await self._stage.view("POST", f"/v1/workers/{source}/drains", {"deadline_s": CYCLE_S})
        return str(view["id"])

    async def _until(self, drain: str, holds: Callable[[Any], bool]) -> None:
        while True:
            if holds(await self._stage.view("GET", f"/v1/drains/{drain}")):
                return
            await trio.sleep(LOOK_EVERY_S)

    async def _moves(self, drain: str) -> list[Moved]:
        """The drain's moves, each with its outcome, which is written behind."""
        until = time.monotonic() + CYCLE_S
        while True:
            with contextlib.closing(sqlite3.connect(f"file:{self._stage.database}?mode=ro", uri=True)) as db:
                rows = db.execute(
                    "SELECT outcome, reason, stats FROM moves WHERE drain = ? ORDER BY key", (drain,)
                ).fetchall()
            if (rows and all(row[0] for row in rows)) or time.monotonic() > until:
                break
            await trio.sleep(LOOK_EVERY_S)
        return [
            Moved(outcome, reason, json.loads(stats)["recomputed_tokens"] if stats else 0)
            for outcome, reason, stats in rows
        ]
