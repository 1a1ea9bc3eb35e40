"""Coordinator → operator's tools: what a command is answered with. Views are those of the HTTP API, field by
field; a refusal is an `Error` with the stable code.
"""

from __future__ import annotations

import msgspec

from swapd.certify.views import PlansView, RevocationView
from swapd.device_views import DeviceEvent, DeviceView, SamplePoint
from swapd.errors import SwapdError
from swapd.messages.from_worker import StepRecord
from swapd.views import (
    DebugView,
    DrainView,
    Readiness,
    ReconciliationView,
    Role,
    SessionView,
    SwitchesView,
    WorkerView,
)


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    version: str
    pid: int


class StatusAnswer(msgspec.Struct, frozen=True, tag="status"):
    """`StatusView` and what only this socket tells: `pid`, and in `ops` the ops server's own statistics.

    `ready` and `reasons` are also in `readiness`. `sessions` counts nonterminal ones by state.
    """

    version: str
    pid: int
    readiness: Readiness
    stopping: bool
    workers: tuple[WorkerView, ...]
    sessions: dict[str, int]
    drains: tuple[DrainView, ...]
    ops: dict[str, int]
    ready: bool
    reasons: tuple[str, ...]
    consent: bool
    devices: tuple[DeviceView, ...]
    switches: SwitchesView = SwitchesView()


class WorkersAnswer(msgspec.Struct, frozen=True, tag="workers"):
    workers: tuple[WorkerView, ...]


class WorkerAnswer(msgspec.Struct, frozen=True, tag="worker"):
    worker: WorkerView


class SwitchesAnswer(msgspec.Struct, frozen=True, tag="switches"):
    switches: SwitchesView


class ReconciliationAnswer(msgspec.Struct, frozen=True, tag="reconciliation"):
    report: ReconciliationView


class PlansAnswer(msgspec.Struct, frozen=True, tag="plans"):
    plans: PlansView


class RevocationAnswer(msgspec.Struct, frozen=True, tag="revocation"):
    revocation: RevocationView


class SessionsAnswer(msgspec.Struct, frozen=True, tag="sessions"):
    sessions: tuple[SessionView, ...]


class SessionAnswer(msgspec.Struct, frozen=True, tag="session"):
    session: SessionView


class WireEvent(msgspec.Struct, frozen=True):
    """One durable event; `data` is the JSON that the HTTP stream carries."""

    id: int
    name: str
    data: msgspec.Raw


class EventsAnswer(msgspec.Struct, frozen=True, tag="events"):
    """Perhaps none, when nothing came in time. `ended`: there will be no more after these."""

    events: tuple[WireEvent, ...]
    cursor: int | None
    ended: bool


class DrainAnswer(msgspec.Struct, frozen=True, tag="drain"):
    drain: DrainView


class DrainsAnswer(msgspec.Struct, frozen=True, tag="drains"):
    drains: tuple[DrainView, ...]


class DevicesAnswer(msgspec.Struct, frozen=True, tag="devices"):
    devices: tuple[DeviceView, ...]


class DeviceAnswer(msgspec.Struct, frozen=True, tag="device"):
    device: DeviceView


class SamplesAnswer(msgspec.Struct, frozen=True, tag="samples"):
    """Oldest first."""

    samples: tuple[SamplePoint, ...]


class DeviceEventsAnswer(msgspec.Struct, frozen=True, tag="device_events"):
    """Newest first."""

    events: tuple[DeviceEvent, ...]


class ConsoleLinkAnswer(msgspec.Struct, frozen=True, tag="console_link"):
    """`valid_s` from now on, and once."""

    url: str
    role: Role
    valid_s: float


class MetricsAnswer(msgspec.Struct, frozen=True, tag="metrics"):
    text: str


class ScheduleAnswer(msgspec.Struct, frozen=True, tag="schedule"):
    """Steps in order, forgotten by the worker with this answer; empty when none are left."""

    steps: tuple[StepRecord, ...]


class Error(msgspec.Struct, frozen=True, tag="error"):
    """Any command can be answered so; `code` is a `swapd.errors.Code`."""

    code: str
    message: str
    retryable: bool
    detail: str = ""
    retry_after_s: float | None = None


class DiagnosticsAnswer(msgspec.Struct, frozen=True, tag="diagnostics"):
    """The archive of an export, base64 on the wire; `name` is what to call it."""

    name: str
    archive: bytes


class DebugAnswer(msgspec.Struct, frozen=True, tag="debug"):
    debug: DebugView


OpsAnswer = (
    Pong
    | StatusAnswer
    | WorkersAnswer
    | WorkerAnswer
    | SwitchesAnswer
    | ReconciliationAnswer
    | PlansAnswer
    | RevocationAnswer
    | SessionsAnswer
    | SessionAnswer
    | EventsAnswer
    | DrainAnswer
    | DrainsAnswer
    | DevicesAnswer
    | DeviceAnswer
    | SamplesAnswer
    | DeviceEventsAnswer
    | ConsoleLinkAnswer
    | MetricsAnswer
    | ScheduleAnswer
    | DiagnosticsAnswer
    | DebugAnswer
    | Error
)


def refusal(error: SwapdError) -> Error:
    """Say an error in the words of the wire."""
    return Error(error.code, error.sentence, error.retryable, error.detail, error.retry_after_s)
