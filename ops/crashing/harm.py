"""What is done to a victim while a step is held, and afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import trio

from ops.crashing.matrix import Cell
from ops.crashing.reader import Reader
from ops.crashing.stage import Stage

AWAY_S: Final = 0.3
SEEN_S: Final = 20.0
"""For what must come of itself; generous, since a busy machine takes its time."""
LOOK_S: Final = 0.05
SETTLE_S: Final = 1.0
"""Between two things of which the second follows at once."""


class Harm:
    """One victim of one cell. `strike` returns when the worst is over; `let_go` is called on the way."""

    def __init__(
        self,
        stage: Stage,
        cell: Cell,
        source: str,
        target: str,
        reader: Reader,
        drain: str,
        let_go: Callable[[], None],
    ) -> None:
        self._cell = cell
        self._stage = stage
        self._source = source
        self._target = target
        self._reader = reader
        self._drain = drain
        self._let_go = let_go
        self.faults: list[str] = []
        self.came_too_late = False
        """The victim was given up before it could come back: nothing is known of what it would have said."""

    async def strike(self, victim: str) -> None:
        acts = {
            "source": lambda: self._kill(self._source),
            "target": lambda: self._kill(self._target),
            "coordinator": self._kill_coordinator,
            "store": lambda: self._fail_store(self._store_fault()),
            "store-after": lambda: self._fail_store("after-move"),
            "source-stop": lambda: self._stop(self._source),
            "source-pause": lambda: self._pause(self._source),
            "target-stop": lambda: self._stop(self._target),
            "target-pause": lambda: self._pause(self._target),
            "target-late": self._late,
            "client": self._client_gone,
            "client-lost": self._client_lost,
            "cancel": self._cancel,
            "cancel-drain": self._cancel_drain,
            "owner": self._owner,
        }
        await acts[victim]()

    async def _kill(self, role: str) -> None:
        pid = self._stage.pid(role)
        self._stage.losses += 1
        self._stage.signal(pid, signal.SIGKILL)
        await self._seen_gone(role, pid)
        self._let_go()

    async def _seen_gone(self, role: str, pid: int) -> None:
        """The coordinator knows of the loss, so that the step fails by it and not by a race."""
        with trio.move_on_after(SEEN_S):
            while True:
                views = await self._stage.deployment.workers()
                if views[role]["pid"] != pid or views[role]["state"] in ("dead", "starting"):
                    return
                await trio.sleep(0.01)

    async def _kill_coordinator(self) -> None:
        self._stage.kill_coordinator()
        self._let_go()
        await self._stage.restart(kill=True)

    def _store_fault(self) -> str:
        """At the commit it is the commit itself that fails, not what a neighbour writes before it."""
        return "before-move" if self._cell.point == "K.before" else "before"

    async def _fail_store(self, how: str) -> None:
        beats_s = 2 * self._stage.pace.timers["heartbeat_s"]
        # A worker that is held at the step counts nothing anew; what it counted last is known by then.
        await trio.sleep(beats_s)
        before = _free_blocks(await self._stage.deployment.workers())
        self._stage.fail_store(how)
        self._let_go()
        await self._stage.wait_unready()
        await trio.sleep(0.05)
        shown = len(self._reader.tokens)
        await trio.sleep(beats_s)
        if len(self._reader.tokens) != shown:
            self.faults.append("tokens were shown after the store had failed")
        after = _free_blocks(await self._stage.deployment.workers_now(SEEN_S))
        # SF: nothing on either side before a restart; but the source may have been released already.
        released = self._cell.step in "LZ" or (self._cell.step == "V" and self._cell.after)
        if not released and any(after[name] > before[name] for name in before):
            self.faults.append(f"blocks were freed after the store had failed: {before}, then {after}")
        self._stage.mend_store()
        await self._stage.restart(kill=False)

    async def _pause(self, role: str) -> None:
        pid = self._stage.pid(role)
        self._stage.signal(pid, signal.SIGSTOP)
        self._let_go()
        await trio.sleep(self._stage.pace.pause_s)
        self._stage.signal(pid, signal.SIGCONT)

    async def _stop(self, role: str) -> None:
        """Stopped until it is given up: killed by the service, and never continued."""
        pid = self._stage.pid(role)
        self._stage.losses += 1
        self._stage.signal(pid, signal.SIGSTOP)
        self._let_go()
        released = self._cell.step == "Z" or (self._cell.step == "L" and self._cell.after)
        watched = _Silence(self._stage, role, self._reader.session, self._drain, may_be_drained=released)
        while not gone(pid):
            await watched.look(pid)
            await trio.sleep(LOOK_S)
        self.faults += watched.faults

    async def _late(self) -> None:
        """What a worker says that was stopped, and given up, reaches nobody, and is counted (B33)."""
        before = await self._stage.fenced()
        pid = self._stage.pid(self._target)
        self._stage.signal(pid, signal.SIGSTOP)
        self._let_go()
        while not self._rehomed() and not gone(pid):  # noqa: ASYNC110  # others' state
            await trio.sleep(LOOK_S)
        self.came_too_late = gone(pid)
        self._stage.losses += self.came_too_late
        self._stage.signal(pid, signal.SIGCONT)
        with trio.move_on_after(SEEN_S):
            while await self._stage.fenced() == before:  # noqa: ASYNC110  # another process's count
                await trio.sleep(LOOK_S)
            return
        self.faults.append("nothing of the late target's was fenced")

    def _rehomed(self) -> bool:
        return any(move.outcome == "rehomed_source" for move in self._stage.moves(self._reader.session))

    async def _client_gone(self) -> None:
        """It goes, looks in while the step is held, and is away again while it goes on."""
        self._reader.leave()
        await trio.sleep(0.1)
        self._reader.come_back()
        accepted = (await self._stage.view("GET", f"/v1/sessions/{self._reader.session}"))["accepted"]
        with trio.move_on_after(SEEN_S) as scope:
            await self._reader.wait_tokens(accepted)
        if scope.cancelled_caught:
            self.faults.append(f"of {accepted} accepted tokens the client got {len(self._reader.tokens)}")
        self._reader.leave()
        await trio.sleep(0.1)
        self._let_go()
        await trio.sleep(AWAY_S)
        self._reader.come_back()

    async def _client_lost(self) -> None:
        """The grace runs in every phase; its end is a cancel at that step."""
        self._reader.leave()
        view = await self._ended()
        if (view["state"], view["code"]) != ("cancelled", "disconnect_grace_expired"):
            self.faults.append(f"after its client's grace the session is {view['state']}, {view['code']}")
        self._let_go()
        self._reader.come_back()

    async def _ended(self) -> Any:
        with trio.move_on_after(SEEN_S):
            while True:
                view = await self._stage.view("GET", f"/v1/sessions/{self._reader.session}")
                if view["finished_at"] is not None:
                    break
                await trio.sleep(LOOK_S)
        return view

    async def _cancel(self) -> None:
        """At once: the step is still held when the session has ended."""
        view = await self._stage.view("DELETE", f"/v1/sessions/{self._reader.session}")
        if view["state"] != "cancelled":
            self.faults.append(f"the session is {view['state']} after its cancel")
        self._let_go()

    async def _cancel_drain(self) -> None:
        """The call waits for the move, which is held; that it was heard, the drain's state says."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stage.view, "DELETE", f"/v1/drains/{self._drain}")
            with trio.move_on_after(SEEN_S):
                while await self._drain_runs():  # noqa: ASYNC110  # others' state
                    await trio.sleep(LOOK_S)
            self._let_go()

    async def _drain_runs(self) -> bool:
        view = await self._stage.view("GET", f"/v1/drains/{self._drain}")
        return bool(view["state"] == "running")

    async def _is_drained(self) -> bool:
        """Whether the give-back of the target's device has a drain, which may be over soon."""
        view = await self._stage.device(self._target, "vacating", "free")
        return bool(view["last_give_back"]["drains"])

    async def _owner(self) -> None:
        """The tracker sees the load, and the target's drain begins; in the end the device is the owner's."""
        assert self._stage.owner is not None
        self._stage.owner.begin(self._target)
        with trio.move_on_after(SEEN_S):
            while not await self._is_drained():  # noqa: ASYNC110  # others' state
                await trio.sleep(LOOK_S)
        self._let_go()
        back = (await self._stage.device(self._target, "free"))["last_give_back"]
        if back["why"] != "pressure" or back["free_in_s"] is None or not back["drains"]:
            self.faults.append(f"the give-back is not one for the owner's load, with its time: {back}")
        self._stage.owner.end()


