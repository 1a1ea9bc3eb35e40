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
from typing import Any, Final, get_args

import trio

from ops.crashing import owner
from ops.crashing.judge import Fault, MoveRow
from ops.crashing.pace import PACES, Pace
from swapd.client import Unreachable
from swapd.migration.tally import FINAL_STATES
from swapd.views import Outcome
from tests.e2e.deployment import TOKEN, Deployment

PATIENCE_S: Final = 1.5
"""For a worker that was killed; after that a new coordinator begins with a short back-off."""
LOSSES_BORNE: Final = 2
"""After more the back-off is longer than `decide_s`, which is how long a session waits for a place (A16)."""
FDS_KEPT: Final = 3
"""Descriptors that may come and go: a client's connection, a reader of the store."""
LOOK_S: Final = 0.05
COORDINATOR: Final = "coordinator"


class Stage:
    """One deployment with failpoints, used by many cells."""

    def __init__(self, engine: str, model: str, step_ms: float, pace: Pace | None = None) -> None:
        self.pace = pace or PACES[engine, "patient"]
        self._step_ms = step_ms
        lends = self.pace.lends
        self.deployment = Deployment(
            engine,
            model,
            extra=self.pace.toml(step_ms) + (owner.TOML if lends else ""),
            top="allow_failpoints = true\nprecopy_duty = 1.0",
            lent=owner.DEVICES if lends else None,
        )
        self.owner: owner.Owner | None = None
        text = self.deployment.config.read_text()
        # Workers live through a restart of the coordinator, and one long session fills the arena.
        text = text.replace('stop_workers = "always"', 'stop_workers = "never"')
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
        if self.pace.lends:
            self.owner = owner.Owner(self.deployment.folder)
            self.deployment.env = self.owner.env()
        await self.deployment.start(ready_s=60 if self.deployment.engine == "sim" else 240)

    async def keep_pace(self, pace: Pace) -> bool:
        """Have the same workers under other timers from now on; False: that needs another deployment."""
        if pace.lends != self.pace.lends:
            return False
        if pace != self.pace:
            text = self.deployment.config.read_text()
            before, after = self.pace.toml(self._step_ms), pace.toml(self._step_ms)
            assert before in text
            self.deployment.config.write_text(text.replace(before, after))
            self.pace = pace
            await self.restart(kill=True)
            await self.deployment.wait_ready(self.pace.rest_s)
        return True

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
        rows = self._rows(
            "SELECT outcome, reason, phase, epoch, source_worker, target_worker, drain, stats FROM moves"
            " WHERE session = ? ORDER BY key",
            session,
        )
        return tuple(_move(*row) for row in rows)

    def transcript(self, session: str) -> list[tuple[int, int]]:
        """Positions and tokens as the store has them."""
        return self._rows(
            "SELECT pos, token_id FROM tokens WHERE session_key ="
            " (SELECT key FROM sessions WHERE id = ?) ORDER BY pos",
            session,
        )

    def _rows(self, query: str, *values: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as db:
            return db.execute(query, values).fetchall()

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

    async def device(self, worker: str, *states: str) -> Any:
        """The view of a worker's device once it is in one of the states."""
        with trio.fail_after(self.pace.rest_s):
            while True:
                view = await self.view("GET", f"/v1/devices/{owner.DEVICES[worker]}")
                if view["state"] in states:
                    return view
                await trio.sleep(LOOK_S)

    # Rest ------------------------------------------------------------------------------------

    async def check_doors(self) -> list[Fault]:
        """Invariant 7: a worker is closed while a drain of it goes on or it is quarantined, else open."""
        if self.owner is not None:
            self.owner.end()
            for worker in owner.DEVICES:
                await self.device(worker, "lent")
        until = time.monotonic() + self.pace.rest_s
        while True:
            wrong = [
                view
                for view in (await self.deployment.workers()).values()
                if view["state"] == "ready" and view["admitting"] == bool(view["drain"] or view["quarantine"])
            ]
            if not wrong or time.monotonic() > until:
                return [
                    Fault("left", f"a worker is open or closed without a reason: {view}") for view in wrong
                ]
            await trio.sleep(LOOK_S)

    async def open_again(self) -> None:
        """End what keeps workers closed, and have both workers back."""
        for view in (await self.view("GET", "/v1/workers"))["workers"]:
            if view["drain"]:
                await self.view("DELETE", f"/v1/drains/{view['drain']}")
        if self.losses < LOSSES_BORNE:
            with contextlib.suppress(AssertionError):
                await self.deployment.wait_ready(PATIENCE_S)
                return
        # As a crash: workers that hold nothing would end with a coordinator that stops.
        await self.restart(kill=True)
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
        strangers = set(self.deployment.processes()) - set(pids.values())
        if strangers := {pid for pid in strangers if not _is_sampler(pid)}:
            held.append(f"processes are left: {sorted(strangers)}")
        held += self._miscounted(metrics)
        for role, pid in pids.items():
            count = len(os.listdir(f"/proc/{pid}/fd"))
            # The first rest of a process is its baseline: what it opens once is open by then (A38).
            if count > self._descriptors.setdefault(pid, count) + FDS_KEPT:
                held.append(f"{role} has {count} descriptors, {self._descriptors[pid]} at its baseline")
        return held

    def _miscounted(self, metrics: dict[str, float]) -> list[str]:
        """Invariant 5: each move and drain that is over is counted once, by an outcome of the closed set."""
        wrong = []
        moves = dict(
            self._rows("SELECT outcome, count(*) FROM moves WHERE state = 'finished' GROUP BY outcome")
        )
        drains = dict(self._rows("SELECT state, count(*) FROM drains GROUP BY state"))
        if strange := set(moves) - set(get_args(Outcome)):
            wrong.append(f"outcomes that there are not: {strange}")
        for name, label, values, recorded in (
            ("swapd_migrations_total", "outcome", get_args(Outcome), moves),
            ("swapd_drains_total", "state", FINAL_STATES, drains),
        ):
            for value in values:
                counted = metrics.get(f'{name}{{{label}="{value}"}}', 0.0)
                if counted != recorded.get(value, 0):
                    wrong.append(f"{name} counts {counted:g} {value}, the store has {recorded.get(value, 0)}")
        return wrong

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
        if self.owner is not None:
            self.owner.end()
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


def _move(
    outcome: str | None,
    reason: str | None,
    phase: str,
    epoch: int,
    source: str,
    target: str,
    drain: str | None,
    stats: str | None,
) -> MoveRow:
    """The column is the phase that was last noted; what the move says of itself is exact."""
    told = json.loads(stats) if stats else {}
    recomputed, reuse = told.get("recomputed_tokens", 0), told.get("reuse")
    return MoveRow(outcome, reason, told.get("phase", phase), epoch, source, target, drain, recomputed, reuse)


def _is_sampler(pid: int) -> bool:
    """Whether it measures devices: it is there as long as the service is."""
    with contextlib.suppress(OSError):
        return b"sampler-" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
