"""A small coordinator for tests: starts worker processes, speaks the protocol, moves sessions by hand."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import trio
import zmq

from swapd.config import SimConfig, TimerConfig
from swapd.engines.sim import open_sim
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.messages.envelope import Command, decode_report, encode
from swapd.messages.generation import GenerationSpec, Lease, Manifest, Sampling
from swapd.transport.arena import Arena
from swapd.transport.arena_header import HEADER_BYTES
from swapd.transport.fdpass import send_arena
from swapd.transport.leases import LeaseBook
from swapd.transport.sockets import TrioSocket, open_socket
from swapd.worker.settings import WorkerSettings

SIM = SimConfig(step_ms=1.0, block_tokens=4, block_bytes=64, blocks=256, max_num_seqs=16, max_model_len=1000)
GREEDY = Sampling(temperature=0.0, ignore_eos=True)
SEEDED = Sampling(temperature=0.8, top_p=0.9, seed=11, ignore_eos=True)
ARENA_BYTES = 4 << 20
WAIT_S = 40.0
"""For a busy machine: what comes in time comes at once."""
FAST = TimerConfig(heartbeat_s=0.05, rpc_s=WAIT_S)

T = TypeVar("T")
_generations = itertools.count(1)
_names = itertools.count(1)


def next_generation() -> int:
    return next(_generations)


def spec(prompt: Sequence[int] = (3, 4, 5), new: int = 40, sampling: Sampling = GREEDY) -> GenerationSpec:
    """A generation with a name of its own."""
    return GenerationSpec(f"s{next(_names)}", tuple(prompt), sampling, new)


def unmoved(given: GenerationSpec) -> list[int]:
    """What the engine makes of it in one process, without a worker."""
    engine = open_sim(msgspec.structs.replace(SIM, step_ms=0))
    engine.start("k", given, ())
    tokens: list[int] = []
    while engine.runnable():
        tokens += [token.token_id for token in engine.step().tokens]
    return tokens


class WorkerProcess:
    """A real `python -m swapd.worker` and its ready line."""

    def __init__(self, folder: Path, name: str, fault: str | None = None, **settings: object) -> None:
        built = WorkerSettings(
            **{
                "worker_id": name,
                "socket_dir": str(folder),
                "engine": "sim",
                "sim": SIM,
                "timers": FAST,
                **settings,
            }  # type: ignore[arg-type]  # the test's own keywords
        )
        self._output: tuple[bytes, str] | None = None
        self.folder = folder
        self.settings_file = folder.parent / f"{folder.name}-{name}.settings.json"
        self.settings_file.write_bytes(msgspec.json.encode(built))
        module = ["swapd.worker"] if fault is None else ["tests.worker.faulty", fault]
        # A file, not a pipe: nobody reads it before the end, and a full pipe would stop the worker.
        self.stderr_file = self.settings_file.with_suffix(".stderr")
        with self.stderr_file.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *module, str(self.settings_file)],
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()

    @property
    def ready(self) -> out.Ready:
        return msgspec.json.decode(self.line, type=out.Ready)

    def wait(self) -> tuple[int, bytes, str]:
        """Wait for the end: exit code, the rest of stdout, stderr."""
        if self._output is None:
            rest, _ = self.process.communicate(timeout=WAIT_S)
            self._output = rest, self.stderr_file.read_text()
        return self.process.returncode, *self._output

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.wait()


@contextmanager
def worker(
    folder: Path, name: str = "a", fault: str | None = None, **settings: object
) -> Iterator[WorkerProcess]:
    """Run one until the block ends; SIGTERM, then SIGKILL."""
    started = WorkerProcess(folder, name, fault, **settings)
    try:
        yield started
    finally:
        started.end()


class Client:
    """One coordinator's connection to one worker."""

    def __init__(self, socket: TrioSocket, ready: out.Ready, generation: int) -> None:
        self.socket = socket
        self.ready = ready
        self.generation = generation
        self.incarnation = ready.incarnation
        self.reports: list[out.FromWorker] = []
        self.ids: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.first: dict[tuple[str, int], int] = {}
        self.finish: dict[tuple[str, int], str] = {}
        self.credited: set[tuple[str, int]] = set()
        self._request = 0
        self._answers: dict[int, out.FromWorker] = {}
        self._changed = trio.Event()

    async def send(self, body: into.ToWorker, request: int = 0) -> None:
        await self.socket.send_multipart([encode(Command(self.incarnation, self.generation, request, body))])

    async def ask(self, body: into.ToWorker, expect: type[T] | None = None) -> T:
        """Send a request and return its answer, of type `expect` unless None."""
        self._request += 1
        await self.send(body, self._request)
        answer = await self.answer(self._request)
        if expect is not None:
            assert isinstance(answer, expect), answer
        return answer  # type: ignore[return-value]  # checked above unless the caller takes any

    async def refused(self, body: into.ToWorker) -> str:
        return (await self.ask(body, out.Refused)).code

    async def answer(self, request: int) -> out.FromWorker:
        await self.until(lambda: request in self._answers)
        return self._answers.pop(request)

    async def until(self, done: object) -> None:
        """Wait until `done()`, looked at whenever a report came."""
        assert callable(done)
        with trio.fail_after(WAIT_S):
            while not done():
                await self._changed.wait()

    async def credit(self, given: GenerationSpec, epoch: int, accepted: int, limit: int) -> None:
        await self.send(into.Credit((into.Grant(given.session, epoch, accepted, limit),)))

    async def has(self, given: GenerationSpec, epoch: int, count: int) -> list[int]:
        """Wait until `count` tokens of that epoch have come."""
        name = (given.session, epoch)
        await self.until(lambda: len(self.ids[name]) >= count)
        return self.ids[name]

    async def ended(self, given: GenerationSpec, epoch: int) -> list[int]:
        await self.until(lambda: (given.session, epoch) in self.finish)
        return self.ids[given.session, epoch]

    async def stats(self, done: object = lambda stats: True) -> out.WorkerStats:
        """The next heartbeat's figures for which `done` holds."""
        assert callable(done)
        seen = len(self.reports)

        def found() -> list[out.WorkerStats]:
            beats = [r.stats for r in self.reports[seen:] if isinstance(r, out.Heartbeat)]
            return [stats for stats in beats if done(stats)]

        await self.until(found)
        return found()[-1]

    async def inventory(self, given: GenerationSpec) -> list[out.InventoryItem]:
        items = (await self.ask(into.InventoryQuery(), out.Inventory)).items
        return [item for item in items if item.session == given.session]

    async def clear(self) -> None:
        """Have the worker drop all that it holds: a test that failed must not make the next one fail."""
        for item in (await self.ask(into.InventoryQuery(), out.Inventory)).items:
            imported = item.move is not None and item.phase in ("reserved", "prepared")
            drop = into.Discard(item.move or "") if imported else into.Cancel(item.session, item.epoch)
            await self.ask(drop, out.Done)

    async def receive(self) -> None:
        while True:
            for parts in await self.socket.recv_batch():
                report = decode_report(parts[-1])
                assert report.incarnation == self.ready.incarnation
                if report.request:
                    self._answers[report.request] = report.body
                else:
                    self.reports.append(report.body)
                if isinstance(report.body, out.Tokens):
                    await self._take(report.body)
            self._changed.set()
            self._changed = trio.Event()

    async def _take(self, message: out.Tokens) -> None:
        grants = []
        for run in message.runs:
            name = (run.session, run.epoch)
            begin = self.first.setdefault(name, run.first_pos)
            del self.ids[name][run.first_pos - begin :]
            assert begin + len(self.ids[name]) == run.first_pos, "a gap"
            self.ids[name] += run.ids
            if run.finish is not None:
                self.finish[name] = run.finish
            if name in self.credited:
                last = run.first_pos + len(run.ids) - 1
                grants.append(into.Grant(*name, last, last + 8))
        if grants:
            await self.send(into.Credit(tuple(grants)))


