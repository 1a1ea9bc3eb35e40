"""A real deployment in a folder of its own: one coordinator process, real workers, the HTTP client.

Everything is a process of its own, so that a test can kill any of them. `closing` ends them by pid and
fails the test if anything of the deployment stayed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from swapd.client import HttpClient, Unreachable
from swapd.messages.from_worker import Ready
from swapd.sse import SseEvent
from tests.ports import free_port

TOKEN = "operator-token-of-a-test"
TENANT = "tenant-token-of-a-test"
OTHER = "another-tenants-token"
REPO = Path(__file__).resolve().parents[2]


def toml(
    folder: Path,
    port: int,
    *,
    engine: str,
    model: str,
    extra: str = "",
    top: str = "",
    lent: Mapping[str, str] | None = None,
    self_certify: bool = True,
) -> str:
    """A configuration of two workers, a and b; `lent` names the `[[devices]]` entry of each."""
    device = {worker: f'device = "{(lent or {}).get(worker, "cpu")}"' for worker in ("a", "b")}
    return f"""
database_path = "{folder}/swapd.db"
socket_dir = "{folder}/s"
port = {port}
self_certify = {str(self_certify).lower()}
allow_sim_engine = true
arena_bytes = {64 << 20 if engine == "sim" else 256 << 20}
stop_workers = "always"
{top}

[[workers]]
worker_id = "a"
engine = "{engine}"
cores = [0]
{device["a"]}

[[workers]]
worker_id = "b"
engine = "{engine}"
cores = [{min(1, (os.cpu_count() or 1) - 1)}]
{device["b"]}

[[models]]
alias = "m"
path = "{model}"
kv_cache_bytes = {512 << 20}
max_model_len = 4096

[[credentials]]
token = "{TOKEN}"
namespace = "operators"
is_operator = true

[[credentials]]
token = "{TENANT}"
namespace = "tenant"

[[credentials]]
token = "{OTHER}"
namespace = "other"
{extra}
"""


class Deployment:
    """One service and its folder. Ports are the kernel's choice and learnt from the announcement."""

    def __init__(
        self,
        engine: str,
        model: str = ".",
        extra: str = "",
        top: str = "",
        lent: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        self_certify: bool = True,
    ) -> None:
        self.env = env
        """That of the coordinator and all it starts; None: this process's."""
        self.folder = Path(tempfile.mkdtemp(prefix="swapd-e2e-"))
        self.engine = engine
        self.config = self.folder / "swapd.toml"
        self.process: subprocess.Popen[bytes] | None = None
        self.client = HttpClient("http://127.0.0.1:1", TOKEN)
        self._closed = False
        self._created: list[str] = []
        # A port that stays the same over restarts, so that clients can come back to it.
        port = free_port()
        self.config.write_text(
            toml(
                self.folder,
                port,
                engine=engine,
                model=model,
                extra=extra,
                top=top,
                lent=lent,
                self_certify=self_certify,
            )
        )
        self.config.chmod(0o600)
        (self.folder / "s").mkdir(mode=0o700)
        # A test that is broken off by its time limit never comes to its own clean-up.
        atexit.register(self.close)

    # Processes -------------------------------------------------------------------------------

    async def start(self, *, ready_s: float = 60.0, workers: int = 2) -> None:
        """Start the coordinator and wait until it admits and so many workers are ready."""
        self.launch()
        url = await self._announced(ready_s)
        self.client = HttpClient(url, TOKEN)
        await self.wait_ready(ready_s, workers)

    def launch(self) -> None:
        """Start the coordinator's process and wait for nothing."""
        out = (self.folder / "serve.out").open("wb")
        err = (self.folder / "serve.err").open("ab")
        with out, err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "swapd", "serve", "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=REPO,
                env=None if self.env is None else dict(self.env),
                start_new_session=True,
            )

    async def announced_again(self, within_s: float = 60.0) -> None:
        """Wait until the coordinator of the last launch listens, ready or not."""
        self.client = HttpClient(await self._announced(within_s), TOKEN)

    def announced(self) -> str | None:
        """Where the coordinator of the last start listens, once it says so."""
        for line in (self.folder / "serve.out").read_text().splitlines():
            if "http://" in line:
                return line.split()[-1]
        return None

    async def _announced(self, within_s: float) -> str:
        with trio.fail_after(within_s):
            while True:
                if url := self.announced():
                    return url
                if self.process is not None and self.process.poll() is not None:
                    raise AssertionError(f"the coordinator ended: {self.log()}")
                await trio.sleep(0.02)

    async def wait_ready(self, within_s: float = 60.0, workers: int = 2) -> None:
        """Wait until `/readyz` is 200 and so many workers are ready."""
        with trio.move_on_after(within_s):
            while True:
                try:
                    status, _ = await self.client.request("GET", "/readyz", timeout_s=2)
                    if status == 200:
                        views = await self.workers()
                        if sum(v["state"] == "ready" and bool(v["stats"]) for v in views.values()) >= workers:
                            return
                except Unreachable:
                    pass
                await trio.sleep(0.1)
        raise AssertionError(f"not ready in {within_s} s: {self.log()}")

    def kill_coordinator(self) -> None:
        """SIGKILL, as a crash."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop_coordinator(self, within_s: float = 30.0) -> int:
        """SIGTERM and the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within_s)

    def worker_ready(self, worker: str) -> Ready | None:
        """The ready line of the live worker."""
        try:
            data = (self.folder / "s" / f"{worker}.ready.json").read_bytes()
            return msgspec.json.decode(data, type=Ready)
        except (OSError, msgspec.DecodeError):
            return None

    def kill_worker(self, worker: str, number: int = signal.SIGKILL) -> int:
        """Signal a worker; returns its pid."""
        ready = self.worker_ready(worker)
        assert ready is not None
        os.kill(ready.pid, number)
        return ready.pid

    def log(self) -> str:
        """The end of the coordinator's log, for messages."""
        return (self.folder / "serve.err").read_text()[-3000:]

    def close(self, keep: bool = False) -> None:
        """End all processes and, unless it is to be kept, the folder. Repeats do nothing."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for worker in ("a", "b"):
            ready = self.worker_ready(worker)
            if ready is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(ready.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        assert not left, f"processes were left behind: {left}"

    def processes(self) -> list[int]:
        """Pids whose command line names this deployment's folder."""
        return processes_of(self.folder)

    # The API ---------------------------------------------------------------------------------

    async def call(self, method: str, path: str, body: object = None, expect: int = 200) -> Any:
        """One request; fails the test on another status."""
        status, answer = await self.client.request(method, path, body)
        assert status == expect, (status, answer)
        return answer

    async def workers(self) -> dict[str, Any]:
        """Worker views by id."""
        status, answer = await self.client.request("GET", "/v1/workers")
        assert status == 200, answer
        return {view["id"]: view for view in answer["workers"]}

    async def create(self, prompt: object, max_new_tokens: int, **fields: object) -> str:
        """A new session's id."""
        body = {"prompt": prompt, "max_new_tokens": max_new_tokens, "temperature": 0.0, "ignore_eos": True}
        answer = await self.call("POST", "/v1/sessions", body | fields, 201)
        self._created.append(str(answer["id"]))
        return self._created[-1]

    async def cancel_left(self) -> None:
        """Cancel what was created since the last call and may still run; ended sessions stay as they are."""
        while self._created:
            await self.client.request("DELETE", f"/v1/sessions/{self._created.pop()}")

    async def drain(self, worker: str, body: object = None, within_s: float = 60.0) -> Any:
        """Start a drain and wait until it is no longer running."""
        view = await self.call("POST", f"/v1/workers/{worker}/drains", body or {}, 202)
        with trio.fail_after(within_s):
            while view["state"] == "running":
                await trio.sleep(0.02)
                view = await self.call("GET", f"/v1/drains/{view['id']}")
        return view

    async def where(self, session: str) -> str:
        """The worker that owns a session."""
        return str((await self.call("GET", f"/v1/sessions/{session}"))["worker"])

    async def wait_settled(self, within_s: float = 60.0) -> dict[str, Any]:
        """Worker views once nothing runs, is held, frozen or reserved anywhere.

        What a worker counted before this was called says nothing of what its caller did last.
        """
        return await self._wait_views(_settled, within_s)

    async def workers_now(self, within_s: float = 60.0) -> dict[str, Any]:
        """Worker views, each of what its worker counted after this was called."""
        return await self._wait_views(lambda views: True, within_s)

    async def _wait_views(self, holds: Callable[[dict[str, Any]], bool], within_s: float) -> dict[str, Any]:
        since = time.monotonic()
        with trio.fail_after(within_s):
            while True:
                views = await self.workers()
                if not not_counted_since(since, views) and holds(views):
                    return views
                await trio.sleep(0.1)


