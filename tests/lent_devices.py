"""The devices of a service double: views that a test sets, and what owners asked for."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec

from swapd.api import Archive
from swapd.certify.registry import End, Evidence, Terms
from swapd.certify.views import CertificateView, PlansView, RevocationView, Transfer
from swapd.device_views import (
    Absorption,
    ActivityView,
    DeviceActivity,
    DeviceEvent,
    DeviceView,
    GiveBackView,
    LearnedProfile,
    LearningView,
    ProfileView,
    SamplePoint,
    TakeBack,
    TakenBack,
    TrendPoint,
)
from swapd.errors import Code, SwapdError
from swapd.lending.take_back import check_take_back
from swapd.settings.file import FileNow
from swapd.settings.showing import settings_view
from swapd.settings.views import SettingsChange, SettingsPreview, SettingsView
from swapd.views import (
    Caller,
    DebugView,
    DiagnosticsView,
    DrainView,
    LogLine,
    PartView,
    Readiness,
    ReconciliationView,
    SessionView,
    StatusView,
    Switch,
    SwitchesView,
    WorkerView,
)
from tests.certify.made import ISSUED_AT, certificate
from tests.settings.files import GOOD, parsed
from tests.signin.memory import MemoryDoor

GIVEN_BACK = GiveBackView("taken_back", 100.0, 2.1, ("drn_0",), closed_in_ms=3.0, memory_back=True)


def lent_device(name: str, **changes: Any) -> DeviceView:
    """A calibrated device of one worker of the same name, lent while its screen is locked."""
    profile = ProfileView(True, 60, 60, 740, 187_200.0, 33.6, 13.0, 40.0)
    view = DeviceView(
        name=name,
        kind="nvml",
        workers=(name,),
        state="lent",
        admitting=True,
        why=None,
        reasons=(),
        sentence="owner load 3 % is below 34 %",
        threshold_text="Threshold 34%, rising toward 40% (learned from 52 h)",
        mode="calibrated",
        attendance="locked",
        attendance_detail=None,
        profile="locked",
        engaged=False,
        calibrated=True,
        reading_pct=3.0,
        reading_age_s=0.4,
        readings="ok",
        readings_detail=None,
        profiles={"locked": profile},
        threshold_pct=33.6,
        baseline_pct=13.0,
        target_pct=40.0,
        learned_samples=740,
        learned_s=187_200.0,
    )
    return msgspec.structs.replace(view, **changes)


class PlansDouble:
    """The part of `swapd.api.Service` that is about plans: one certificate, two edges."""

    def __init__(self) -> None:
        self.now = ISSUED_AT + 86_400.0
        self.known = certificate("fp")
        self.revoked: dict[str, float] = {}
        self.ends = [End("a", "fp"), End("b", "fp")]

    async def view(self, caller: Caller) -> PlansView:
        made = self.known
        terms = Terms(None, made.evidence_profile, False, made.snapshot_schema)
        edges, refusals = Evidence(terms, (made,), self.revoked).plans(self.ends, self.now)
        told = CertificateView(
            *(made.id, made.basis, made.evidence_profile, made.is_issued, made.issued_at, made.expires_at),
            *(made.expires_at - self.now, made.fingerprints, made.blocking, self.revoked.get(made.id)),
        )
        transfer = Transfer("arena", 64 << 20, True)
        alone = len(self.ends) < 2
        return PlansView(tuple(edges), tuple(refusals), True, transfer, (told,), alone)

    async def revoke(self, caller: Caller, certificate: str) -> RevocationView:
        if certificate != self.known.id:
            raise SwapdError(Code.CERTIFICATE_UNKNOWN)
        return RevocationView(certificate, self.revoked.setdefault(certificate, 100.0))


class LentDevices:
    """The part of `swapd.api.Service` that is about devices; a service double inherits it."""

    def __init__(self) -> None:
        self.lent: dict[str, DeviceView] = {}
        self.taken: list[tuple[str, TakeBack]] = []
        self.points: list[SamplePoint] = []
        self.stretches: list[TrendPoint] = []
        self.learnt = LearningView(
            "calibrated", 0.75, 72.0, 25.0, 40.0,
            (
                LearnedProfile(
                    "locked", True, 187_200.0, ((4, 60.0), (25, 30.0), (70, 10.0)), 13.0, 40.0, 33.6,
                    (Absorption(34.0, 46_000.0), Absorption(39.0, 64_000.0)),
                ),
                LearnedProfile("unlocked", False, 170.0, ((8, 34.0),), None, None, None),
            ),
        )  # fmt: skip
        self.happened: list[DeviceEvent] = []
        self.looks_until_free: int | None = None
        """How often a device that was taken back is looked at until it is free; None: the test decides."""

        self.asked_since: list[float] = []
        self.happened_since = ActivityView(
            since=100.0,
            recorded_since=None,
            tokens=41_000,
            devices=(DeviceActivity("gpu0", 22_320.0, 3, {"pressure": 2, "taken_back": 1}),),
            lent_s=22_320.0,
            pressure_events=3,
            came_first=2,
            moves={"completed_native": 5, "aborted_source_resumed": 1},
            moved=5,
            longest_pause_ms=104.0,
            sentence="Lent 6.2 h, 41,000 tokens served.",
        )
        self.exports: list[io.BytesIO] = []
        self.archive = b"PK" + bytes(200_000)
        self.logged_for: list[float] = []
        self.health = DiagnosticsView(
            started_at=1000.0,
            pid=77,
            versions={"swapd": "test", "python": "3.11.7", "kernel": "6.1"},
            parts=(
                PartView("store", "ok", "a write takes 0.4 ms, 19 of 20 take under 1.2 ms"),
                PartView("worker b", "trouble", "dead"),
            ),
            runqueue_wait_ratio=0.04,
            commit_ms_p50=0.4,
            commit_ms_p95=1.2,
            arena_bytes={"total": 1 << 20, "lent": 0, "free": 1 << 20},
            park_bytes={},
            debug=DebugView(False, None, False),
            log=(
                LogLine(
                    "2026-01-02T03:04:05.000+00:00", "warning", "swapd.x", "sampler is lost", "kind=nvml"
                ),
            ),
        )
        self.visits = 0
        self.visit_before: float | None = None
        self.switches_view = SwitchesView()
        self.cleared: list[str] = []
        self.report = ReconciliationView("done", 1.0, 2.0, {"a": "found"}, 1.5, 0.5, {}, (), 0)

    @cached_property
    def door(self) -> MemoryDoor:
        """The real door, over tables in memory."""
        return MemoryDoor()

    @cached_property
    def plans(self) -> PlansDouble:
        return PlansDouble()

    async def settings(self, caller: Caller) -> SettingsView:
        saved = parsed(GOOD)
        return settings_view(saved, saved, FileNow(GOOD, "digest", None), "/srv/swapd.toml")

    async def preview_settings(self, caller: Caller, change: SettingsChange) -> SettingsPreview:
        raise SwapdError(Code.SETTINGS_CHANGED)

    async def save_settings(self, caller: Caller, change: SettingsChange) -> SettingsView:
        raise SwapdError(Code.SETTINGS_CHANGED)

    async def switches(self, caller: Caller) -> SwitchesView:
        return self.switches_view

    async def turn_switch(self, caller: Caller, switch: Switch, *, on: bool) -> SwitchesView:
        changes = {switch: on, f"{switch}_off_since": None if on else 100.0}
        self.switches_view = msgspec.structs.replace(self.switches_view, **changes)
        return self.switches_view

    async def clear_quarantine(self, caller: Caller, worker: str) -> WorkerView:
        found = [view for view in await self.workers(caller) if view.id == worker]
        if not found:
            raise SwapdError(Code.WORKER_UNKNOWN)
        self.cleared.append(worker)
        return found[0]

    async def reconciliation(self, caller: Caller) -> ReconciliationView:
        return self.report

    async def workers(self, caller: Caller) -> Sequence[WorkerView]:
        raise NotImplementedError

    async def sessions(self, caller: Caller) -> Sequence[SessionView]:
        raise NotImplementedError

    async def drains(self, caller: Caller) -> Sequence[DrainView]:
        raise NotImplementedError

    def readiness(self) -> Readiness:
        raise NotImplementedError

    async def status(self, caller: Caller) -> StatusView:
        ready = self.readiness()
        states = [view.state for view in await self.sessions(caller)]
        return StatusView(
            version="test",
            ready=ready.ready,
            reasons=ready.reasons,
            consent=True,
            devices=tuple(self.lent.values()),
            workers=tuple(await self.workers(caller)),
            sessions={state: states.count(state) for state in states},
            drains=tuple(view for view in await self.drains(caller) if view.finished_at is None),
            switches=self.switches_view,
        )

    async def devices(self, caller: Caller) -> Sequence[DeviceView]:
        return list(self.lent.values())

    async def device(self, caller: Caller, device: str) -> DeviceView:
        view = self._lent(device)
        if self.looks_until_free is not None and view.state == "vacating":
            self.looks_until_free -= 1
            if self.looks_until_free <= 0:
                self.set_free(device)
        return self.lent[device]

    def set_free(self, device: str) -> None:
        self.lent[device] = msgspec.structs.replace(
            self.lent[device], state="free", last_give_back=GIVEN_BACK
        )

    async def take_back(self, caller: Caller, device: str, request: TakeBack) -> DeviceView:
        view = self._lent(device)
        checked = check_take_back(request)
        self.taken.append((device, checked))
        ends_at = None if checked.for_s is None else 100.0 + checked.for_s
        self.lent[device] = msgspec.structs.replace(
            view,
            state="vacating",
            admitting=False,
            why="taken_back",
            reasons=("taken_back",),
            sentence="taken back by its owner",
            taken_back=TakenBack(100.0, checked.until or "told", ends_at),
            last_give_back=msgspec.structs.replace(GIVEN_BACK, free_in_s=None),
        )
        return self.lent[device]

    async def lend(self, caller: Caller, device: str) -> DeviceView:
        self._lent(device)
        self.lent[device] = lent_device(device)
        return self.lent[device]

    async def samples(self, caller: Caller, device: str, since: float = 0.0) -> Sequence[SamplePoint]:
        self._lent(device)
        return [point for point in self.points if point.at >= since]

    async def trend(self, caller: Caller, device: str, span_s: float, points: int) -> Sequence[TrendPoint]:
        self._lent(device)
        return self.stretches

    async def learning(self, caller: Caller, device: str) -> LearningView:
        self._lent(device)
        return self.learnt

    async def device_events(self, caller: Caller, device: str) -> Sequence[DeviceEvent]:
        self._lent(device)
        return self.happened

    async def activity(self, caller: Caller, since: float) -> ActivityView:
        self.asked_since.append(since)
        return self.happened_since

    def visit(self, caller: Caller) -> float | None:
        self.visits += 1
        return self.visit_before

    async def diagnostics(self, caller: Caller) -> DiagnosticsView:
        return self.health

    async def export_diagnostics(self, caller: Caller) -> Archive:
        if not caller.is_operator:
            raise SwapdError(Code.OPERATOR_REQUIRED)
        file = io.BytesIO(self.archive)
        self.exports.append(file)
        return Archive(file, len(self.archive), "swapd-diagnostics-20260102-030405.zip")

    async def log_decisions(self, caller: Caller, for_s: float) -> DebugView:
        if not 0.0 <= for_s <= 3600.0:
            raise SwapdError(Code.INVALID_REQUEST, "0 to 3600 seconds")
        self.logged_for.append(for_s)
        debug = DebugView(for_s > 0, 2000.0 if for_s else None, False)
        self.health = msgspec.structs.replace(self.health, debug=debug)
        return debug

    def metrics(self, caller: Caller) -> bytes:
        return b"swapd_ready 1.0\n"

    def _lent(self, device: str) -> DeviceView:
        if device not in self.lent:
            raise SwapdError(Code.DEVICE_UNKNOWN, f"the devices are {', '.join(self.lent)}")
        return self.lent[device]
