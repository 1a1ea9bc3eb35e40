"""Operator's tools → coordinator: what may be asked over the ops socket; each command names its answer."""

from __future__ import annotations

from typing import Final

import msgspec

from swapd.device_views import TakeBack
from swapd.views import DrainMode, NewSession, Role, Switch

MAX_EVENTS: Final = 512
MAX_WAIT_S: Final = 20.0


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


class Plans(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="plans"):
    """Which moves are allowed, and on what evidence (H132). Answer: `PlansAnswer`."""


class Revoke(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="revoke"):
    """Deny every move on a certificate, for good (H137). Answer: `RevocationAnswer`."""

    certificate: str


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
    | Plans
    | Revoke
    | ConsoleLink
    | Metrics
    | Schedule
)