def not_counted_since(at: float, views: Mapping[str, Any]) -> list[str]:
    """Workers of which only older figures are known than from this time of the monotonic clock."""
    return [name for name, view in views.items() if view["stats"].get("taken_at", 0.0) <= at]


def _settled(views: Mapping[str, Any]) -> bool:
    busy = ("running", "held", "frozen", "reserved", "sessions", "unaccepted")
    return not any(
        view["committed_blocks"] or any(view["stats"][name] for name in busy) for view in views.values()
    )


def processes_of(folder: Path) -> list[int]:
    """Pids whose command line names a folder, or anything in it; not this process's own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if str(folder).encode() in command and state != "Z":
                found.append(int(entry.name))
    return found


class Reading:
    """What a client received of one session."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.events: list[SseEvent] = []
        self.grew = trio.Event()

    @property
    def tokens(self) -> list[int]:
        return [int(event.json()["token_id"]) for event in self.events if event.name == "token"]

    def check_gapless(self) -> None:
        """Ids from 0 on without gap or repeat, one terminal event at the end (H16, H21)."""
        assert [event.id for event in self.events] == list(range(len(self.events)))
        terminal = [e.name for e in self.events if e.name in ("completed", "failed", "cancelled")]
        assert len(terminal) == 1
        assert self.events[-1].name == terminal[0]

    async def wait_tokens(self, count: int, within_s: float = 150.0) -> None:
        with trio.fail_after(within_s):
            while len(self.tokens) < count:
                assert not self.events or self.events[-1].name in ("created", "token"), self.events[-1]
                self.grew = trio.Event()
                await self.grew.wait()


@asynccontextmanager
async def reading(deployment: Deployment, *sessions: str) -> AsyncIterator[list[Reading]]:
    """Read sessions to their ends, reconnecting by cursor; leaving waits for all ends."""
    readings = [Reading(session) for session in sessions]

    async def read(one: Reading) -> None:
        async with deployment.client.events(one.session, reconnect=True) as events:
            async for event in events:
                one.events.append(event)
                one.grew.set()

    async with trio.open_nursery() as nursery:
        for one in readings:
            nursery.start_soon(read, one)
        yield readings
