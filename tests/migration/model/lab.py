"""Two workers, their coordinator and its clients: what may happen to them.

Everything runs in one Trio thread, on a clock that stands until it is moved, and after each event until
nothing is left to do: the same events in the same order come to the same end every time.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest import mock

import msgspec
import trio
import trio.testing

from swapd.config import Config, CredentialConfig, ModelConfig, TimerConfig, WorkerConfig
from swapd.messages.envelope import EVENT, Report
from swapd.messages.from_worker import Tokens
from swapd.views import DrainMode, DrainOrigin
from tests.migration.model.clients import OPERATOR, TENANT, Client
from tests.migration.model.site import Site
from tests.migration.model.truth import Truth
from tests.migration.model.wire import LinkEnd, Wire
from tests.migration.model.worker import SIM, ModelProcess, ModelWorker

T = TypeVar("T")

NAMES: Final = ("a", "b")
TICK_S: Final = 0.25
MAX_BEATS: Final = 100_000
"""Steps of tasks that one event may cost; a rest, the dearest, costs some thousands."""
TIMERS: Final = TimerConfig(
    rpc_s=2.0, reserve_s=2.0, copy_s=4.0, freeze_s=1.0, prepare_s=4.0, activate_s=2.0, decide_s=5.0
)


class Pulse(trio.abc.Instrument):
    """Counts what tasks do for one event; too much says that they wake each other for ever."""

    def __init__(self, exhausted: Callable[[], None]) -> None:
        self.beats = 0
        self._exhausted = exhausted

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.beats += 1
        if self.beats == MAX_BEATS:
            self._exhausted()


class Lab:
    """`do` runs one event and what it leads to. Made and closed by the test's own thread."""

    def __init__(self, folder: Path) -> None:
        (folder / "park").mkdir(mode=0o700, exist_ok=True)
        self.config = _config(folder)
        self.clock = trio.testing.MockClock(rate=0.0)
        self.clients: list[Client] = []
        self.workers: dict[str, ModelWorker] = {}
        self.wires: dict[str, Wire] = {}
        self.site: Site | None = None
        self.losses = 0
        """Workers that died or hung: without one no session may fail."""
        self.truth = Truth(Path(self.config.database_path))
        self._pulse = Pulse(self._exhausted)
        self._born = 0
        self._life = trio.CancelScope()
        self._seams = ExitStack()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._end: trio.Event | None = None
        self._failure: BaseException | None = None
        begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(begun,), daemon=True)
        self._patch()
        self._thread.start()
        begun.wait()

    def close(self) -> None:
        """End everything. Raises what went wrong where nobody waited for it."""
        try:
            if self._thread.is_alive():
                self._call(self._stop)
        except (trio.RunFinishedError, trio.Cancelled):
            pass
        finally:
            self._thread.join()
            self._seams.close()
            self.truth.close()
        if self._failure is not None:
            raise self._failure

    def do(self, event: Callable[..., Awaitable[object] | None], *args: object) -> None:
        """Let an event happen, all that follows from it at this moment, and look at the truth."""

        async def act() -> None:
            self._pulse.beats = 0
            result = event(*args)
            if result is not None:
                await result
            await settle()
            self.truth.check(self)

        self._call(act)

    # The thread ------------------------------------------------------------------------------

    def _call(self, act: Callable[[], Awaitable[object]]) -> None:
        try:
            trio.from_thread.run(act, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            self._thread.join()
            if self._failure is None:
                raise
            failure, self._failure = self._failure, None
            raise failure from None

    def _run(self, begun: threading.Event) -> None:
        try:
            trio.run(self._main, begun, clock=self.clock, instruments=[self._pulse])
        except BaseException as error:  # handed to the test's thread
            self._failure = error
        finally:
            begun.set()

    async def _main(self, begun: threading.Event) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._end = trio.Event()
        async with trio.open_nursery() as self._nursery:
            self.wires = {name: Wire(self._seen) for name in NAMES}
            for name in NAMES:
                self.bear(name)
            await self.start()
            await settle()
            begun.set()
            await self._end.wait()
            self._nursery.cancel_scope.cancel()

    def _exhausted(self) -> None:
        self._failure = AssertionError("it goes round in circles, and no time passes")
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()

    async def _stop(self) -> None:
        assert self._end is not None
        if self.site is not None:
            self.site.model_store.die()
        self._end.set()

    def _patch(self) -> None:
        """Put wires where `WorkerLink` would open sockets and look for processes."""

        def find(config: Config, worker: WorkerConfig) -> ModelProcess | None:
            there = self.workers.get(worker.worker_id)
            return None if there is None or there.gone.is_set() else ModelProcess(there)

        async def spawn(config: Config, worker: WorkerConfig) -> ModelProcess:
            await trio.lowlevel.checkpoint()
            return ModelProcess(self.bear(worker.worker_id))

        @asynccontextmanager
        async def open_socket(context: object, kind: int, *, connect: str) -> AsyncIterator[LinkEnd]:
            async with self.wires[connect].connect() as end:
                yield end

        async def send_arena(path: str, fd: int, generation: int, *, timeout_s: float) -> None:
            await self.wires[path].runs()
            self.workers[path].attach(fd)

        async def at_once(fn: Callable[..., T], *args: Any, **options: object) -> T:
            await trio.lowlevel.checkpoint()
            return fn(*args)

        self._seams.enter_context(
            mock.patch.multiple(
                "swapd.worker.link", find=find, spawn=spawn, open_socket=open_socket, send_arena=send_arena
            )
        )
        # No thread, no race: what would run in one takes no time here.
        self._seams.enter_context(mock.patch("trio.to_thread.run_sync", at_once))
        names = (f"{number:04}" for number in itertools.count(1))
        self._seams.enter_context(mock.patch("secrets.token_hex", side_effect=names))

    def _seen(self, report: Report) -> Report:
        """What comes from a worker that is not the owner, by the store, is forged: it must reach nobody."""
        body = report.body
        if not isinstance(body, Tokens):
            return report
        runs = []
        for run in body.runs:
            owner = self.truth.owner(run.session)
            if owner is not None and owner != (report.incarnation, run.epoch):
                run = msgspec.structs.replace(run, ids=tuple((one + 1) % SIM.vocab_size for one in run.ids))
            runs.append(run)
        return msgspec.structs.replace(report, body=Tokens(body.step, tuple(runs)))

    # Workers ---------------------------------------------------------------------------------

    def bear(self, name: str) -> ModelWorker:
        """A new incarnation."""
        self._born += 1
        assert self._nursery is not None
        worker = self.workers[name] = ModelWorker(name, self._born, self.wires[name], self.config)
        self._nursery.start_soon(worker.run)
        return worker

    def decode(self, name: str, steps: int) -> None:
        self.workers[name].decode(steps)

    def kill(self, name: str) -> None:
        self.losses += 1
        self.wires[name].stopped = False
        self.workers[name].kill()

    def stop(self, name: str, on: bool) -> None:
        """SIGSTOP and SIGCONT."""
        self.losses += on
        self.wires[name].stopped = on
        self.wires[name].changed()

    def slow(self, name: str, on: bool) -> None:
        self.workers[name].slow = on
        self.workers[name].ring()

    def forget_imports(self, name: str) -> None:
        self.workers[name].loop.forget_imports()

    def hold(self, name: str, kind: type | None) -> None:
        self.wires[name].hold = kind
        self.wires[name].changed()

    def lose(self, name: str, kind: type) -> None:
        self.wires[name].lose = kind

    def say_again(self, name: str, back: int) -> None:
        """A report of the past comes once more, perhaps of a life that is over."""
        said = [report for report in self.wires[name].said if report.request == EVENT]
        if said:
            self.wires[name].again(said[-1 - back % len(said)])

    def ask_late(self, name: str, back: int) -> None:
        """A command of a coordinator that is gone, or to an incarnation that is gone, comes late."""
        asked = self.wires[name].asked
        old = [
            one
            for one in asked
            if (one.generation, one.incarnation) != (asked[-1].generation, asked[-1].incarnation)
        ]
        if old:
            self.wires[name].late(old[-1 - back % len(old)])

    def ask_twice(self, name: str) -> None:
        """The last command comes twice."""
        asked = self.wires[name].asked
        if asked:
            self.wires[name].once_more(asked[-1])

    # The coordinator -------------------------------------------------------------------------

    async def start(self) -> None:
        if self.site is None:
            assert self._nursery is not None
            self.site = site = Site(self.config, trio.current_time)
            self._life = trio.CancelScope()
            self._nursery.start_soon(self._live, site, self._life)
            for client in self.clients:
                self._connect(client)

    async def _live(self, site: Site, life: trio.CancelScope) -> None:
        with life:
            await site.live()

    async def crash(self) -> None:
        """SIGKILL: what is not durable never was, and nothing more is said."""
        site, self.site = self.site, None
        if site is not None:
            for wire in self.wires.values():
                wire.cut()
            site.model_store.die()
            self._life.cancel()
            await self._until_over(site)

    async def stop_cleanly(self) -> None:
        """SIGTERM."""
        site, self.site = self.site, None
        if site is not None:
            site.model_store.hold(False)
            site.asked.set()
            await self._until_over(site)

    async def _until_over(self, site: Site) -> None:
        for _ in range(400):
            await settle()
            if site.over.is_set():
                return
            self.clock.jump(TICK_S)
        raise AssertionError("the coordinator does not end")

    def hold_store(self, on: bool) -> None:
        if self.site is not None:
            self.site.model_store.hold(on)

    def fail_store(self, how: str) -> None:
        if self.site is not None:
            self.site.model_store.fail(how)

    async def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK_S)):
            self.clock.jump(TICK_S)
            await settle()

    # Who asks --------------------------------------------------------------------------------

    def _ask(self, call: Callable[[Site], Awaitable[object]]) -> None:
        """Have somebody at the door ask, and wait for the answer there; a refusal is an answer."""
        site = self.site
        if site is not None:
            site.ask(lambda: call(site))

    def create(self, client: Client) -> None:
        async def call(site: Site) -> None:
            view = await site.service.create_session(TENANT, client.request())
            client.session = view.id
            if client not in self.clients:
                self.clients.append(client)
                self._connect(client)

        self._ask(call)

    def _connect(self, client: Client) -> None:
        if client.present and client.end is None:
            self._ask(client.read)

    def leave(self, client: Client) -> None:
        client.leave()

    def come_back(self, client: Client) -> None:
        if not client.present:
            client.present = True
            self._connect(client)

    def cancel(self, client: Client) -> None:
        assert client.session is not None
        session = client.session
        client.cancelled = True
        self._ask(lambda site: site.service.cancel_session(TENANT, session))

    def drain(self, name: str, origin: DrainOrigin, mode: DrainMode, deadline_s: float) -> None:
        self._ask(lambda site: site.service.start_drain(OPERATOR, name, deadline_s, origin, mode))

    def cancel_drain(self, name: str) -> None:
        book = self.site.supervisor.draining(name) if self.site is not None else None
        if book is not None:
            found = book.id
            self._ask(lambda site: site.service.cancel_drain(OPERATOR, found))

    def trust(self, name: str) -> None:
        """An operator ends a quarantine, if nothing is left there."""
        self._ask(lambda site: site.service.clear_quarantine(OPERATOR, name))

    # Rest ------------------------------------------------------------------------------------

    async def rest(self) -> None:
        """Nobody hurts anybody any more: all that was begun must come to its end, and nothing may be left."""
        for name in NAMES:
            self.wires[name].lose = None
            self.wires[name].stopped = False
            self.hold(name, None)
            self.slow(name, False)
        if self.site is not None:
            self.site.model_store.hold(False)
            await settle()
            if self.site.store.failed:
                await self.crash()
            else:
                self.site.model_store.fail("")
        await self.start()
        for client in self.clients:
            self.come_back(client)
        await self._while(lambda: self._going_on(), 30.0)
        await settle()
        site = self.site
        assert site is not None
        if site.recovery.reconciled:
            assert not site.unexplained(), site.unexplained()
        for name in NAMES:
            self.cancel_drain(name)
        await self._while(lambda: self._going_on() or bool(site.supervisor.open_drains()), 120.0)
        assert not self._going_on(), f"it does not come to an end: {[s.view() for s in site.table]}"
        await self._while(lambda: bool(site.at_rest() or self._left()), 30.0)
        assert not site.at_rest(), site.at_rest()
        assert not self._left(), self._left()
        self.truth.check(self)
        self.truth.check_ends(self)

    def _going_on(self) -> bool:
        assert self.site is not None
        return any(True for _ in self.site.table) or any(c.end is None for c in self.clients)

    async def _while(self, true: Callable[[], bool], at_most_s: float) -> None:
        for _ in range(int(at_most_s / TICK_S)):
            if not true():
                return
            for name in NAMES:
                self.decode(name, 4)
                self.forget_imports(name)
                if self.site is not None and self.site.supervisor.quarantine.of(name) is not None:
                    self.trust(name)
            await self.pass_time(TICK_S)
            self.truth.check(self)

    def _left(self) -> list[str]:
        """What workers still hold."""
        held = []
        for name, worker in self.workers.items():
            if worker.gone.is_set():
                held.append(f"{name} is gone")
            if len(worker.book) or worker.engine.free_blocks() != SIM.blocks or worker.staging._reservations:
                held.append(f"{name} holds {worker.book.inventory()}, {worker.engine.free_blocks()} free")
            if not worker.engine._prefill:
                held.append(f"{name} takes no prompts")
        return held


async def settle() -> None:
    """Return when nothing happens any more without time passing."""
    await trio.testing.wait_all_tasks_blocked()


def _config(folder: Path) -> Config:
    return Config(
        database_path=str(folder / "swapd.db"),
        socket_dir=str(folder),
        workers=tuple(WorkerConfig(worker_id=name, engine="sim") for name in NAMES),
        models=(ModelConfig(alias="sim", path=str(folder)),),
        credentials=(CredentialConfig(namespace="tenant", token="t"),),
        self_certify=True,
        allow_sim_engine=True,
        timers=TIMERS,
        sim=SIM,
        window_tokens=3,
        park_bytes=1 << 14,
        park_dir=str(folder / "park"),
        stop_workers="never",
        worker_restarts=1000,
    )
