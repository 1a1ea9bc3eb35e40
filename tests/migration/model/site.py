"""A coordinator without doors and without a thread, that can be stopped, crash and come back on its store."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import trio
import zmq

from swapd.config import Config
from swapd.errors import SwapdError
from swapd.messages.generation import PARK
from swapd.migration.drains import DrainBook
from swapd.parking.room import ParkRoom
from swapd.serve import Announce, Coordinator
from swapd.sessions.tokenizer import SimTokenizer
from swapd.store.writer import Store
from swapd.transport.arena import Arena
from swapd.transport.arena_header import HEADER_BYTES
from swapd.transport.leases import LeaseBook
from tests.migration.model.worker import SIM

ARENA_BYTES: Final = 1 << 16


class Disk(sqlite3.Connection):
    """A disk whose next COMMIT may fail, `before` it took effect or `after` it did; see `Site.fail_store`."""

    how = ""
    _moves = False

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql.startswith("BEGIN"):
            self._moves = False
        self._moves = self._moves or sql.startswith("UPDATE moves SET state = 'committed'")
        how = self.how if sql == "COMMIT" else ""
        if not how or (how.endswith("-move") and not self._moves):
            return super().execute(sql, parameters)
        if how.startswith("after"):
            super().execute(sql)
        raise sqlite3.OperationalError("disk I/O error")


class ModelStore(Store):
    """The store, its writer a task: it commits when the test lets it."""

    connection_class = Disk

    def prepare(self) -> None:
        self.held = False
        self._arrival = trio.Event()
        # What a crash of the machine would lose is not what is looked at here.
        self._connection.execute("PRAGMA synchronous = OFF")

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._token = trio.lowlevel.current_trio_token()
        task_status.started()
        try:
            while True:
                await self._arrival.wait()
                self._arrival = trio.Event()
                while self._queue and not self.held:
                    # By a hop, as from a thread: what a failure tells comes before what it refuses.
                    self._hop(self._deliver, self._commit_group(self._take()))
                    await trio.lowlevel.checkpoint()
                if self._broken is not None:
                    raise self._broken
        finally:
            while self._queue:
                self._deliver(self._commit_group(self._take()))
            self.close()

    def post(self, op: Callable[[sqlite3.Connection], Any], done: Callable[[Any], None]) -> None:
        super().post(op, done)
        self._arrival.set()

    def hold(self, on: bool) -> None:
        self.held = on
        self._arrival.set()

    def fail(self, how: str) -> None:
        assert isinstance(self._connection, Disk)
        self._connection.how = how

    def die(self) -> None:
        """The process is gone: what is not committed never will be, and nobody hears of it."""
        self._failure = "killed"
        self._failed.set()
        self.hold(False)


class Site(Coordinator):
    """The actors of `swapd serve`, opened and closed by the method that `serve` runs."""

    def __init__(self, config: Config, wall: Callable[[], float]) -> None:
        store = ModelStore.open(config.database_path)
        assert isinstance(store, ModelStore)
        store.prepare()
        self.model_store = store
        self._arenas = [Arena.create(HEADER_BYTES + ARENA_BYTES, lock=lambda at, size: False)]
        room = None
        if config.park_bytes:
            memory = Arena.create(HEADER_BYTES + config.park_bytes, lock=lambda at, size: False)
            self._arenas.append(memory)
            leases = LeaseBook(memory.data_bytes, base_offset=HEADER_BYTES, regions=16)
            room = ParkRoom(memory, leases, Path(config.park_dir) if config.park_dir else None)
        super().__init__(
            config,
            Path(config.database_path),
            store,
            SimTokenizer(SIM.vocab_size),
            self._arenas[0],
            None,
            zmq.Context(),
            room,
            wall=wall,
        )
        self.asked = trio.Event()
        self._doors: trio.Nursery | None = None
        self._waiting: list[Callable[[], Awaitable[object]]] = []
        """Whoever came before the doors were open."""
        self.over = trio.Event()

    async def live(self) -> None:
        """From start to the end that `asked`, or a cancellation, brings."""
        try:
            await self.run(lambda host, port, code: None)
        finally:
            self.context.term()
            for each in self._arenas:
                each.close()
            self.store.close()
            self.over.set()

    def ask(self, call: Callable[[], Awaitable[object]]) -> None:
        """Have a caller inside, who lives no longer than the doors are open."""
        if self._doors is None:
            self._waiting.append(call)
        else:
            self._doors.start_soon(self._answer, call)

    async def _answer(self, call: Callable[[], Awaitable[object]]) -> None:
        with contextlib.suppress(SwapdError):
            await call()

    @property
    def leases(self) -> LeaseBook:
        leases = self.supervisor.loans._leases
        assert leases is not None
        return leases

    def books(self) -> list[DrainBook]:
        return [drain.book for drain in self.supervisor._drains.values()]

    def unexplained(self) -> list[str]:
        """Sessions on a worker that drains for which nobody can say why they are still there."""
        found = []
        for book in self.supervisor.open_drains():
            for session in self.table.owned_by(book.worker):
                told = book.outcomes.get(session.id)
                known = book.refused.get(session.id) or (told is not None and told.reason)
                if session.move is None and not session.recovering and not session.over and not known:
                    found.append(f"{session.id} on {book.worker}: {told}")
        return found

    def at_rest(self) -> list[str]:
        """What is still lent, charged or promised."""
        held = []
        if self.leases.active:
            held.append(f"{self.leases.active} leases")
        for name in self.links:
            capacity = self.ledger.worker(name)
            if capacity is not None and capacity.charges:
                held.append(f"{name} is charged {capacity.charges}")
        if self.supervisor.loans.moving:
            held.append(f"{self.supervisor.loans.moving} moves")
        if self.park is not None:
            room = self.park.room
            if not room.at_rest or len(room) or room.ledger.promised_bytes:
                held.append(f"the park: {len(room)} sessions, {room.ledger.promised_bytes} promised")
            else:
                room.check_integrity()
        for name in self.links:
            closed = self.admission.closed.get(name)
            if closed is not None:
                held.append(f"{name} is closed: {closed}")
        return held

    def worker_of(self, session: str) -> str | None:
        live = self.table.get(session)
        owner = live.record.owner if live is not None else None
        return None if owner is None or owner.worker == PARK else owner.worker

    async def _open_doors(self, doors: trio.Nursery, announce: Announce) -> None:
        self._doors = doors
        for call in self._waiting:
            self.ask(call)

    async def _signals(
        self, first: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        await self.asked.wait()
        first.set()
