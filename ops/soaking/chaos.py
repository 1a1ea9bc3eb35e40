"""What is done to the service while clients read: drains, stops, kills, at moments drawn from the seed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from typing import Any, Final

import trio

from swapd.client import Unreachable
from tests.e2e.deployment import Deployment

WORKERS: Final = ("a", "b")
FREEZES_S: Final = (0.05, 0.5, 3.0)
"""How long a process is stopped: shorter than a step's patience, than `suspect_s`, and near `dead_s`."""


class Chaos:
    """Harms one deployment. `done` counts what was done; `calm` ends everything that goes on."""

    def __init__(self, deployment: Deployment, rng: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self.workers_harmed = False
        self._deployment = deployment
        self._rng = rng
        self._stopped: set[int] = set()

    async def run(self, for_s: float) -> None:
        """One act after another."""
        violence = self._rng.choice([0.1, 0.5, 2.0])
        acts = {
            self.drain: 4,
            self.move_away: 10,
            self.cancel_drains: 4,
            self.kill_worker: 1.5 * violence,
            self.stop_worker: 2 * violence,
            self.kill_coordinator: 1.5 * violence,
            self.restart_coordinator: 0.7 * violence,
            self.stop_coordinator: 1 * violence,
        }
        with trio.move_on_after(for_s):
            while True:
                await trio.sleep(self._rng.choice([0, 0.02, 0.05, 0.1, self._rng.uniform(0, 1)]))
                [act] = self._rng.choices(list(acts), list(acts.values()))
                self.done[act.__name__] += 1
                # An act that has begun is brought to its end: a half-started coordinator is nobody's.
                with trio.CancelScope(shield=True):
                    await act()

    async def drain(self) -> None:
        worker = self._rng.choice(WORKERS)
        deadline_s = self._rng.choice([0.1, 5.0])
        await self._call("POST", f"/v1/workers/{worker}/drains", {"deadline_s": deadline_s})

    async def move_away(self) -> None:
        """Drain whoever has the sessions, while the other one is open, and open it again."""
        answer = await self._call("GET", "/v1/workers")
        views = [view for view in answer["workers"] if view["admitting"]] if answer else []
        if len(views) < len(WORKERS):
            await self.cancel_drains()
            return
        busiest = max(views, key=lambda view: view["sessions"])["id"]
        view = await self._call("POST", f"/v1/workers/{busiest}/drains", {"deadline_s": 2.0})
        patience_s = self._rng.choice([0.01, 0.05, 0.2, 1.0, 1.0])
        with trio.move_on_after(patience_s):
            while view is not None and view["state"] == "running":
                await trio.sleep(0.01)
                view = await self._call("GET", f"/v1/drains/{view['id']}")
        if self._rng.random() < 0.8:
            await self.cancel_drains()

    async def cancel_drains(self) -> None:
        for drain in await self.open_drains():
            await self._call("DELETE", f"/v1/drains/{drain}")
        await self.clear_quarantines()

    async def clear_quarantines(self) -> None:
        """As an operator would who has looked: a target that was stopped in a move is trusted again."""
        answer = await self._call("GET", "/v1/workers")
        for view in answer["workers"] if answer else []:
            if view["quarantine"]:
                await self._call("DELETE", f"/v1/workers/{view['id']}/quarantine")

    async def kill_worker(self) -> None:
        self.workers_harmed = True
        self._signal(self._rng.choice(WORKERS), signal.SIGKILL)

    async def stop_worker(self) -> None:
        self.workers_harmed = True
        pid = self._signal(self._rng.choice(WORKERS), signal.SIGSTOP)
        if pid is not None:
            await trio.sleep(self._rng.choice(FREEZES_S))
            self._continue(pid)

    async def kill_coordinator(self) -> None:
        self._deployment.kill_coordinator()
        await trio.sleep(self._rng.choice([0, 0.5]))
        self._deployment.launch()

    async def restart_coordinator(self) -> None:
        listened = self._deployment.announced()
        code = await trio.to_thread.run_sync(self._deployment.stop_coordinator)
        # Before Python has come as far as the coordinator's first line, a signal is the system's to handle.
        if code != 0 and not (code == -signal.SIGTERM and not listened):
            raise AssertionError(f"the coordinator ended with {code}: {self._deployment.log()}")
        self._deployment.launch()

    async def stop_coordinator(self) -> None:
        process = self._deployment.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await trio.sleep(self._rng.choice(FREEZES_S))
        process.send_signal(signal.SIGCONT)

    async def open_drains(self) -> list[str]:
        """Ids of drains that keep a worker closed."""
        answer = await self._call("GET", "/v1/workers")
        return [view["drain"] for view in answer["workers"] if view["drain"]] if answer else []

    def _signal(self, worker: str, number: int) -> int | None:
        ready = self._deployment.worker_ready(worker)
        if ready is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(ready.pid, number)
            return ready.pid
        return None

    @staticmethod
    def _continue(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    async def _call(self, method: str, path: str, body: object = None) -> Any:
        """One request whose refusal is an answer, too."""
        try:
            status, answer = await self._deployment.client.request(method, path, body, timeout_s=20)
        except Unreachable:
            return None
        if status >= 500 and not answer["error"]["retryable"]:
            raise AssertionError(f"{method} {path} answered {status}: {answer}")
        return answer if status < 400 else None
