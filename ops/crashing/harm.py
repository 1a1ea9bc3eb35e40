"""What is done to a victim while a step is held, and afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Final

import trio

from ops.crashing.matrix import Cell
from ops.crashing.reader import Reader
from ops.crashing.stage import Stage

AWAY_S: Final = 0.3


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

    async def strike(self, victim: str) -> None:
        acts = {
            "source": lambda: self._kill(self._source),
            "target": lambda: self._kill(self._target),
            "coordinator": self._kill_coordinator,
            "store": lambda: self._fail_store(self._store_fault()),
            "store-after": lambda: self._fail_store("after-move"),
            "source-stop": lambda: self._stop(self._source, self._stage.pace.stopped_s),
            "source-pause": lambda: self._stop(self._source, self._stage.pace.pause_s),
            "target-stop": lambda: self._stop(self._target, self._stage.pace.stopped_s),
            "target-pause": lambda: self._stop(self._target, self._stage.pace.pause_s),
            "target-late": self._late,
            "client": self._client_gone,
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
        with trio.move_on_after(3):
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
        self._stage.fail_store(how)
        self._let_go()
        await self._stage.wait_unready()
        await trio.sleep(0.05)
        shown = len(self._reader.tokens)
        await trio.sleep(0.2)
        if len(self._reader.tokens) != shown:
            self.faults.append("tokens were shown after the store had failed")
        self._stage.mend_store()
        await self._stage.restart(kill=False)

    async def _stop(self, role: str, for_s: float) -> None:
        pid = self._stage.pid(role)
        self._stage.losses += for_s >= self._stage.pace.stopped_s
        self._stage.signal(pid, signal.SIGSTOP)
        self._let_go()
        await trio.sleep(for_s)
        self._stage.signal(pid, signal.SIGCONT)

    async def _late(self) -> None:
        """What a worker says that was stopped, and given up, reaches nobody, and is counted (B33)."""
        before = await self._stage.fenced()
        await self._stop(self._target, self._stage.pace.late_s)
        with trio.move_on_after(5):
            while await self._stage.fenced() == before:  # noqa: ASYNC110  # another process's count
                await trio.sleep(0.05)
            return
        self.faults.append("nothing of the late target's was fenced")

    async def _client_gone(self) -> None:
        self._reader.leave()
        await trio.sleep(0.1)
        self._let_go()
        await trio.sleep(AWAY_S)
        self._reader.come_back()

    async def _cancel(self) -> None:
        await self._stage.view("DELETE", f"/v1/sessions/{self._reader.session}")
        self._let_go()

    async def _cancel_drain(self) -> None:
        answers: list[Any] = []

        async def cancel() -> None:
            answers.append(await self._stage.view("DELETE", f"/v1/drains/{self._drain}"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel)
            await trio.sleep(0.1)  # it waits for the move, which is held: there is nothing to observe
            self._let_go()

    async def _owner(self) -> None:
        await self._stage.view("POST", f"/v1/workers/{self._target}/drains", {})
        self._let_go()