class _Silence:
    """What must be seen of a stopped worker for as long as its process is there."""

    def __init__(self, stage: Stage, role: str, session: str, drain: str, *, may_be_drained: bool) -> None:
        self.faults: list[str] = []
        self._may_be_drained = may_be_drained
        self._before = {at for at, move in enumerate(stage.moves(session)) if move.outcome is not None}
        self._stage = stage
        self._role = role
        self._session = session
        self._drain = drain
        self._failed_at: float | None = None
        self._drained_at: float | None = None
        self._quarantined = False

    async def look(self, pid: int) -> None:
        now = trio.current_time()
        view = (await self._stage.deployment.workers())[self._role]
        drain = await self._stage.view("GET", f"/v1/drains/{self._drain}")
        moves = [m for at, m in enumerate(self._stage.moves(self._session)) if at not in self._before]
        if gone(pid):
            return
        self._quarantined = self._quarantined or bool(view["quarantine"])
        if drain["worker"] == self._role:
            # Note 3 at L: nothing is drained that has not released, nor was fenced and killed.
            drained = drain["state"] == "drained" and not self._may_be_drained
            self._drained_at = self._later(self._drained_at, drained, now)
            if self._drained_at is not None and now > self._drained_at + SETTLE_S:
                self._say("the worker counts as drained and has not released anything")
        else:
            failed = any(move.outcome in ("aborted_source_resumed", "rehomed_source") for move in moves)
            self._failed_at = self._later(self._failed_at, failed, now)
            if self._failed_at is not None and now > self._failed_at + SETTLE_S and not self._quarantined:
                self._say("a target that did not answer is not quarantined")  # H79

    @staticmethod
    def _later(at: float | None, holds: bool, now: float) -> float | None:
        return now if holds and at is None else at

    def _say(self, text: str) -> None:
        if text not in self.faults:
            self.faults.append(text)


def _free_blocks(views: dict[str, Any]) -> dict[str, int]:
    return {name: int(view["free_blocks"] or 0) for name, view in views.items()}


def gone(pid: int) -> bool:
    """Whether a process has ended, collected or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True
