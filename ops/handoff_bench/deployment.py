"""A private service with two vLLM workers, on this machine's CPU or on one GPU, and nothing of it left after.

The bench starts the workers itself, so that it can tell them to damage what they import; the service finds
them by their ready files. Everything lies in one temporary folder; what was started is ended by its pid, and
ends by itself should this process be killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import msgspec
import trio

from ops.handoff_bench.plan import Break
from swapd.client import HttpClient, Unreachable
from swapd.config import Config, WorkerConfig
from swapd.config_file import read_config
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import EngineInfo, StepRecord
from swapd.ops.client import OpsClient, open_ops
from swapd.quickstart.child import ServeProcess
from swapd.quickstart.state import HOST, choose_port, write_private
from swapd.worker.spawn import find, settings_for

WORKERS: Final = ("a", "b")
START_TIMEOUT_S: Final = 600.0
STOP_WAIT_S: Final = 15.0
STOP_TIMEOUT_S: Final = 90.0
POLL_S: Final = 0.25
COLLECT_EVERY_S: Final = 2.0
LOG_TAIL_LINES: Final = 6
MIB: Final = 1 << 20
PR_SET_PDEATHSIG: Final = 1


class Size(msgspec.Struct, frozen=True):
    """What the plan needs: tokens of the longest session, and of all sessions that are there at once."""

    session_tokens: int
    tokens: int
    sessions: int


class Card(msgspec.Struct, frozen=True):
    """The GPU that both workers use, instead of a core each; `share` of its memory is for one of them."""

    uuid: str
    share: float
    block_tokens: int

    @property
    def environment(self) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": self.uuid}


class Deployment:
    """The running service. `steps` grows while it runs; the clock of all times is trio's."""

    def __init__(self, folder: Path, config: Config, client: HttpClient, ops: OpsClient) -> None:
        self.folder = folder
        self.config = config
        self.client = client
        self.steps: dict[str, list[StepRecord]] = {worker: [] for worker in WORKERS}
        self._ops = ops

    @property
    def info(self) -> EngineInfo:
        found = find(self.config, self.config.workers[0])
        if found is None:
            raise SwapdError(Code.NOT_READY, "worker a")
        found.close()
        return found.ready.info

    async def collect(self) -> None:
        """Take all recorded steps now. Not to be cancelled: what an answer held would be lost."""
        with trio.CancelScope(shield=True):  # bounded by the client's own deadline
            for worker, steps in self.steps.items():
                while more := await self._ops.schedule(worker):
                    steps += more

    async def keep_collecting(self) -> None:
        """Collect now and then, so that no worker's memory grows."""
        while True:
            await trio.sleep(COLLECT_EVERY_S)
            await self.collect()


def kv_bytes_per_token(model: Path) -> int:
    """KV of one token in bfloat16, from the checkpoint's configuration."""
    shape = json.loads((model / "config.json").read_text())
    heads = shape["num_attention_heads"]
    head_dim = shape.get("head_dim") or shape["hidden_size"] // heads
    return int(shape["num_hidden_layers"] * 2 * (shape.get("num_key_value_heads") or heads) * head_dim * 2)