@asynccontextmanager
async def connect(
    ready: out.Ready, generation: int | None = None, hello: bool = True
) -> AsyncIterator[Client]:
    """Connect as the newest coordinator, or as `generation`."""
    context = zmq.Context()
    try:
        async with open_socket(context, zmq.DEALER, connect=ready.control) as socket:
            client = Client(socket, ready, next_generation() if generation is None else generation)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.receive)
                if hello:
                    assert await client.ask(into.Hello(), out.Ready) == ready
                yield client
                nursery.cancel_scope.cancel()
    finally:
        context.term()


class Mover:
    """Two connected workers and an arena; the steps of `spec/protocol.md` one by one."""

    def __init__(self, source: Client, target: Client, arena: Arena) -> None:
        self.source = source
        self.target = target
        self.arena = arena
        self.leases = LeaseBook(arena.data_bytes, base_offset=HEADER_BYTES, regions=64)

    def lease(self, size: int = 64 << 10) -> Lease:
        lease = self.leases.grant(size)
        assert lease is not None
        self.arena.publish(lease)
        return lease

    async def reserve(self, given: GenerationSpec, epoch: int, ttl_s: float = 60.0) -> Move:
        move = Move(self, f"m{next(_names)}", given, epoch, self.lease())
        await self.target.ask(into.Reserve(move.id, given, epoch + 1, move.lease, ttl_s), out.Reserved)
        return move


