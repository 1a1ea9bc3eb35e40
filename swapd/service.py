"""The one implementation of `swapd.api.Service`: it checks who asks and passes on to the rooms that know."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

import swapd
from swapd.activity.keeper import ActivityKeeper
from swapd.api import Archive
from swapd.callers import Credentials, refuse_viewer, require_operator, require_reader
from swapd.certify.desk import PlanDesk
from swapd.config import Config
from swapd.device_views import (
    ActivityView,
    DeviceEvent,
    DeviceView,
    LearningView,
    SamplePoint,
    TakeBack,
    TrendPoint,
)
from swapd.diagnostics.desk import Diagnostics
from swapd.errors import Code, SwapdError
from swapd.lending.desk import LendingDesk
from swapd.lending.device import LentDevice
from swapd.lending.take_back import check_take_back
from swapd.lending.view import device_view, learning_view
from swapd.messages.from_worker import ScheduleLog
from swapd.messages.to_worker import Schedule
from swapd.migration.askers import check_reason
from swapd.migration.drains import check_deadline
from swapd.migration.ledger import CapacityLedger
from swapd.migration.supervisor import MigrationSupervisor
from swapd.scrape import Parts, Scrape, put_device, put_service
from swapd.sessions.admission import Admission
from swapd.sessions.live import LiveSession
from swapd.sessions.recovery import Recovery
from swapd.sessions.subscription import Reader
from swapd.sessions.table import SessionTable
from swapd.settings.keeper import SettingsKeeper
from swapd.settings.views import SettingsChange, SettingsPreview, SettingsView
from swapd.signin.door import ConsoleDoor
from swapd.signin.tokens import TokenFiles
from swapd.store.devices import SAMPLES_KEPT_S
from swapd.store.devices import device_events as load_events
from swapd.store.devices import samples as load_samples
from swapd.store.devices import trend as load_trend
from swapd.store.reader import readable
from swapd.store.writer import Store
from swapd.switches import Switches
from swapd.views import (
    DRAINS_SHOWN,
    Caller,
    DebugView,
    DiagnosticsView,
    DrainMode,
    DrainOrigin,
    DrainView,
    NewSession,
    PreflightView,
    Readiness,
    ReconciliationView,
    SessionView,
    StatusView,
    Switch,
    SwitchesView,
    WorkerView,
)
from swapd.worker.link import WorkerLink
from swapd.worker.view import worker_view

EVENTS_SHOWN: Final = 200
"""Of one device, newest first."""


class SwapdService:
    """Front door of the coordinator."""

    def __init__(
        self,
        config: Config,
        store: Store,
        table: SessionTable,
        ledger: CapacityLedger,
        admission: Admission,
        recovery: Recovery,
        supervisor: MigrationSupervisor,
        links: dict[str, WorkerLink],
        desk: LendingDesk | None = None,
        *,
        wall: Callable[[], float] = time.time,
        strict_metrics: bool = False,
        switches: Switches | None = None,
        settings: SettingsKeeper | None = None,
        activity: ActivityKeeper | None = None,
        diagnostics: Diagnostics | None = None,
        door: ConsoleDoor | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._table = table
        self._ledger = ledger
        self._admission = admission
        self._recovery = recovery
        self._supervisor = supervisor
        self._links = links
        self._desk = desk
        self._settings = settings
        self._wall = wall
        self._strict_metrics = strict_metrics
        self._refusals: Counter[str] = Counter()
        admission.refusal = self._refusal
        self.switchboard = switches or Switches(config, store, table.notify, wall)
        admission.stopped = self.switchboard.refusal
        supervisor.migration_off = self.switchboard.migration_off
        self._activity = activity or ActivityKeeper(store, desk.devices if desk is not None else {}, wall)
        self._diagnostics = diagnostics
        self.door = door or ConsoleDoor(store, TokenFiles(Path(config.database_path).parent))
        self.plans = PlanDesk(
            supervisor.certificates,
            links,
            supervisor.loans.transfer,
            lambda: self.switchboard.migration_off() is None,
        )
        self._stopping = trio.Event()
        self._credentials = Credentials(config.credentials)

    # Who asks --------------------------------------------------------------------------------

    def authenticate(self, token: str | None) -> Caller:
        return self._credentials.authenticate(token)

    # Sessions --------------------------------------------------------------------------------

    async def create_session(self, caller: Caller, request: NewSession) -> SessionView:
        refuse_viewer(caller)
        try:
            self._check_ready()
            if (stopped := self.switchboard.refusal()) is not None:
                raise stopped
            return (await self._admission.admit(caller, request)).view()
        except SwapdError as error:
            self._refusals[error.code] += 1
            raise

    async def session(self, caller: Caller, session: str) -> SessionView:
        return self._session(await self._find(caller, session))

    async def sessions(self, caller: Caller) -> Sequence[SessionView]:
        every = caller.is_operator or caller.is_viewer
        return [self._session(s) for s in self._table if every or s.record.namespace == caller.namespace]

    def _session(self, session: LiveSession) -> SessionView:
        return msgspec.structs.replace(session.view(), waits=self._supervisor.waits(session))

    async def cancel_session(self, caller: Caller, session: str) -> SessionView:
        refuse_viewer(caller)
        found = await self._find(caller, session)
        await self._table.finish(found, "cancelled", Code.SESSION_CANCELLED)
        return found.view()

    @asynccontextmanager
    async def subscribe(
        self, caller: Caller, session: str, after: int | None, *, notices: bool = False
    ) -> AsyncIterator[Reader]:
        found = await self._find(caller, session, content=True)
        reader = Reader(found, after, self._stopping, notices=notices)
        self._table.reader_came(found)
        try:
            yield reader
        finally:
            self._table.reader_left(found)

    async def _find(self, caller: Caller, session: str, *, content: bool = False) -> LiveSession:
        found = await self._table.find(session)
        own = found.record.namespace == caller.namespace
        # An operator sees every state, but only its own namespace's text (A27).
        if not own and (content or not (caller.is_operator or caller.is_viewer)):
            raise SwapdError(Code.SESSION_UNKNOWN)
        return found

    # Workers and drains ----------------------------------------------------------------------

    async def workers(self, caller: Caller) -> Sequence[WorkerView]:
        require_reader(caller)
        return [self._worker(link) for link in self._links.values()]

    async def preflight(self, caller: Caller, worker: str, mode: DrainMode = "native") -> PreflightView:
        require_reader(caller)
        self._check_drain(mode)
        return await self._supervisor.preflight(worker, mode)

    async def start_drain(
        self,
        caller: Caller,
        worker: str,
        deadline_s: float | None = None,
        origin: DrainOrigin = "operator",
        mode: DrainMode = "native",
        reason: str | None = None,
    ) -> DrainView:
        (view,) = await self.start_drains(caller, [worker], deadline_s, origin, mode, reason)
        return view

    async def start_drains(
        self,
        caller: Caller,
        workers: Sequence[str],
        deadline_s: float | None = None,
        origin: DrainOrigin = "operator",
        mode: DrainMode = "native",
        reason: str | None = None,
    ) -> Sequence[DrainView]:
        require_operator(caller)
        self._check_drain(mode)
        check_deadline(deadline_s)
        reason = check_reason(reason)
        if not workers or len(set(workers)) < len(workers):
            raise SwapdError(Code.INVALID_REQUEST, "workers are one or more names, each once")
        if deadline_s is None:
            deadline_s = self._config.drain_deadline_s
        return await self._supervisor.start_all(workers, deadline_s, origin, mode, reason)

    def _check_drain(self, mode: DrainMode) -> None:
        self._check_ready()
        if mode == "park" and self._supervisor.park is None:
            raise SwapdError(Code.PARKING_OFF)

    async def drain(self, caller: Caller, drain: str) -> DrainView:
        require_reader(caller)
        return await self._supervisor.view(drain)

    async def drains(
        self, caller: Caller, before: str | None = None, limit: int = DRAINS_SHOWN
    ) -> Sequence[DrainView]:
        require_reader(caller)
        return await self._supervisor.views(before, min(max(limit, 1), DRAINS_SHOWN))

    async def cancel_drain(self, caller: Caller, drain: str) -> DrainView:
        require_operator(caller)
        return await self._supervisor.cancel(drain)

    async def schedule(self, caller: Caller, worker: str) -> ScheduleLog:
        require_operator(caller)
        link = self._links.get(worker)
        if link is None:
            raise SwapdError(Code.WORKER_UNKNOWN)
        return await link.request(Schedule(), ScheduleLog)

    def _worker(self, link: WorkerLink) -> WorkerView:
        drain = self._supervisor.draining(link.name)
        return worker_view(
            link,
            admitting=self._admission.admitting(link.name),
            closed=self._admission.closed.get(link.name),
            sessions=len(self._table.owned_by(link.name)),
            capacity=self._ledger.worker(link.name),
            drain=drain.id if drain is not None else None,
            held=self._supervisor.quarantine.of(link.name),
        )

    async def clear_quarantine(self, caller: Caller, worker: str) -> WorkerView:
        require_operator(caller)
        link = self._links.get(worker)
        if link is None:
            raise SwapdError(Code.WORKER_UNKNOWN)
        await self._supervisor.quarantine.clear(worker)
        return self._worker(link)

    # Lent devices ----------------------------------------------------------------------------

    async def devices(self, caller: Caller) -> Sequence[DeviceView]:
        require_reader(caller)
        return self._device_views()

    async def device(self, caller: Caller, device: str) -> DeviceView:
        require_reader(caller)
        return self._device_view(self._find_device(device))

    async def take_back(self, caller: Caller, device: str, request: TakeBack) -> DeviceView:
        require_operator(caller)
        found = self._find_device(device)
        request = check_take_back(request)
        if self._desk is not None:
            await self._desk.take_back(found.name, request)
        return self._device_view(found)

    async def lend(self, caller: Caller, device: str) -> DeviceView:
        require_operator(caller)
        found = self._find_device(device)
        if self._desk is not None:
            await self._desk.lend(found.name)
        return self._device_view(found)

    async def samples(self, caller: Caller, device: str, since: float = 0.0) -> Sequence[SamplePoint]:
        require_reader(caller)
        name = self._find_device(device).name
        if not 0 <= since < math.inf:
            raise SwapdError(Code.INVALID_REQUEST, "since is a time in seconds since 1970")
        since = max(since, self._wall() - SAMPLES_KEPT_S)
        with readable():
            return await self._store.read(lambda db: load_samples(db, name, since))

    async def trend(self, caller: Caller, device: str, span_s: float, points: int) -> Sequence[TrendPoint]:
        require_reader(caller)
        name = self._find_device(device).name
        step_s = min(span_s, SAMPLES_KEPT_S) / points
        first = math.floor(self._wall() / step_s) - points + 1
        with readable():
            return await self._store.read(lambda db: load_trend(db, name, first, points, step_s))

    async def learning(self, caller: Caller, device: str) -> LearningView:
        require_reader(caller)
        return learning_view(self._find_device(device), self._config)

    async def device_events(self, caller: Caller, device: str) -> Sequence[DeviceEvent]:
        require_reader(caller)
        name = self._find_device(device).name
        with readable():
            return await self._store.read(lambda db: load_events(db, name, EVENTS_SHOWN))

    async def activity(self, caller: Caller, since: float) -> ActivityView:
        require_reader(caller)
        with readable():
            return await self._activity.view(since)

    def visit(self, caller: Caller) -> float | None:
        require_reader(caller)
        return self._activity.visit() if caller.is_operator else self._activity.visit_before()

    def _find_device(self, device: str) -> LentDevice:
        if self._desk is None:
            raise SwapdError(Code.DEVICE_UNKNOWN, "no [[devices]] are configured")
        return self._desk.device(device)

    def _device_views(self) -> list[DeviceView]:
        devices = self._desk.devices.values() if self._desk is not None else ()
        return [self._device_view(device) for device in devices]

    def _device_view(self, device: LentDevice) -> DeviceView:
        now_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        return device_view(device, self._config, self._wall(), now_boot)

    def _refusal(self) -> SwapdError | None:
        """Why no device is lent, if that is why nobody admits (R60)."""
        refusal = self._desk.refusal() if self._desk is not None else None
        return None if refusal is None else SwapdError(*refusal)

    # The owner's settings --------------------------------------------------------------------

    async def settings(self, caller: Caller) -> SettingsView:
        require_reader(caller)
        view = await self._settings_room().view()
        # Without it nothing can be saved, and it tells nothing about the file's tokens.
        return view if caller.is_operator else msgspec.structs.replace(view, digest="")

    async def preview_settings(self, caller: Caller, change: SettingsChange) -> SettingsPreview:
        require_operator(caller)
        return await self._settings_room().preview(change)

    async def save_settings(self, caller: Caller, change: SettingsChange) -> SettingsView:
        require_operator(caller)
        return await self._settings_room().save(change)

    def _settings_room(self) -> SettingsKeeper:
        if self._settings is None:
            raise SwapdError(Code.NOT_FOUND, "this service was started without a configuration file")
        return self._settings

    # The service as a whole ------------------------------------------------------------------

    async def switches(self, caller: Caller) -> SwitchesView:
        require_reader(caller)
        return self.switchboard.view()

    async def turn_switch(self, caller: Caller, switch: Switch, *, on: bool) -> SwitchesView:
        require_operator(caller)
        await self.switchboard.turn(switch, on=on)
        return self.switchboard.view()

    async def reconciliation(self, caller: Caller) -> ReconciliationView:
        require_reader(caller)
        return self._recovery.report()

    async def status(self, caller: Caller) -> StatusView:
        require_reader(caller)
        ready = self.readiness()
        # From memory: pages ask twice a second, and they must be there when the disk cannot be read.
        drains = [await self._supervisor.view(book.id) for book in self._supervisor.open_drains()]
        return StatusView(
            version=swapd.__version__,
            ready=ready.ready,
            reasons=ready.reasons,
            consent=self._config.owner.consent,
            devices=tuple(self._device_views()),
            workers=tuple(self._worker(link) for link in self._links.values()),
            sessions=dict(Counter[str](session.record.state for session in self._table)),
            drains=tuple(reversed(drains)),
            switches=self.switchboard.view(),
        )

    async def diagnostics(self, caller: Caller) -> DiagnosticsView:
        require_reader(caller)
        return await self._require_diagnostics().view(self, caller)

    async def export_diagnostics(self, caller: Caller) -> Archive:
        require_operator(caller)
        return await self._require_diagnostics().export(self, caller)

    async def log_decisions(self, caller: Caller, for_s: float) -> DebugView:
        require_operator(caller)
        return self._require_diagnostics().debug(for_s)

    def _require_diagnostics(self) -> Diagnostics:
        if self._diagnostics is None:
            raise SwapdError(Code.NOT_FOUND)
        return self._diagnostics

    def metrics(self, caller: Caller) -> bytes:
        require_reader(caller)
        diagnostics = self._diagnostics
        lent = self._desk.devices if self._desk is not None else {}
        scrape = Scrape(tuple(lent), strict=self._strict_metrics)
        put_service(
            scrape,
            Parts(
                self._table,
                self._ledger,
                self._recovery,
                self._supervisor,
                self._links,
                self._refusals,
                self.readiness().ready,
                diagnostics.run_queue.ratio if diagnostics is not None else None,
            ),
        )
        for device in lent.values():
            put_device(scrape, self._device_view(device), device.readings)
        return scrape.text()

    def readiness(self) -> Readiness:
        reasons = []
        if self.stopping:
            reasons.append(str(Code.STOPPING))
        reasons.extend(str(code) for code in self._store.trouble())
        if not self._recovery.reconciled:
            reasons.append("reconciling")
        if (stopped := self.switchboard.refusal()) is not None:
            reasons.append(str(stopped.code))  # H163
        if not any(self._admission.admitting(name) for name in self._links):
            reasons.append(str(Code.NO_ADMITTING_WORKER))
        if self._desk is not None:
            reasons.extend(self._desk.unready())  # R61
        return Readiness(not reasons, tuple(reasons))

    def limits(self) -> dict[str, Any]:
        limits: dict[str, Any] = msgspec.to_builtins(self._config.limits)
        park = self._supervisor.park
        limits.update(
            max_context_tokens=self._admission.context(),
            max_active_sessions=self._config.max_active_sessions,
            window_tokens=self._config.window_tokens,
            transfer=self._supervisor.loans.transfer(),
            park={"bytes": park.room.ledger.capacity_bytes if park is not None else 0},
        )
        return limits

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    async def wait_stopping(self) -> None:
        await self._stopping.wait()

    def stop(self) -> None:
        """Close admission and end streams with their cursors intact (H230)."""
        self._stopping.set()
        for session in self._table:
            session.wake()

    def _check_ready(self) -> None:
        if self.stopping:
            raise SwapdError(Code.STOPPING)
        if trouble := self._store.trouble():
            raise SwapdError(trouble[0], ", ".join(trouble[1:]))
        if not self._recovery.reconciled:
            raise SwapdError(Code.NOT_READY, "reconciling")