@contextmanager
def private_folder(keep: bool) -> Iterator[Path]:
    """A folder of our own under the temporary one, gone afterwards unless it is to be kept."""
    folder = Path(tempfile.mkdtemp(prefix="swapd-bench-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def open_deployment(
    folder: Path,
    model: Path,
    size: Size,
    break_copy: Break,
    report: Callable[[str], None],
    card: Card | None = None,
) -> AsyncIterator[Deployment]:
    """Start the service and both workers, and end them whatever happens.

    Raises `timeout` or `engine_failed` with the last lines of the log of what did not start.
    """
    token = secrets.token_urlsafe(24)
    port = choose_port(0)
    (folder / "run").mkdir(mode=0o700)
    config_path = folder / "swapd.toml"
    write_private(config_path, _toml(folder, model, size, token, port, card))
    config = read_config(config_path)
    workers: list[subprocess.Popen[bytes]] = []
    service: ServeProcess | None = None
    try:
        for worker in config.workers:
            settings = msgspec.structs.replace(settings_for(config, worker), break_copy=break_copy)
            process = _start_worker(folder, worker.worker_id, msgspec.json.encode(settings), card)
            workers.append(process)
            if card is not None:
                # vLLM measures what is left on the card while it starts: one after the other.
                await _wait_worker(config, worker, process, folder)
        service = ServeProcess.start(config_path, folder / "serve.log")
        client = HttpClient(f"http://{HOST}:{port}", token)
        report("starting the service and two vLLM workers (about half a minute)")
        await _wait_ready(client, service, workers, folder)
        async with open_ops(folder / "run") as ops, trio.open_nursery() as nursery:
            deployment = Deployment(folder, config, client, ops)
            nursery.start_soon(deployment.keep_collecting)
            yield deployment
            nursery.cancel_scope.cancel()
    finally:
        with trio.move_on_after(STOP_TIMEOUT_S, shield=True):
            if service is not None:
                await service.stop()
            await trio.to_thread.run_sync(_stop_workers, workers)


def _toml(folder: Path, model: Path, size: Size, token: str, port: int, card: Card | None = None) -> str:
    cores = sorted(os.sched_getaffinity(0))
    kv_bytes = size.tokens * kv_bytes_per_token(model)
    quote = json.dumps  # JSON strings are TOML basic strings
    on_card = f"gpu_memory_utilization = {card.share}\nblock_tokens = {card.block_tokens}\n" if card else ""
    workers = "".join(
        f"""
[[workers]]
worker_id = "{worker}"
{"" if card else f"cores = [{cores[index % len(cores)]}]"}
spawn = false
"""
        for index, worker in enumerate(WORKERS)
    )
    return f"""database_path = "bench.db"
socket_dir = {quote(str(folder / "run"))}
host = "{HOST}"
port = {port}
arena_bytes = {kv_bytes + 32 * MIB}
self_certify = true
record_schedule = true
{workers}
[[models]]
alias = "bench"
path = {quote(str(model))}
max_model_len = {size.session_tokens}
kv_cache_bytes = {kv_bytes + kv_bytes // 4 + 64 * MIB}
max_num_seqs = {max(2 * size.sessions, 8)}
{on_card}
[[credentials]]
namespace = "bench"
token = {quote(token)}
is_operator = true

[timers]
# A machine that does other things is slow; a bench that gives up there shows nothing.
rpc_s = 30.0
reserve_s = 30.0
copy_s = 120.0
freeze_s = 15.0
prepare_s = 60.0
activate_s = 15.0
decide_s = 120.0
suspect_s = 20.0
dead_s = 90.0
import_orphan_s = 180.0
"""


def _start_worker(folder: Path, worker: str, settings: bytes, card: Card | None) -> subprocess.Popen[bytes]:
    path = folder / f"{worker}.settings.json"
    write_private(path, settings.decode())
    return start_child(
        [sys.executable, "-m", "swapd.worker", str(path)],
        folder / f"{worker}.log",
        card.environment if card else {},
    )


def start_child(
    command: list[str], log_path: Path, environment: Mapping[str, str] = {}
) -> subprocess.Popen[bytes]:
    """Start a process whose output goes to a file and that ends when this one does. Main thread only."""
    libc = ctypes.CDLL(None)

    def end_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    with log_path.open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # A Ctrl-C of the terminal is for us; we end the child in our own order.
            start_new_session=True,
            preexec_fn=end_with_parent,
            # torch keeps caches there.
            env=os.environ | {"TMPDIR": str(log_path.parent)} | dict(environment),
            cwd=Path(__file__).resolve().parents[2],
        )


async def _wait_worker(
    config: Config, worker: WorkerConfig, process: subprocess.Popen[bytes], folder: Path
) -> None:
    with trio.move_on_after(START_TIMEOUT_S):
        while process.poll() is None:
            found = find(config, worker)
            if found is not None:
                found.close()
                return
            await trio.sleep(POLL_S)
        log = log_tail(folder / f"{worker.worker_id}.log")
        raise SwapdError(Code.ENGINE_FAILED, f"worker {worker.worker_id}: {log}")
    raise SwapdError(Code.TIMEOUT, f"worker {worker.worker_id} was not ready after {START_TIMEOUT_S:g} s")


async def _wait_ready(
    client: HttpClient, service: ServeProcess, workers: list[subprocess.Popen[bytes]], folder: Path
) -> None:
    with trio.move_on_after(START_TIMEOUT_S):
        while True:
            for name, process in zip(WORKERS, workers, strict=True):
                if process.poll() is not None:
                    raise SwapdError(Code.ENGINE_FAILED, f"worker {name}: {log_tail(folder / f'{name}.log')}")
            if not service.running:
                raise service.failure()
            try:
                status, answer = await client.request("GET", "/v1/workers")
                if status == 200 and all(worker["state"] == "ready" for worker in answer["workers"]):
                    return
            except Unreachable:
                pass
            await trio.sleep(POLL_S)
    raise SwapdError(Code.TIMEOUT, f"the workers were not ready after {START_TIMEOUT_S:g} s")


def log_tail(path: Path) -> str:
    """The last lines of a child's log, in one line."""
    try:
        return " | ".join(path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
    except OSError:
        return "no log"


def _stop_workers(workers: list[subprocess.Popen[bytes]]) -> None:
    for process in workers:
        stop_child(process)


async def wait_child(process: subprocess.Popen[bytes]) -> None:
    """Return when the process has ended."""
    if process.poll() is None:
        pidfd = os.pidfd_open(process.pid)
        try:
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        process.wait()


def stop_child(process: subprocess.Popen[bytes]) -> None:
    """Ask (SIGTERM), wait `STOP_WAIT_S`, kill."""
    process.terminate()
    try:
        process.wait(STOP_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
