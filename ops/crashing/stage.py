"""The service under test: its failpoints, its signals, its restarts, and what it holds when it is at rest."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import trio

from ops.crashing.judge import Fault, MoveRow
from ops.crashing.pace import PACES, Pace
from swapd.client import Unreachable
from tests.e2e.deployment import TOKEN, Deployment

PATIENCE_S: Final = 1.5
"""For a worker that was killed; after that a new coordinator begins with a short back-off."""
LOSSES_BORNE: Final = 2
"""After more the back-off is longer than `decide_s`, which is how long a session waits for a place (A16)."""
FDS_KEPT: Final = 3
"""Descriptors that may come and go: a client's connection, a reader of the store."""
COORDINATOR: Final = "coordinator"


class Stage:
    """One deployment with failpoints, used by many cells."""

    def __init__(self, engine: str, model: str, step_ms: float, pace: Pace | None = None) -> None:
        self.pace = pace or PACES[engine]
        self.deployment = Deployment(
            engine,
            model,
            extra=self.pace.toml(step_ms),
            top="allow_failpoints = true\nprecopy_duty = 1.0",
        )
        text = self.deployment.config.read_text()
        # Sessions live through a restart of the coordinator, and one long session fills the arena.
        text = text.replace('stop_workers = "always"', 'stop_workers = "idle"')
        if engine == "sim":
            text = re.sub(r"arena_bytes = \d+", f"arena_bytes = {1 << 20}", text)
        self.deployment.config.write_text(text)
        self.restarts = 0
        self.losses = 0
        """Workers that this coordinator has lost: it waits longer before each new start of one."""
        self._folder = self.deployment.folder / "s" / "failpoints"
        self._descriptors: dict[int, int] = {}

    async def start(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        await self.deployment.start(ready_s=60 if self.deployment.engine == "sim" else 240)

    def break_order(self, name: str) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        (self._folder / f"break.{name}").touch()

    # Failpoints ------------------------------------------------------------------------------

    def clear(self) -> None:
        for path in self._folder.iterdir():
            if not path.name.startswith("break."):
                path.unlink()

    def arm(self, role: str, point: str, action: str = "hold") -> None:
        path = self._folder / f"{role}.{point}.arm"
        draft = path.with_suffix(".draft")
        draft.write_text(action)
        draft.rename(path)

    async def reached(self, role: str, point: str, unless: trio.Event) -> bool:
        """Whether it was, in good time; `unless` says that it cannot be any more."""
        path = self._folder / f"{role}.{point}.reached"
        with trio.move_on_after(self.pace.reach_s):
            while not unless.is_set():
                if path.exists():
                    return True
                await trio.sleep(0.005)
        return False

    def let_go(self, role: str, point: str) -> None:
        (self._folder / f"{role}.{point}.go").touch()

    def fail_store(self, how: str) -> None:
        (self._folder / "store.fail").write_text(how)

    def mend_store(self) -> None:
        (self._folder / "store.fail").unlink(missing_ok=True)

    # Processes -------------------------------------------------------------------------------

    def pid(self, role: str) -> int:
        if role == COORDINATOR:
            assert self.deployment.process is not None
            return self.deployment.process.pid
        ready = self.deployment.worker_ready(role)
        assert ready is not None, f"worker {role} is not there"
        return ready.pid

    def signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def kill_coordinator(self) -> None:
        self.deployment.kill_coordinator()

    async def restart(self, *, kill: bool) -> None:
        """A new coordinator on the same workers, ready when this returns."""
        process = self.deployment.process
        assert process is not None
        self.restarts += 1
        self.losses = 0
        if process.poll() is None:
            if kill:
                self.deployment.kill_coordinator()
            else:
                code = await trio.to_thread.run_sync(self.deployment.stop_coordinator)
                assert code == 0, f"the coordinator ended with {code}: {self.deployment.log()}"
        self.deployment.launch()
        await self.deployment.wait_ready(self.pace.cell_s, workers=0)

    async def wait_unready(self) -> None:
        """Until the service says that it is not ready (H160)."""
        with trio.fail_after(10):
            while True:
                with contextlib.suppress(Unreachable):
                    status, _ = await self.deployment.client.request("GET", "/readyz", timeout_s=2)
                    if status == 503:
                        return
                await trio.sleep(0.02)

    # Asking ----------------------------------------------------------------------------------

    def moves(self, session: str) -> tuple[MoveRow, ...]:
        """The session's moves as the store has them, oldest first."""
        with contextlib.closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as db:
            rows = db.execute(
                "SELECT outcome, reason, phase, epoch, stats FROM moves WHERE session = ? ORDER BY key",
                (session,),
            ).fetchall()
        return tuple(
            # The column is the phase that was last noted; what the move says of itself is exact.
            MoveRow(outcome, reason, json.loads(stats)["phase"] if stats else phase, epoch)
            for outcome, reason, phase, epoch, stats in rows
        )

    def transcript(self, session: str) -> list[tuple[int, int]]:
        """Positions and tokens as the store has them."""
        with contextlib.closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as db:
            return db.execute(
                "SELECT pos, token_id FROM tokens WHERE session_key ="
                " (SELECT key FROM sessions WHERE id = ?) ORDER BY pos",
                (session,),
            ).fetchall()

    @property
    def database(self) -> Path:
        return self.deployment.folder / "swapd.db"

    async def view(self, method: str, path: str, body: object = None) -> Any:
        """An answer, over a restart if need be."""
        with trio.fail_after(30):
            while True:
                with contextlib.suppress(Unreachable):
                    status, answer = await self.deployment.client.request(method, path, body, timeout_s=20)
                    if status < 500:
                        assert status < 400, (method, path, status, answer)
                        return answer
                await trio.sleep(0.05)

    # Rest ------------------------------------------------------------------------------------

    async def open_again(self) -> None:
        """End what keeps workers closed, and have both workers back."""
        for view in (await self.view("GET", "/v1/workers"))["workers"]:
            if view["drain"]:
                await self.view("DELETE", f"/v1/drains/{view['drain']}")
        if self.losses < LOSSES_BORNE:
            with contextlib.suppress(AssertionError):
                await self.deployment.wait_ready(PATIENCE_S)
                return
        await self.restart(kill=False)
        await self.deployment.wait_ready(self.pace.rest_s)

    async def lift_quarantines(self) -> None:
        """As an operator who found the worker in order (H79); refused while anything is left on it."""
        for view in (await self.view("GET", "/v1/workers"))["workers"]:
            if view["quarantine"]:
                await self.view("DELETE", f"/v1/workers/{view['id']}/quarantine")

    async def check_rest(self) -> list[Fault]:
        """Nothing is reserved, lent, frozen or held, on either side (invariant 4)."""
        faults: list[Fault] = []
        try:
            views = await self.deployment.wait_settled(self.pace.rest_s)
        except trio.TooSlowError:
            views = await self.deployment.workers()
            faults.append(Fault("left", f"the workers are not at rest: {views}"))
        for name, view in views.items():
            if view["free_blocks"] != view["usable_blocks"] or view["committed_blocks"]:
                faults.append(Fault("left", f"worker {name} holds blocks: {view}"))
            if view["drain"] or not view["admitting"]:
                faults.append(Fault("left", f"worker {name} is not open: {view}"))
        sessions = (await self.view("GET", "/v1/sessions"))["sessions"]
        if sessions:
            faults.append(Fault("left", f"sessions go on: {sessions}"))
        until = time.monotonic() + self.pace.rest_s
        while (held := await self._held()) and time.monotonic() < until:  # noqa: ASYNC110  # others' state
            await trio.sleep(0.1)
        return faults + [Fault("left", text) for text in held]

    async def _held(self) -> list[str]:
        metrics = await self.metrics()
        held = [
            f"{name} is {value:g}"
            for name, value in metrics.items()
            if value and (name == "swapd_open_reservations" or name == 'swapd_arena_bytes{kind="lent"}')
        ]
        pids = {role: self.pid(role) for role in (COORDINATOR, "a", "b")}
        if strangers := set(self.deployment.processes()) - set(pids.values()):
            held.append(f"processes are left: {sorted(strangers)}")
        for role, pid in pids.items():
            count = len(os.listdir(f"/proc/{pid}/fd"))
            # The first rest of a process is its baseline: what it opens once is open by then (A38).
            if count > self._descriptors.setdefault(pid, count) + FDS_KEPT:
                held.append(f"{role} has {count} descriptors, {self._descriptors[pid]} at its baseline")
        return held

    async def fenced(self) -> float:
        """How many messages of those who are not the owner any more were refused."""
        metrics = await self.metrics()
        return sum(count for name, count in metrics.items() if name.startswith("swapd_fenced_messages_total"))

    async def metrics(self) -> dict[str, float]:
        """Every sample of `/metrics`, by name and labels."""
        return await trio.to_thread.run_sync(self._metrics)

    def _metrics(self) -> dict[str, float]:
        url = f"{self.deployment.announced()}/metrics"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    async def recover(self) -> None:
        """After a cell that failed: end all that goes on, so that the next one begins from nothing."""
        self.clear()
        for role in ("a", "b"):
            ready = self.deployment.worker_ready(role)
            if ready is not None:
                self.signal(ready.pid, signal.SIGCONT)
        await self.restart(kill=True)
        for one in (await self.view("GET", "/v1/sessions"))["sessions"]:
            await self.view("DELETE", f"/v1/sessions/{one['id']}")
        await self.open_again()
        with contextlib.suppress(trio.TooSlowError):
            await self.deployment.wait_settled(self.pace.rest_s)

    def close(self, keep: bool) -> None:
        for role in ("a", "b"):
            ready = self.deployment.worker_ready(role)
            if ready is not None:
                self.signal(ready.pid, signal.SIGCONT)
        self.deployment.close(keep=keep)
