"""A coordinator without processes: the real store, table, arena and actors, and workers that follow a script.

The journal has every message in the order in which it reached a worker; what is told to a worker that is gone
reaches nobody, as with the real link.
"""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio

from swapd.certify.certificate import Certificate
from swapd.certify.keeper import CertificateKeeper
from swapd.config import Config, CredentialConfig, LimitConfig, ModelConfig, TimerConfig, WorkerConfig
from swapd.errors import Code, SwapdError
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.messages.generation import PARK, BlockEntry, Manifest, Owner, Sampling
from swapd.messages.snapshot import bind, decode_state, seal
from swapd.migration.ledger import CapacityLedger
from swapd.migration.supervisor import MigrationSupervisor
from swapd.parking.link import ParkLink
from swapd.parking.pausing import Pausing
from swapd.parking.returning import Returning
from swapd.parking.room import ParkRoom
from swapd.sessions.admission import Admission
from swapd.sessions.live import LiveSession
from swapd.sessions.record import SessionRecord
from swapd.sessions.recovery import Recovery
from swapd.sessions.table import SessionTable
from swapd.sessions.tokenizer import SimTokenizer
from swapd.store.ledger import load_tokens
from swapd.store.sessions import insert_session, load_session
from swapd.store.writer import Store
from swapd.transport.arena import Arena
from swapd.transport.arena_header import HEADER_BYTES
from swapd.transport.leases import LeaseBook
from swapd.worker.dialogue import WorkerLost
from swapd.worker.link import LinkState

M = TypeVar("M")
Deed = Callable[["ScriptedLink", Any], Awaitable[object]]

BLOCK_TOKENS = 4
BLOCK_BYTES = 4096
PROMPT = (11, 12, 13)
TIMERS = TimerConfig(
    rpc_s=0.05,
    reserve_s=0.05,
    copy_s=0.05,
    freeze_s=0.05,
    prepare_s=0.05,
    activate_s=0.05,
    decide_s=1.0,
    import_orphan_s=10.0,
    sweep_s=0.05,
    worker_start_s=1.0,
)
INFO = out.EngineInfo(
    engine="sim",
    engine_version="0",
    model="sim",
    fingerprint="fp",
    block_tokens=BLOCK_TOKENS,
    block_bytes=BLOCK_BYTES,
    usable_blocks=256,
    max_model_len=256,
    max_num_seqs=8,
    vocab_size=1024,
    eos_token_ids=(0,),
)


def stats() -> out.WorkerStats:
    return out.WorkerStats(*([0] * 15))


async def silence(link: ScriptedLink, body: object) -> object:
    """The worker never answers."""
    await trio.sleep_forever()


async def loss(link: ScriptedLink, body: object) -> object:
    """The worker dies of it."""
    link.lose()
    raise WorkerLost(link.name)


def refusal(code: Code) -> Deed:
    """The worker says no."""

    async def refuse(link: ScriptedLink, body: object) -> object:
        raise SwapdError(code)

    return refuse


