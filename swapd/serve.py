"""`swapd serve`: opens the coordinator's nurseries. Reading this is reading the architecture.

Users stand above the services that they use; they stop in that order: front doors, then the actors that
move sessions, then the links to the workers, then the store. Workers that hold sessions are left running
for the next coordinator; idle ones are stopped (H230).
"""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import trio
import zmq

from console.app import create_app
from console.server import serve_http
from swapd import failpoints
from swapd.activity.keeper import ActivityKeeper
from swapd.certify.file import read_configured
from swapd.certify.keeper import CertificateKeeper
from swapd.config import Config
from swapd.config_file import load_config
from swapd.diagnostics.desk import Diagnostics
from swapd.diagnostics.log_ring import LogRing
from swapd.errors import Code, SwapdError
from swapd.hooks import Hooks
from swapd.interpreter import spare_what_is_here, switch_threads_soon
from swapd.lending.desk import LendingDesk
from swapd.lending.quiet_clock import QuietClock
from swapd.lending.sources import DeviceSources
from swapd.log import keep_lines
from swapd.messages.generation import PARK
from swapd.migration.ledger import CapacityLedger
from swapd.migration.supervisor import MigrationSupervisor
from swapd.ops.bus import EventBus
from swapd.ops.server import OPERATOR, run_ops
from swapd.parking.link import ParkLink
from swapd.parking.pausing import Pausing
from swapd.parking.returning import Returning
from swapd.parking.room import ParkRoom
from swapd.service import SwapdService
from swapd.sessions.admission import Admission
from swapd.sessions.keeper import Keeper
from swapd.sessions.record import DrainRecord, MoveRecord, SessionRecord
from swapd.sessions.recovery import Recovery
from swapd.sessions.table import SessionTable
from swapd.sessions.tokenizer import SimTokenizer, Tokenizer, load_tokenizer
from swapd.settings.keeper import SettingsKeeper
from swapd.store.ballast import BALLAST_BYTES
from swapd.store.drains import open_drains, unpriced_drains
from swapd.store.ledger import load_tokens
from swapd.store.meta import next_generation
from swapd.store.moves import finish_move, moves_of, open_moves
from swapd.store.sessions import nonterminal_sessions
from swapd.store.writer import Store
from swapd.switches import Switches
from swapd.transport.arena import Arena
from swapd.transport.arena_header import HEADER_BYTES, REGIONS
from swapd.transport.leases import LeaseBook
from swapd.transport.paths import ensure_private_dir
from swapd.views import Outcome
from swapd.worker.link import WorkerLink
from swapd.worker.spawn import failpoint_folder

log = logging.getLogger("swapd.serve")

GRACEFUL_S: Final = 1.0


Announce = Callable[[str, int, Callable[[], str]], None]
"""Told where HTTP listens, and what makes a one-time link for the owner."""


async def serve(config_path: Path, *, announce: Announce = lambda host, port, link: None) -> None:
    """Run the coordinator until SIGTERM or SIGINT; a second signal ends it at once.

    Raises `config_invalid`, `coordinator_lock_held` and the other codes of a start that cannot be.
    """
    switch_threads_soon()  # the store's and the links' threads wait with a client's token in hand
    log_ring = LogRing()
    keep_lines(log_ring.add)
    config, warnings = load_config(config_path)
    for warning in warnings:
        log.warning("configuration", extra={"reason": warning})
    ensure_private_dir(config.socket_dir)
    if config.park_dir is not None:
        ensure_private_dir(config.park_dir)
    tokenizer = _tokenizer(config)
    if config.allow_failpoints:
        failpoints.arm(failpoint_folder(config), failpoints.COORDINATOR)
    store = (_FallibleStore if config.allow_failpoints else Store).open(
        config.database_path, ballast_bytes=BALLAST_BYTES
    )
    arena, arena_refusal = _arena(config)
    room, park_arena = _park(config, arena)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        await Coordinator(
            config, config_path, store, tokenizer, arena, arena_refusal, context, room, log_ring
        ).run(announce)
    finally:
        context.destroy(linger=0)
        for each in (arena, park_arena):
            if each is not None:
                each.close()
        store.close()


class _FallibleStore(Store):
    """A store whose COMMIT a test can make fail."""

    connection_class = failpoints.FailingConnection


