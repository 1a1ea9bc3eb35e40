"""Operator's tools ↔ coordinator, over the ops socket: one frame a message, JSON with a version.

`{"v": 1, "id": 7, "body": {"type": "status"}}`. JSON, because a shell script or another language should be
able to speak it; nothing here is on the token path. Views are those of the HTTP API, field by field. An
answer carries its request's id; a refusal is an `Error` with the stable code.
"""

from __future__ import annotations

from typing import Final

import msgspec

from swapd.device_views import DeviceEvent, DeviceView, SamplePoint, TakeBack
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import StepRecord
from swapd.views import (
    DebugView,
    DrainMode,
    DrainView,
    NewSession,
    Readiness,
    ReconciliationView,
    Role,
    SessionView,
    Switch,
    SwitchesView,
    WorkerView,
)

OPS_VERSION: Final = 1
MAX_REQUEST_BYTES: Final = 1 << 20
"""A request of exactly this size is read, one byte more is refused (H169)."""
MAX_ANSWER_BYTES: Final = 16 << 20
MAX_EVENTS: Final = 512
MAX_WAIT_S: Final = 20.0
OPS_SOCKET: Final = "ops.sock"
EVENTS_SOCKET: Final = "events.sock"


class Ping(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ping"):
    """Is there anyone? Answer: `Pong`."""


class Status(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="status"):
    """Readiness, devices, workers and counts in one answer: `StatusAnswer`."""


class Workers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="workers"):
    """Answer: `WorkersAnswer`."""


class Sessions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sessions"):
    """Nonterminal sessions of all namespaces. Answer: `SessionsAnswer`."""


class Session(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="session"):
    """Answer: `SessionAnswer`."""

    session: str


class CreateSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="create_session"):
    """Start a generation in the operators' namespace. Answer: `SessionAnswer`."""

    request: NewSession


class CancelSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="cancel_session"):
    """Answer: `SessionAnswer`."""

    session: str


class Events(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="events"):
    """Wait up to `wait_s` for events strictly after `after` (None: from `created`). Answer: `EventsAnswer`.

    Between two polls of one client its subscription stays open for a while, so that the session keeps
    counting as read.
    """

    session: str
    after: int | None = None
    max_events: int = MAX_EVENTS
    wait_s: float = 10.0


class StartDrain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="start_drain"):
    """Answer: `DrainAnswer`."""

    worker: str
    deadline_s: float | None = None
    mode: DrainMode = "native"
    reason: str | None = None


class StartDrains(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="start_drains"):
    """Drain several workers together: all are closed before anything moves. Answer: `DrainsAnswer`."""

    workers: tuple[str, ...]
    deadline_s: float | None = None
    mode: DrainMode = "native"
    reason: str | None = None


class Drain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="drain"):
    """Answer: `DrainAnswer`."""

    drain: str


class Drains(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="drains"):
    """Answer: `DrainsAnswer`."""


class CancelDrain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="cancel_drain"):
    """Answer: `DrainAnswer`."""

    drain: str


class Devices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="devices"):
    """Answer: `DevicesAnswer`."""


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="device"):
    """Answer: `DeviceAnswer`."""

    device: str


class TakeDeviceBack(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="take_back"):
    """Give a device to its owner now. Answer: `DeviceAnswer`, once that is durable."""

    device: str
    request: TakeBack = TakeBack()


class Lend(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="lend"):
    """End a take-back. Answer: `DeviceAnswer`."""

    device: str


class Samples(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="samples"):
    """Readings of the last six hours from `since` (seconds since 1970) on. Answer: `SamplesAnswer`."""

    device: str
    since: float = 0.0


class DeviceEvents(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="device_events"):
    """What happened to a device, newest first. Answer: `DeviceEventsAnswer`."""

    device: str


class Switches(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="switches"):
    """What the operator has turned off. Answer: `SwitchesAnswer`."""


class TurnSwitch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="turn_switch"):
    """Stop or reopen admission, or moves, for the whole service. Answer: `SwitchesAnswer`, once durable."""

    switch: Switch
    on: bool


class ClearQuarantine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="clear_quarantine"):
    """Trust a worker again on which an import failed. Answer: `WorkerAnswer`."""

    worker: str


class Reconciliation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="reconciliation"):
    """What the last start found of the run before it. Answer: `ReconciliationAnswer`."""


class ConsoleLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="console_link"):
    """Make a one-time link to the console; with `new_tokens`, first make both tokens anew, which signs
    everybody out. Answer: `ConsoleLinkAnswer`."""

    role: Role = "owner"
    new_tokens: bool = False


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="metrics"):
    """The text of `GET /metrics`. Answer: `MetricsAnswer`."""


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="schedule"):
    """Take the oldest steps that a worker recorded (`record_schedule`). Answer: `ScheduleAnswer`."""

    worker: str