class ScriptedLink:
    """Implements what the coordinator uses of `WorkerLink`. It answers as a worker that does its work."""

    def __init__(self, world: World, name: str, info: out.EngineInfo = INFO) -> None:
        self.fenced = 0
        self.swept = 0
        self.name = name
        self.worker = WorkerConfig(worker_id=name, engine="sim")
        self.state: LinkState = "ready"
        self.reason: str | None = None
        self.stats: out.WorkerStats | None = stats()
        self.emits = True
        """Whether a session that is activated, resumed or started gives a token at once."""
        self.credited: list[str] = []
        self.activated: set[into.SessionEpoch] = set()
        self.imports: dict[str, int] = {}
        """Blocks that came for each move that reserved room here."""
        self.ready: out.Ready | None
        self.world = world
        self._info = info
        self._script: dict[type, list[Deed]] = defaultdict(list)
        self._always: dict[type, Deed] = {}
        self._born = 0
        self.at_rest = False
        self.wanted = True
        self.stops_by_itself = True
        """Whether a worker that is asked to end does so at once."""
        self.starts_by_itself = True
        self.pauses = False
        """Whether a lost one will be started again, after a pause."""
        self.pid: int | None = None
        """None: there is no process. A number that only stands for one would be somebody else's."""
        self.be_born()

    def be_born(self) -> None:
        """A new incarnation begins."""
        self._born += 1
        name = self.name
        self.ready = out.Ready(name, f"{name}.{self._born}", 0, "ipc://x", "x", self._info, 8, {})
        self.state = "ready"

    def unwant(self, reason: str) -> None:
        self.wanted = False

    def stop_soon(self, reason: str) -> None:
        self.wanted = False
        if self.at_rest:
            return
        self.state = "stopped"
        if self.stops_by_itself:
            self.end()

    def end(self) -> None:
        """The process is gone and collected."""
        if self.ready is not None:
            self.world.lose(self.name)
        self.state, self.at_rest = "stopped", True
        self.world.table.notify()

    def resume(self) -> None:
        self.wanted = True
        if self.at_rest:
            self.at_rest = False
            self.state = "starting"
            if self.starts_by_itself:
                self.be_born()
            self.world.table.notify()

    def lose(self) -> None:
        self.ready, self.state = None, "dead"
        self.world.table.notify()

    def on(self, kind: type, *deeds: Deed) -> None:
        """What the next messages of this kind meet, one deed each; after that it works again."""
        self._script[kind].extend(deeds)

    def always(self, kind: type, deed: Deed) -> None:
        self._always[kind] = deed

    def beat(self) -> None:
        """A heartbeat."""
        self.stats = stats()
        self.world.table.notify()

    @property
    def coming(self) -> bool:
        return self.state == "starting" or (self.state == "dead" and self.pauses)

    @property
    def owner(self) -> Owner | None:
        return Owner(self.name, self.ready.incarnation) if self.ready is not None else None

    def is_owner(self, owner: Owner | None) -> bool:
        return owner is not None and owner == self.owner

    def credit(self, session: str) -> None:
        self.credited.append(session)

    def tell(self, body: into.ToWorker) -> None:
        if self.ready is not None:
            self._note(body)
            if isinstance(body, into.Discard):
                self.imports.pop(body.move, None)

    async def request(self, body: into.ToWorker, expect: type[M], timeout_s: float | None = None) -> M:
        if self.ready is None:
            raise WorkerLost(self.name)
        self._note(body)
        await trio.lowlevel.checkpoint()
        limit_s = TIMERS.rpc_s if timeout_s is None else timeout_s
        script = self._script[type(body)]
        deed = script.pop(0) if script else self._always.get(type(body), type(self).work)
        answer: object = None
        # Only silence is out of time: a slow machine must not look like a broken worker.
        if deed is silence:
            await trio.sleep(limit_s)
            raise SwapdError(Code.TIMEOUT)
        answer = await deed(self, body)
        assert isinstance(answer, expect), answer
        return answer

    async def work(self, body: Any) -> object:
        """Answer as a worker that does what it is asked."""
        match body:
            case into.Start(spec=spec, epoch=epoch, outputs=outputs):
                below = len(spec.prompt) + len(outputs) - 1
                kept = min(self.imports.pop(body.salvage, 0) * BLOCK_TOKENS, below)
                self._emit(spec.session, below - kept if outputs else None)
                return out.Started(spec.session, epoch, kept)
            case into.Reserve(move=move):
                self.imports[move] = 0
                return out.Reserved(move, 1)
            case into.Export():
                return self._export(body)
            case into.Import(move=move, manifest=manifest):
                self.imports[move] = self.imports.get(move, 0) + len(manifest.blocks)
                return out.Imported(move, len(manifest.blocks), 0.0)
            case into.Quiesce(batch=batch):
                return out.Quiesced(batch)
            case into.Freeze(batch=batch, items=items):
                return out.Frozen(batch, tuple(self._freeze(item) for item in items), 0.0, 0.0)
            case into.Prepare(batch=batch, items=items):
                return out.Prepared(batch, tuple(out.PreparedItem(i.move, True) for i in items), 0.0)
            case into.Activate(items=items):
                for item in set(items) - self.activated:
                    self._emit(item.session)
                self.activated |= set(items)  # a repeat lets nothing out twice
                return out.Activated()
            case into.InventoryQuery():
                return out.Inventory(())
            case _:
                return out.Done()

    def speak(
        self,
        session: str,
        *ids: int,
        finish: out.Finish | None = None,
        epoch: int | None = None,
        recomputed: int | None = None,
    ) -> None:
        """Send tokens of a session, as of its next position."""
        live = self.world.table.get(session)
        assert live is not None
        first = len(live.received) + 1
        run = out.TokenRun(session, epoch or live.record.epoch, first, ids, finish, recomputed)
        self.world.table.take_tokens(self, out.Tokens(1, (run,)))

    def _emit(self, session: str, recomputed: int | None = None) -> None:
        live = self.world.table.get(session)
        if self.emits and live is not None and live.producing and not live.over:
            self.speak(session, 500 + len(live.received), recomputed=recomputed)

    def _export(self, export: into.Export) -> out.Exported:
        session = self.world.table.get(export.session)
        assert session is not None
        full = (len(session.record.prompt) + len(session.received) - 1) // BLOCK_TOKENS
        return out.Exported(
            export.move, self._manifest(export, export.from_block, full, full * BLOCK_TOKENS), full, 0.0
        )

    def _freeze(self, item: into.FreezeItem) -> out.FrozenItem:
        session = self.world.table.get(item.session)
        assert session is not None
        position = len(session.received)
        computed = len(session.record.prompt) + position - 1
        manifest = self._manifest(item, item.from_block, -(-computed // BLOCK_TOKENS), computed)
        state = decode_state(session.record.spec(), session.received)
        manifest = seal(msgspec.structs.replace(manifest, state=state))
        return out.FrozenItem(item.move, "frozen", position, computed, manifest)

    def _manifest(self, item: into.Export | into.FreezeItem, first: int, end: int, computed: int) -> Manifest:
        valid = {i: min(BLOCK_TOKENS, computed - i * BLOCK_TOKENS) for i in range(first, end)}
        blocks = tuple(BlockEntry(i, 0, tokens, 0) for i, tokens in valid.items())
        return bind(item.session, item.epoch + 1, item.lease, self._info.fingerprint, blocks)

    def _note(self, body: into.ToWorker) -> None:
        self.world.journal.append((self.name, body))


class World:
    """All of it. `table`, `supervisor` and so on are the real ones."""

    def __init__(
        self,
        config: Config,
        store: Store,
        arena: Arena | None,
        info: out.EngineInfo = INFO,
        wall: Callable[[], float] = time.time,
        room: ParkRoom | None = None,
        certificates: Sequence[Certificate] = (),
    ) -> None:
        self.config = config
        self.store = store
        self.arena = arena
        self.journal: list[tuple[str, into.ToWorker]] = []
        self.links: dict[str, Any] = {}
        self.ledger = CapacityLedger()
        tokenizer = SimTokenizer(1024)
        self.table = SessionTable(
            store, tokenizer, self.ledger, self.links, window=config.window_tokens, wall=wall
        )
        self.admission = Admission(config, self.table, self.ledger, tokenizer, self.links)
        self.recovery = Recovery(config, self.table, self.ledger, self.admission, self.links)
        self.table.on_orphan = self.recovery.look_at
        self.leases = (
            LeaseBook(arena.data_bytes, base_offset=HEADER_BYTES, regions=16) if arena is not None else None
        )
        self.supervisor = MigrationSupervisor(
            config,
            self.table,
            self.ledger,
            self.admission,
            self.recovery,
            self.links,
            arena,
            self.leases,
            None if arena is not None else SwapdError(Code.ARENA_UNAVAILABLE, "none"),
            park=ParkLink(room, arena, self.table.transcript)
            if room is not None and arena is not None
            else None,
            wall=wall,
            certificates=CertificateKeeper(config, store, certificates, self.table.notify, wall),
        )
        self.certificates = self.supervisor.certificates
        self.park = self.table.park = self.supervisor.park
        for worker in config.workers:
            self.add_worker(worker.worker_id, info)

    def add_worker(self, name: str, info: out.EngineInfo = INFO) -> ScriptedLink:
        link = ScriptedLink(self, name, info)
        self.links[name] = link
        self.ledger.set_worker(name, info.usable_blocks, info.max_num_seqs, info.block_tokens)
        return link

    @property
    def a(self) -> ScriptedLink:
        return self.link("a")

    @property
    def b(self) -> ScriptedLink:
        return self.link("b")

    def link(self, name: str) -> ScriptedLink:
        link = self.links[name]
        assert isinstance(link, ScriptedLink)
        return link

    def lose(self, name: str) -> None:
        """A worker dies, and its link says so as the real one does."""
        link = self.link(name)
        owner = link.owner
        assert owner is not None
        link.lose()
        self.recovery.lost(owner)

    async def session(
        self, name: str = "s", worker: str = "a", tokens: int = 6, reading: bool = True, **changes: Any
    ) -> LiveSession:
        """A session that runs on `worker` and has `tokens` accepted tokens."""
        owner = self.link(worker).owner
        fields: dict[str, Any] = {
            "namespace": "tenant",
            "model": "sim",
            "state": "created",
            "prompt": PROMPT,
            "sampling": Sampling(seed=1),
            "max_new_tokens": 100,
            "stop": (),
            "allow_replay_fallback": False,
            "on_disconnect": "pause",
            "max_lifetime_s": 3600.0,
            "owner": owner,
            "epoch": 1,
            "accepted": 0,
            "created_at": time.time(),
        }
        record = SessionRecord(id=name, **(fields | changes))
        await self.store.commit(lambda db: insert_session(db, record))
        session = self.table.add(record)
        assert self.ledger.charge(worker, name, record.spec().budget)
        if reading:
            self.table.reader_came(session)
        if tokens:
            self.link(worker).speak(name, *range(101, 101 + tokens))
            await self.until(lambda: session.durable == tokens)
        return session

    def full(self, *names: str, on: bool = True) -> None:
        """Workers have no room for anybody who is not there, or have it again."""
        for name in names:
            blocks, seats = (0, 0) if on else (INFO.usable_blocks, INFO.max_num_seqs)
            self.ledger.set_worker(name, blocks, seats, INFO.block_tokens)
        self.table.notify()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for something; the test's own time-out is the deadline."""
        while not true():
            await self.table.wait_activity(0.02)

    def told(self, *kinds: type, worker: str | None = None) -> list[str]:
        """Messages of these kinds that reached workers, in order, as `worker Kind`."""
        return [
            f"{name} {type(body).__name__}"
            for name, body in self.journal
            if isinstance(body, kinds) and worker in (None, name)
        ]

    def bodies(self, kind: type[M], worker: str | None = None) -> list[M]:
        return [body for name, body in self.journal if isinstance(body, kind) and worker in (None, name)]

    async def stored(self, session: str = "s") -> SessionRecord:
        record = await self.store.read(lambda db: load_session(db, session))
        assert record is not None
        return record

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        def read(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
            return db.execute(sql).fetchall()

        return await self.store.read(read)

    async def transcript(self, session: str = "s") -> list[int]:
        return await self.store.read(lambda db: load_tokens(db, session))

    async def check_baseline(self) -> None:
        """H49, H97: nothing is on loan, and each session is charged where it lives and nowhere else."""
        leases = self.leases
        if leases is not None:
            await self.until(lambda: leases.active == 0)  # they are overwritten after their moves
            leases.check_integrity()
        if self.park is not None:
            assert self.park.room.ledger.promised_bytes == 0
            self.park.room.check_integrity()
        charged = {
            (name, session)
            for name in self.links
            if (capacity := self.ledger.worker(name)) is not None
            for session in capacity.charges
        }
        owners = {(s.record.owner.worker, s.id) for s in self.table if s.record.owner is not None}
        live = {(worker, session) for worker, session in owners if worker != PARK}
        assert charged == live
        assert all(session.move is None for session in self.table)


def settings(path: Path, workers: Iterable[str | WorkerConfig] = ("a", "b"), **changes: Any) -> Config:
    fields: dict[str, Any] = {
        "database_path": str(path / "swapd.db"),
        "socket_dir": str(path),
        "workers": tuple(
            WorkerConfig(worker_id=entry, engine="sim") if isinstance(entry, str) else entry
            for entry in workers
        ),
        "models": (ModelConfig(alias="sim", path=str(path)),),
        "credentials": (CredentialConfig(namespace="tenant", token="t"),),
        "self_certify": True,
        "allow_sim_engine": True,
        "timers": TIMERS,
        "limits": LimitConfig(),
    }
    return msgspec.structs.replace(Config(**(fields | changes)))


@asynccontextmanager
async def open_world(
    path: Path,
    workers: Iterable[str | WorkerConfig] = ("a", "b"),
    *,
    arena_bytes: int | None = 1 << 20,
    attach: bool = True,
    store_class: type[Store] = Store,
    info: out.EngineInfo = INFO,
    wall: Callable[[], float] = time.time,
    world_class: type[World] | None = None,
    stored: Iterable[str] = (),
    certificates: Sequence[Certificate] = (),
    **changes: Any,
) -> AsyncIterator[World]:
    """A running coordinator. `attach`: its workers have been found and hold nothing.

    `stored`: sessions that an earlier one left in the store.
    """
    config = settings(path, workers, **changes)
    store = store_class.open(config.database_path)
    arena = Arena.create(HEADER_BYTES + arena_bytes) if arena_bytes is not None else None
    park_arena = Arena.create(HEADER_BYTES + config.park_bytes) if config.park_bytes else None
    room = None
    if park_arena is not None:
        leases = LeaseBook(park_arena.data_bytes, base_offset=HEADER_BYTES, regions=16)
        room = ParkRoom(
            park_arena,
            leases,
            Path(config.park_dir) if config.park_dir else None,
            config.park_dir_bytes,
        )
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            async with trio.open_nursery() as actors:
                world = (world_class or World)(config, store, arena, info, wall, room, certificates)
                for name in stored:
                    record = await world.stored(name)
                    world.table.add(record, await world.transcript(name))
                await actors.start(world.recovery.run)
                await actors.start(world.supervisor.run)
                passage = world.supervisor.passage
                if passage is not None:
                    await actors.start(passage.park.room.run)
                    actors.start_soon(world.recovery.attached, passage.park, passage.park.inventory())
                    returning = Returning(world.table, passage)
                    world.admission.keepers.append(returning.kept_for)
                    await actors.start(returning.run)
                    grace_s = config.limits.disconnect_grace_s
                    await actors.start(Pausing(world.table, passage, grace_s).run)
                if attach:
                    for name in world.links:
                        world.recovery.introduced(name)
                    for link in world.links.values():
                        await world.recovery.attached(link, out.Inventory(()))
                    await world.until(lambda: world.recovery.reconciled)
                yield world
                actors.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
    finally:
        store.close()
        for each in (arena, park_arena):
            if each is not None:
                each.close()