class Move:
    """One session's move from epoch e at the source to e + 1 at the target."""

    def __init__(self, mover: Mover, name: str, given: GenerationSpec, epoch: int, lease: Lease) -> None:
        self.mover = mover
        self.id = name
        self.given = given
        self.epoch = epoch
        self.lease = lease
        self.copied = 0
        self.manifest: Manifest | None = None

    async def export(self) -> out.Exported:
        body = into.Export(self.id, self.given.session, self.epoch, self.lease, self.copied)
        return await self.mover.source.ask(body, out.Exported)

    async def precopy(self) -> out.Exported:
        exported = await self.export()
        await self.mover.target.ask(into.Import(self.id, exported.manifest), out.Imported)
        self.copied = exported.frontier
        return exported

    @property
    def freeze_item(self) -> into.FreezeItem:
        return into.FreezeItem(self.id, self.given.session, self.epoch, self.lease, self.copied)

    async def freeze(self) -> out.FrozenItem:
        frozen = await self.mover.source.ask(into.Freeze(f"b{self.id}", (self.freeze_item,)), out.Frozen)
        self.manifest = frozen.items[0].manifest
        return frozen.items[0]

    def prepare_item(self, outputs: Sequence[int], limit: int) -> into.PrepareItem:
        assert self.manifest is not None
        return into.PrepareItem(
            self.id, self.given.session, self.epoch + 1, self.manifest, tuple(outputs), limit
        )

    async def prepare(self, outputs: Sequence[int], ahead: int = 8) -> out.PreparedItem:
        body = into.Prepare(f"b{self.id}", (self.prepare_item(outputs, len(outputs) + ahead),))
        return (await self.mover.target.ask(body, out.Prepared)).items[0]

    async def activate(self, credit: bool = True) -> out.Activated:
        items = (into.SessionEpoch(self.given.session, self.epoch + 1),)
        if credit:
            self.mover.target.credited.add((self.given.session, self.epoch + 1))
        return await self.mover.target.ask(into.Activate(items), out.Activated)


@asynccontextmanager
async def mover(source: out.Ready, target: out.Ready) -> AsyncIterator[Mover]:
    """Connect to both and give both an arena."""
    arena = Arena.create(ARENA_BYTES)
    try:
        async with connect(source) as one, connect(target) as two:
            for client in (one, two):
                await send_arena(client.ready.arena_socket, arena.fd, next_generation(), timeout_s=WAIT_S)
                await client.clear()
            yield Mover(one, two, arena)
    finally:
        arena.close()


def left_behind(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))
