"""One cell, from a fresh session to rest: hold the step, hurt the victim, let go, look at everything."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import msgspec
import trio

from ops.crashing.harm import Harm
from ops.crashing.judge import Evidence, Fault, compare, judge
from ops.crashing.matrix import Cell
from ops.crashing.reader import Reader
from ops.crashing.stage import COORDINATOR, Stage
from ops.soaking.clients import Plan
from swapd.client import Unreachable

FIRST_TOKENS: Final = 20
RECOVERING_S: Final = 5.0
"""Invariant 6: nobody is undecided for longer while a coordinator runs."""
HOG_TOKENS: Final = 4000
"""A session whose lease leaves no room for another in an arena of 1 MiB."""


BALLAST_TOKENS: Final = 6000
NEIGHBOUR: Final = Plan(
    prompt=(9, 9),
    max_new_tokens=1500,
    temperature=0.8,
    seed=9,
    allow_replay_fallback=True,
    on_disconnect="pause",
    begin_after_s=0.0,
    cancel_at=None,
    restless=0.0,
)


@cache
def neighbours_reference() -> list[int]:
    return NEIGHBOUR.reference()


class CellResult(msgspec.Struct):
    """What came of a cell: it held when `faults` is empty. `class_` with a star is the least allowed."""

    name: str
    step: str
    victim: str
    class_: str
    took_s: float
    moves: list[tuple[str | None, str | None, str]] = []
    outcome: str | None = None
    reason: str | None = None
    tokens: int = 0
    faults: list[tuple[str, str]] = []


class Trial:
    """One cell on one stage."""

    def __init__(self, stage: Stage, cell: Cell, plan: Plan, reference: Sequence[int]) -> None:
        self._stage = stage
        self._cell = cell
        self._plan = plan
        self._reference = reference
        self.reached = True
        """False: the session was over before the step began, so that nothing is known of the cell."""
        self._recovering_s = 0.0
        self._faults: list[Fault] = []

    async def run(self) -> CellResult:
        """Never raises what the cell found: it is a fault of the result."""
        began = time.monotonic()
        result = CellResult(self._cell.name, self._cell.step, self._cell.victim, "?", 0.0)
        try:
            with trio.fail_after(self._stage.pace.cell_s):
                await self._run(result)
        except* (AssertionError, trio.TooSlowError, OSError, Unreachable) as group:
            self._faults += [Fault("other", f"{type(e).__name__}: {e}"[:2000]) for e in _leaves(group)]
        result.faults = [tuple(fault) for fault in self._faults]
        result.took_s = time.monotonic() - began
        return result

    async def _run(self, result: CellResult) -> None:
        stage, cell = self._stage, self._cell
        stage.clear()
        hog, session = await self._sessions(cell.victim == "arena" and cell.step in ("P", "R"))
        reader = Reader(stage.deployment.client, session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run)
            nursery.start_soon(self._watch, session)
            if hog is not None:
                nursery.start_soon(hog.run)
                await hog.wait_tokens(FIRST_TOKENS)
            await reader.wait_tokens(FIRST_TOKENS)
            source = await stage.deployment.where(session)
            [target] = {"a", "b"} - {source}
            neighbour = await self._neighbour(target) if hog is None else None
            if neighbour is not None:
                nursery.start_soon(neighbour.run)
            drain = await self._strike(source, target, reader, hog)
            await reader.over.wait()
            if hog is not None:
                await stage.view("DELETE", f"/v1/sessions/{hog.session}")
                await hog.over.wait()
            if neighbour is not None:
                await stage.view("DELETE", f"/v1/sessions/{neighbour.session}")
                await neighbour.over.wait()
            nursery.cancel_scope.cancel()
        await self._look(result, session, drain, reader)
        if neighbour is not None:
            self._check_neighbour(neighbour)

    async def _strike(self, source: str, target: str, reader: Reader, hog: Reader | None) -> str:
        """Drain the source, and harm when the step is reached. Returns the drain's id."""
        stage, cell = self._stage, self._cell
        refuse = cell.victim == "arena" and hog is None
        if hog is not None and await stage.deployment.where(hog.session) != source:
            raise AssertionError("the two sessions are not on one worker")
        site = {COORDINATOR: COORDINATOR, "source": source, "target": target}[cell.site]
        point = cell.point
        if cell.victim == "arena":
            site, point = (source, f"{cell.step}.before") if refuse else (COORDINATOR, f"{cell.step}.before")
        stage.arm(site, point, "refuse arena_exhausted" if refuse else "hold")
        view = await stage.view("POST", f"/v1/workers/{source}/drains", {"deadline_s": 60.0})
        drain = str(view["id"])
        if not await stage.reached(site, point, reader.over):
            self.reached = False
            raise AssertionError(f"{site} did not come to {point}")
        await self._check_admission(source, drain)
        if cell.victim == "arena":
            if not refuse:
                await self._check_exhausted(drain, reader.session)
                stage.let_go(site, point)
            return drain
        harm = Harm(stage, cell, source, target, reader, drain, lambda: stage.let_go(site, point))
        await harm.strike(cell.victim)
        self._faults += [Fault("other", text) for text in harm.faults]
        return drain

    async def _look(self, result: CellResult, session: str, drain: str, reader: Reader) -> None:
        """Collect what is known in the end, and judge it."""
        stage, cell = self._stage, self._cell
        await stage.open_again()
        view = await stage.view("GET", f"/v1/drains/{drain}")
        told: dict[str, Any] = next((one for one in view["sessions"] if one["session"] == session), {})
        final = await stage.view("GET", f"/v1/sessions/{session}")
        await stage.deployment.wait_settled(stage.pace.rest_s)
        await stage.lift_quarantines()
        self._faults += await stage.check_rest()
        moves = stage.moves(session)
        seen = Evidence(
            moves, view["state"], told.get("outcome"), told.get("reason"), final["state"], final["code"]
        )
        result.class_, faults = judge(cell, seen)
        if faults and moves and all(move.reason == "precopy_diverged" for move in moves):
            self.reached = False  # on a busy machine a copy may not catch up: nothing was done to anybody
        self._faults += faults
        result.moves = [(move.outcome, move.reason, move.phase) for move in moves]
        result.outcome, result.reason = seen.outcome, seen.reason
        result.tokens = len(reader.tokens)
        self._faults += [Fault("lost", text) for text in reader.lost]
        self._faults += [Fault("doubled", text) for text in reader.doubled]
        self._faults += compare(reader.tokens, self._reference, final["state"], final["accepted"])
        self._check_store(session, reader, moves)
        if view["state"] not in ("drained", "cancelled"):
            self._faults.append(Fault("left", f"the drain is {view['state']}"))
        if told.get("outcome") is None and view["sessions"]:
            self._faults.append(Fault("other", "the drain has no outcome for the session"))
        if reader.ending is not None and reader.ending[0] != final["state"]:
            self._faults.append(Fault("lost", f"the client was told {reader.ending[0]}: {final['state']}"))
        if self._recovering_s > RECOVERING_S:
            self._faults.append(Fault("other", f"undecided for {self._recovering_s:.1f} s"))

    def _check_store(self, session: str, reader: Reader, moves: Sequence[Any]) -> None:
        stored = self._stage.transcript(session)
        if stored != list(enumerate(reader.tokens, 1)):
            self._faults.append(Fault("lost", "the store's transcript is not what the client has"))
        epochs = [move.epoch for move in moves]
        if epochs != sorted(epochs):
            self._faults.append(Fault("doubled", f"epochs do not rise: {epochs}"))
        if open_moves := [move for move in moves if move.outcome is None]:
            self._faults.append(Fault("left", f"moves without an outcome: {open_moves}"))

    # Others ----------------------------------------------------------------------------------

    async def _create(self, plan: Plan) -> str:
        return str((await self._stage.view("POST", "/v1/sessions", plan.body()))["id"])

    async def _sessions(self, with_hog: bool) -> tuple[Reader | None, str]:
        """The session, and beside it on its worker one that needs the whole arena to move."""
        if not with_hog:
            return None, await self._create(self._plan)
        # Sessions go where least is promised: the ballast keeps the next two off its own worker.
        ballast = await self._create(msgspec.structs.replace(NEIGHBOUR, max_new_tokens=BALLAST_TOKENS))
        plan = msgspec.structs.replace(NEIGHBOUR, max_new_tokens=HOG_TOKENS)
        hog = Reader(self._stage.deployment.client, await self._create(plan))
        session = await self._create(self._plan)
        await self._stage.view("DELETE", f"/v1/sessions/{ballast}")
        return hog, session

    async def _neighbour(self, target: str) -> Reader | None:
        """A session that lives on the target and must not notice (invariant 8)."""
        if self._stage.deployment.engine != "sim":
            return None  # what else is in the batch may change a real engine's numbers
        session = await self._create(NEIGHBOUR)
        if await self._stage.deployment.where(session) != target:
            await self._stage.view("DELETE", f"/v1/sessions/{session}")
            return None
        return Reader(self._stage.deployment.client, session)

    def _check_neighbour(self, neighbour: Reader) -> None:
        self._faults += [Fault("lost", f"neighbour: {text}") for text in neighbour.lost]
        self._faults += [Fault("doubled", f"neighbour: {text}") for text in neighbour.doubled]
        if neighbour.tokens != neighbours_reference()[: len(neighbour.tokens)]:
            self._faults.append(Fault("lost", "neighbour: its tokens are not the reference's"))

    async def _check_admission(self, source: str, drain: str) -> None:
        """Invariant 7: closed exactly while a drain runs."""
        view = (await self._stage.deployment.workers())[source]
        if view["admitting"] and (await self._stage.view("GET", f"/v1/drains/{drain}"))["state"] == "running":
            self._faults.append(Fault("other", f"the source of a running drain is open: {view}"))

    async def _check_exhausted(self, drain: str, session: str) -> None:
        view = await self._stage.view("GET", f"/v1/drains/{drain}")
        reasons = [one["reason"] for one in view["sessions"] if one["session"] == session]
        if reasons != ["arena_exhausted"]:
            self._faults.append(Fault("other", f"the drain does not say that the arena is full: {reasons}"))

    async def _watch(self, session: str) -> None:
        """How long the session is undecided in one piece (invariant 6)."""
        since: float | None = None
        while True:
            state = None
            try:
                _, view = await self._stage.deployment.client.request(
                    "GET", f"/v1/sessions/{session}", timeout_s=2
                )
                state = view.get("state") if isinstance(view, dict) else None
            except Unreachable:
                pass
            now = trio.current_time()
            since = (now if since is None else since) if state == "recovering" else None
            if since is not None:
                self._recovering_s = max(self._recovering_s, now - since)
            await trio.sleep(0.1)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]