class ExportDiagnostics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="export_diagnostics"):
    """The archive of `GET /v1/diagnostics/archive`. Answer: `DiagnosticsAnswer`."""


class LogDecisions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="log_decisions"):
    """Log every reading's decision for that long; 0 ends it (R129). Answer: `DebugAnswer`."""

    for_s: float


OpsCommand = (
    Ping
    | Status
    | ExportDiagnostics
    | LogDecisions
    | Workers
    | Sessions
    | Session
    | CreateSession
    | CancelSession
    | Events
    | StartDrain
    | StartDrains
    | Drain
    | Drains
    | CancelDrain
    | Devices
    | Device
    | TakeDeviceBack
    | Lend
    | Samples
    | DeviceEvents
    | Switches
    | TurnSwitch
    | ClearQuarantine
    | Reconciliation
    | ConsoleLink
    | Metrics
    | Schedule
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


class OpsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    id: int
    body: OpsCommand


class OpsReply(msgspec.Struct, frozen=True):
    """`id` is the request's, 0 when the request was too broken to have one."""

    v: int
    id: int
    body: OpsAnswer


class StateEvent(msgspec.Struct, frozen=True):
    """What the PUB socket sends, as `[kind, JSON]`. A gap in `seq` means that events were dropped."""

    v: int
    seq: int
    at_s: float
    kind: str
    fields: dict[str, str | int | float | None]


class _Head(msgspec.Struct):
    v: int
    id: int = 0


_head = msgspec.json.Decoder(_Head)
_requests = msgspec.json.Decoder(OpsRequest)
_replies = msgspec.json.Decoder(OpsReply)
_state_events = msgspec.json.Decoder(StateEvent)
_encoder = msgspec.json.Encoder()


class RequestRefused(Exception):
    """A frame that is no request: what to answer, and to which id."""

    def __init__(self, error: SwapdError, request: int) -> None:
        self.error = error
        self.request = request
        super().__init__(error.code)


def encode_request(request: int, body: OpsCommand) -> bytes:
    """Raises `frame_too_large` for a request that the service would refuse."""
    frame = _encoder.encode(OpsRequest(OPS_VERSION, request, body))
    if len(frame) > MAX_REQUEST_BYTES:
        raise SwapdError(Code.FRAME_TOO_LARGE, f"{len(frame)} of {MAX_REQUEST_BYTES} bytes")
    return frame


def decode_request(frame: bytes) -> OpsRequest:
    """Raises `RequestRefused` with `frame_too_large`, `frame_malformed` or `version_unsupported`.

    The version is looked at before the rest, so that a newer client learns what is wrong.
    """
    if len(frame) > MAX_REQUEST_BYTES:
        error = SwapdError(Code.FRAME_TOO_LARGE, f"{len(frame)} of {MAX_REQUEST_BYTES} bytes")
        raise RequestRefused(error, 0)
    request = 0
    try:
        head = _head.decode(frame)
        request = head.id
        if head.v != OPS_VERSION:
            detail = f"{head.v}, this side speaks {OPS_VERSION}"
            raise RequestRefused(SwapdError(Code.VERSION_UNSUPPORTED, detail), request)
        return _requests.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        # msgspec's text can quote what was sent; its type says enough.
        raise RequestRefused(SwapdError(Code.FRAME_MALFORMED, type(error).__name__), request) from None


def encode_reply(request: int, body: OpsAnswer) -> bytes:
    """Encode an answer; one that is too large becomes a refusal that fits."""
    frame = _encoder.encode(OpsReply(OPS_VERSION, request, body))
    if len(frame) > MAX_ANSWER_BYTES:
        return encode_reply(
            request, refusal(SwapdError(Code.FRAME_TOO_LARGE, f"answer of {len(frame)} bytes"))
        )
    return frame


def decode_reply(frame: bytes) -> OpsReply:
    """Raises `frame_malformed`."""
    try:
        return _replies.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise SwapdError(Code.FRAME_MALFORMED, type(error).__name__) from None


def encode_state_event(event: StateEvent) -> bytes:
    return _encoder.encode(event)


def decode_state_event(frame: bytes) -> StateEvent:
    """Raises `frame_malformed`."""
    try:
        return _state_events.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise SwapdError(Code.FRAME_MALFORMED, type(error).__name__) from None


def refusal(error: SwapdError) -> Error:
    return Error(error.code, error.sentence, error.retryable, error.detail, error.retry_after_s)
