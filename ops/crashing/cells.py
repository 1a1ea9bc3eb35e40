"""One cell, from a fresh session to rest: hold the step, hurt the victim, let go, look at everything."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import msgspec
import trio

from ops.crashing.harm import Harm
from ops.crashing.judge import Evidence, Fault, MoveRow, check_record, compare, judge
from ops.crashing.matrix import Cell
from ops.crashing.reader import TERMINAL, Reader
from ops.crashing.stage import COORDINATOR, Stage
from ops.soaking.clients import Plan
from swapd.client import Unreachable

FIRST_TOKENS: Final = 20
RECOVERING_S: Final = 5.0
"""Invariant 6: nobody is undecided for longer while a coordinator runs."""
HOG_TOKENS: Final = 4000
"""A session whose lease leaves no room for another in an arena of 1 MiB."""


BALLAST_TOKENS: Final = 6000
GUEST_TOKENS: Final = 500
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
        """False: the session was over too soon, or nothing came of the harm: nothing is known of the cell."""
        self._source = ""
        self._epoch = 0
        self._earlier_moves = 0
        """Moves before the one that was held: a busy machine may abort one on its way to the step."""
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
        if any(fault.kind != "other" for fault in self._faults):
            self.reached = True  # whatever led to it, that must not be
        result.faults = [(fault.kind, fault.text) for fault in self._faults]
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
            self._source = source
            neighbour = await self._neighbour(target) if hog is None else None
            if neighbour is not None:
                nursery.start_soon(neighbour.run)
                await neighbour.wait_tokens(1)
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
        await self._read_again(reader)
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
        self._epoch = (await stage.view("GET", f"/v1/sessions/{reader.session}"))["epoch"]
        if cell.committed:
            self._epoch -= 1
            # Every wave comes to its finish, also one that a busy machine has aborted.
            self.reached = self._epoch > 0
            assert self.reached, "the move that came to the step had not been committed"
        if not refuse:  # what is refused is not held: it may be over by now, and another be on its way
            unwritten = (cell.step, cell.after) == ("P", False)
            self._earlier_moves = len(stage.moves(reader.session)) - (not unwritten)
        await self._check_admission(source, drain)
        if cell.victim == "arena":
            if not refuse:
                await self._check_exhausted(drain, reader.session)
                stage.let_go(site, point)
            return drain
        harm = Harm(stage, cell, source, target, reader, drain, lambda: stage.let_go(site, point))
        await harm.strike(cell.victim)
        if harm.came_too_late:
            self.reached = False
        self._faults += [Fault("other", text) for text in harm.faults]
        return drain

    async def _look(self, result: CellResult, session: str, drain: str, reader: Reader) -> None:
        """Collect what is known in the end, and judge it."""
        stage, cell = self._stage, self._cell
        self._faults += await stage.check_doors()
        view = await self._drained(drain)
        await stage.open_again()
        told: dict[str, Any] = next((one for one in view["sessions"] if one["session"] == session), {})
        final = await stage.view("GET", f"/v1/sessions/{session}")
        await stage.deployment.wait_settled(stage.pace.rest_s)
        await stage.lift_quarantines()
        self._faults += await stage.check_rest()
        moves = stage.moves(session)[self._earlier_moves :]
        seen = Evidence(
            moves=moves,
            drain_state=view["state"],
            outcome=told.get("outcome"),
            reason=told.get("reason"),
            state=final["state"],
            code=final["code"],
            source=self._source,
            worker=final["worker"],
            epoch_before=self._epoch,
            epoch=final["epoch"],
            recomputed=told.get("recomputed_tokens", 0),
            drain=drain,
        )
        result.class_, faults = judge(cell, seen)
        if faults and self._unlucky(seen):
            self.reached = False
        self._faults += faults
        self._faults += check_record(cell, seen)
        result.moves = [(move.outcome, move.reason, move.phase) for move in moves]
        result.outcome, result.reason = seen.outcome, seen.reason
        result.tokens = len(reader.tokens)
        self._faults += [Fault("lost", text) for text in reader.lost]
        self._faults += [Fault("doubled", text) for text in reader.doubled]
        self._faults += compare(reader.tokens, self._reference, final["state"], final["accepted"])
        self._check_store(session, reader, moves)
        if view["state"] != "drained" and (view["state"], cell.victim) != ("cancelled", "cancel-drain"):
            self._faults.append(Fault("left", f"the drain is {view['state']}"))
        if told.get("outcome") is None and view["sessions"]:
            self._faults.append(Fault("other", "the drain has no outcome for the session"))
        if reader.ending is not None and reader.ending[0] != final["state"]:
            self._faults.append(Fault("lost", f"the client was told {reader.ending[0]}: {final['state']}"))
        if self._recovering_s > RECOVERING_S:
            self._faults.append(Fault("other", f"undecided for {self._recovering_s:.1f} s"))

        self._check_end(reader, final["code"], len(reader.tokens))

    async def _drained(self, drain: str) -> Any:
        """The drain's view once it is over: with nothing left on the worker it ends by itself."""
        with trio.move_on_after(self._stage.pace.rest_s):
            while True:
                view = await self._stage.view("GET", f"/v1/drains/{drain}")
                if view["state"] in ("drained", "cancelled"):
                    break
                await trio.sleep(0.05)
        return view

    def _unlucky(self, seen: Evidence) -> bool:
        """On a busy machine a copy may not catch up, or the session be over: nothing was done to anybody."""
        outcomes = [move.outcome for move in seen.moves if move.reason != "precopy_diverged"]
        if seen.moves and not outcomes:
            return True
        if seen.state != "completed" or seen.drain_state != "drained":
            return False
        over = outcomes[:1] in ([], ["cancelled"])
        over_at_the_target = "o" in self._cell.allowed and outcomes[1:] in ([], ["cancelled"])
        return over or over_at_the_target

    def _check_end(self, reader: Reader, code: str | None, tokens: int) -> None:
        """OL: whoever is told of a failure is told why, and what was accepted last (H27)."""
        name, data = reader.ending or ("", {})
        if name == "failed" and (data.get("code"), data.get("accepted")) != (code, tokens):
            self._faults.append(Fault("lost", f"the client was told {data} of {code} after {tokens} tokens"))

    def _check_store(self, session: str, reader: Reader, moves: Sequence[MoveRow]) -> None:
        stored = self._stage.transcript(session)
        if stored != list(enumerate(reader.tokens, 1)):
            self._faults.append(Fault("lost", "the store's transcript is not what the client has"))
        if open_moves := [move for move in moves if move.outcome is None]:
            self._faults.append(Fault("left", f"moves without an outcome: {open_moves}"))

    async def _read_again(self, reader: Reader) -> None:
        """Invariant 3, H21: from the beginning, the same events, and one end, the last of them."""
        again = Reader(self._stage.deployment.client, reader.session)
        with trio.fail_after(self._stage.pace.rest_s):
            await again.run()
        ends = sum(name in TERMINAL for _, name, _ in again.events)
        if again.events != reader.events or ends != 1:
            self._faults.append(Fault("doubled", f"read again the session has other events, {ends} ends"))

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
        # With both workers closed to it, it is left to its own end.
        short = self._cell.victim == "owner"
        plan = msgspec.structs.replace(NEIGHBOUR, max_new_tokens=GUEST_TOKENS) if short else NEIGHBOUR
        session = await self._create(plan)
        # Sessions go where least is promised, and nothing is promised there.
        assert await self._stage.deployment.where(session) == target, "the neighbour is not on the target"
        return Reader(self._stage.deployment.client, session)

    def _check_neighbour(self, neighbour: Reader) -> None:
        self._faults += [Fault("lost", f"neighbour: {text}") for text in neighbour.lost]
        self._faults += [Fault("doubled", f"neighbour: {text}") for text in neighbour.doubled]
        if neighbour.ending is None or neighbour.ending[0] == "failed":
            self._faults.append(Fault("lost", f"neighbour: it ended with {neighbour.ending}"))
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
        """How long the session is undecided in one piece (invariant 6).

        While a worker is being started that could take it, it is decided that it waits for that (A16).
        """
        client = self._stage.deployment.client
        since: float | None = None
        while True:
            undecided = False
            try:
                _, view = await client.request("GET", f"/v1/sessions/{session}", timeout_s=2)
                if isinstance(view, dict) and view.get("state") == "recovering":
                    _, views = await client.request("GET", "/v1/workers", timeout_s=2)
                    undecided = all(one["state"] not in ("starting", "dead") for one in views["workers"])
            except Unreachable:
                pass
            now = trio.current_time()
            since = (now if since is None else since) if undecided else None
            if since is not None:
                self._recovering_s = max(self._recovering_s, now - since)
            await trio.sleep(0.1)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]