class Coordinator:
    """All actors of one service and their nurseries."""

    def __init__(
        self,
        config: Config,
        config_path: Path,
        store: Store,
        tokenizer: Tokenizer,
        arena: Arena | None,
        arena_refusal: SwapdError | None,
        context: zmq.Context[zmq.Socket[bytes]],
        room: ParkRoom | None = None,
        log_ring: LogRing | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._wall = wall
        self.config = config
        self.store = store
        self.arena = arena
        self.context = context
        self.links: dict[str, WorkerLink] = {}
        self.bus = EventBus()
        self.ledger = CapacityLedger()
        self.table = SessionTable(
            store, tokenizer, self.ledger, self.links, window=config.window_tokens, wall=wall
        )
        store.on_room(self.table.regrant_all)
        self.admission = Admission(config, self.table, self.ledger, tokenizer, self.links, wall)
        self.recovery = Recovery(config, self.table, self.ledger, self.admission, self.links, wall)
        leases = (
            LeaseBook(arena.data_bytes, base_offset=arena.size_bytes - arena.data_bytes, regions=REGIONS)
            if arena is not None
            else None
        )
        self.supervisor = MigrationSupervisor(
            config,
            self.table,
            self.ledger,
            self.admission,
            self.recovery,
            self.links,
            arena,
            leases,
            arena_refusal,
            ParkLink(room, arena, self.table.transcript) if room is not None and arena is not None else None,
            wall,
            CertificateKeeper(
                config, store, read_configured(config.certificate_path), self.table.notify, wall
            ),
        )
        self.park = self.supervisor.park
        self.table.park = self.park
        self.keeper = Keeper(config, self.table, wall)
        self.desk = LendingDesk(
            config,
            self.table,
            self.admission,
            self.recovery,
            self.supervisor,
            self.links,
            quiet=QuietClock(config.owner),
            wall=wall,
        )
        sources = DeviceSources(self.desk, config, config_path, store, context) if config.devices else None
        if sources is not None:
            self.desk.sources.append(sources.run)
        self.switches = Switches(config, store, self.table.notify, wall)
        self.activity = ActivityKeeper(store, self.desk.devices)
        self.diagnostics = Diagnostics(
            config, config_path, store, self.supervisor, self.desk.devices, sources, log_ring=log_ring
        )
        self.service = SwapdService(
            config,
            store,
            self.table,
            self.ledger,
            self.admission,
            self.recovery,
            self.supervisor,
            self.links,
            self.desk,
            wall=wall,
            switches=self.switches,
            settings=SettingsKeeper(config, config_path, store, self.desk.devices),
            activity=self.activity,
            diagnostics=self.diagnostics,
        )
        self.hooks = Hooks(self.table, self.ledger, self.recovery, self.bus)
        self.supervisor.on_drain = self.hooks.drain
        self.hooks.on_attached = self.supervisor.quarantine.met
        self.desk.diary.on_event = self.hooks.device
        self.supervisor.certificates.on_event = self.hooks.certificate
        if arena_refusal is not None:
            log.error("no arena: sessions stay where they are", extra={"reason": arena_refusal.sentence})

    async def run(self, announce: Announce) -> None:
        """Open the nurseries, innermost last; they close in the opposite order."""
        async with trio.open_nursery() as signals:
            # First to come, last to go: a signal at any moment ends what was begun, in order.
            asked = trio.Event()
            await signals.start(self._signals, asked)
            async with trio.open_nursery() as store_nursery:
                await store_nursery.start(self.store.run)
                await self._load()
                async with trio.open_nursery() as actors:
                    await actors.start(self.recovery.run)
                    await actors.start(self.supervisor.run)
                    await actors.start(self.keeper.run)
                    await actors.start(self.service.door.run)
                    passage = self.supervisor.passage
                    if passage is not None:
                        await actors.start(passage.park.room.run)
                        # As a worker that attaches: what it has is judged by the store.
                        actors.start_soon(self.recovery.attached, passage.park, passage.park.inventory())
                        returning = Returning(self.table, passage)
                        self.admission.keepers.append(returning.kept_for)
                        await actors.start(returning.run)
                        grace_s = self.config.limits.disconnect_grace_s
                        await actors.start(Pausing(self.table, passage, grace_s).run)
                    await self._resume_drains()
                    await self.desk.load()
                    for link in self.links.values():
                        await actors.start(link.run)
                    await actors.start(self.desk.run)
                    await actors.start(self.activity.run)
                    await actors.start(self.diagnostics.run_queue.run)
                    async with trio.open_nursery() as doors:
                        await self._open_doors(doors, announce)
                        await asked.wait()
                        await self._stop_doors(doors)
                    if self.park is not None:
                        await self.park.room.spill_all()
                    actors.cancel_scope.cancel()
                await self._stop_workers()
                store_nursery.cancel_scope.cancel()
            signals.cancel_scope.cancel()

    async def _open_doors(self, doors: trio.Nursery, announce: Announce) -> None:
        config = self.config
        run_ops_here = partial(
            run_ops, self.service, self.bus, socket_dir=config.socket_dir, context=self.context
        )
        await doors.start(run_ops_here)
        app = create_app(self.service, config.limits, host_names=frozenset({config.host}))
        serve_here = partial(
            serve_http,
            app,
            host=config.host,
            port=config.port,
            limits=config.limits,
            wait_stopping=self.service.wait_stopping,
        )
        port: int = await doors.start(serve_here)
        log.info("listening", extra={"host": config.host, "port": port})
        door = self.service.door
        door.listens(config.host, port)
        spare_what_is_here()
        announce(config.host, port, lambda: door.link(OPERATOR, "owner").url)

    async def _signals(
        self, first: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for number in signals:
                if first.is_set():
                    os._exit(128 + number)
                log.info("stopping", extra={"signal": number})
                first.set()

    async def _stop_doors(self, doors: trio.Nursery) -> None:
        """Streams end with their cursors intact, then the doors close whatever their clients do (H230)."""
        self.service.stop()
        # Each door ends by itself once its last client has its answer.
        doors.cancel_scope.deadline = trio.current_time() + GRACEFUL_S

    async def _stop_workers(self) -> None:
        choice = self.config.stop_workers
        busy = {s.record.owner.worker for s in self.table if s.record.owner is not None}
        async with trio.open_nursery() as nursery:
            for link in self.links.values():
                if not link.worker.spawn or choice == "never" or (choice == "idle" and link.name in busy):
                    continue
                nursery.start_soon(link.stop_process)

    async def _load(self) -> None:
        """Take up what the last run left: sessions that have not ended, moves that were under way."""
        generation = await self.store.commit(next_generation)
        await self.switches.load()
        await self.service.door.load()
        now = self._wall()

        def read(db: sqlite3.Connection) -> list[tuple[SessionRecord, list[int]]]:
            return [(record, load_tokens(db, record.id)) for record in nonterminal_sessions(db)]

        def close_moves(db: sqlite3.Connection) -> list[MoveRecord]:
            open_ones = open_moves(db)
            for move in open_ones:
                outcome: Outcome = "aborted_source_resumed"
                if move.outcome is not None:
                    outcome = move.outcome  # decided by its commit
                elif move.state == "committed":
                    outcome = "parked" if move.target.worker == PARK else "completed_native"
                finish_move(db, move.id, outcome, Code.COORDINATOR_RESTART, None, now)
            return open_ones

        for record, tokens in await self.store.read(read):
            self.table.add(record, tokens)
        self.recovery.findings.moved(await self.store.commit(close_moves))
        for worker in self.config.workers:
            self.links[worker.worker_id] = WorkerLink(
                self.config,
                worker,
                generation=generation,
                context=self.context,
                arena=self.arena,
                hooks=self.hooks,
            )

    async def _resume_drains(self) -> None:
        def read(db: sqlite3.Connection) -> list[tuple[DrainRecord, list[MoveRecord]]]:
            return [(drain, moves_of(db, drain.id)) for drain in open_drains(db)]

        for drain in await self.store.read(unpriced_drains):
            self.supervisor.remember(drain)
        for drain, moves in await self.store.read(read):
            self.supervisor.resume(drain, moves)


def _tokenizer(config: Config) -> Tokenizer:
    """The tokenizer of the model, or of the sim where only sims run. Raises `model_missing`."""
    if all(worker.engine == "sim" for worker in config.workers):
        return SimTokenizer(config.sim.vocab_size)
    return load_tokenizer(config.models[0].path)


def _park(config: Config, arena: Arena | None) -> tuple[ParkRoom | None, Arena | None]:
    """Room for parked sessions, and its memory, which the caller closes.

    Without memory for it, or without an arena through which KV could come, nothing is parked.
    """
    if not config.park_bytes or arena is None:
        return None, None
    try:
        memory = Arena.create(HEADER_BYTES + config.park_bytes)
    except SwapdError as error:
        reason = error.detail.replace("arena_bytes", "park_bytes")
        log.error("no memory for parked sessions: none is parked", extra={"reason": reason})
        return None, None
    leases = LeaseBook(memory.data_bytes, base_offset=HEADER_BYTES, regions=REGIONS)
    folder = Path(config.park_dir) if config.park_dir is not None else None
    return ParkRoom(memory, leases, folder, config.park_dir_bytes), memory


def _arena(config: Config) -> tuple[Arena | None, SwapdError | None]:
    """The arena, or why there is none: serving goes on without (A6)."""
    if not config.transfer_arena:
        return None, SwapdError(Code.ARENA_UNAVAILABLE, "transfer_arena is false")
    try:
        arena = Arena.create(config.arena_bytes)
    except SwapdError as error:
        return None, error
    if not arena.page_locked:
        log.warning("arena is not page-locked: copies to a GPU take about twice as long")
    return arena, None
