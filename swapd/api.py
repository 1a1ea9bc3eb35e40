"""The service as its front doors see it: HTTP, WebSocket, the ops socket and the console call only this.

`swapd.serve` builds the one implementation. What it takes and gives is in `swapd.views`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

from swapd.certify.views import PlansView, RevocationView
from swapd.device_views import (
    ActivityView,
    DeviceEvent,
    DeviceView,
    LearningView,
    SamplePoint,
    TakeBack,
    TrendPoint,
)
from swapd.messages.from_worker import ScheduleLog
from swapd.settings.views import SettingsChange, SettingsPreview, SettingsView
from swapd.views import (
    DRAINS_SHOWN,
    Caller,
    ConsoleLink,
    DebugView,
    DiagnosticsView,
    DrainMode,
    DrainOrigin,
    DrainView,
    NewSession,
    NewSignIn,
    PreflightView,
    Readiness,
    ReconciliationView,
    Role,
    SessionView,
    SignedIn,
    StatusView,
    Switch,
    SwitchesView,
    WorkerView,
)


class Event(NamedTuple):
    """One durable event: `id` is the cursor after it, `data` its JSON, encoded once for all readers.

    A `notice` is not durable: no cursor counts it, `id` is the cursor at which it came (B6).
    """

    id: int
    name: Literal["created", "token", "completed", "failed", "cancelled", "notice"]
    data: bytes


class Archive(NamedTuple):
    """A finished archive of diagnostics. Whoever gets it closes `file`; its name is for people."""

    file: BinaryIO
    size_bytes: int
    name: str


class Subscription(Protocol):
    """A reader of one session. It sees each event after its cursor once, in order, then the end."""

    @property
    def cursor(self) -> int:
        """The id of the last event handed out, or where reading began."""

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        """Batches of events; ends after the terminal event, or when the service stops."""


class Door(Protocol):
    """Who is signed in to the console, and how one comes in."""

    def signed_in(self, cookie: str | None) -> SignedIn:
        """Who has this cookie. Raises `unauthenticated`."""

    async def sign_in(self, secret: str, peer: str | None) -> NewSignIn:
        """Let a browser in by a one-time code or a token; durable before it returns.

        `peer` is the address of who asks. Raises `sign_in_refused`, `sign_in_limited`.
        """

    async def sign_out(self, cookie: str | None) -> None:
        """End the sign-in of this cookie, if there is one."""

    async def sign_out_everywhere(self, caller: Caller) -> int:
        """End every sign-in; says how many. Raises `operator_required`."""

    def link(self, caller: Caller, role: Role) -> ConsoleLink:
        """Make a one-time link. Raises `operator_required`."""

    async def new_tokens(self, caller: Caller) -> None:
        """Make both tokens anew and end every sign-in. Raises `operator_required`."""


class Plans(Protocol):
    """Which moves are allowed between workers, and by what evidence."""

    async def view(self, caller: Caller) -> PlansView:
        """Raises `operator_required`."""

    async def revoke(self, caller: Caller, certificate: str) -> RevocationView:
        """Deny every move on a certificate, at once and for good; durable before it returns (H137).

        Revoked already: unchanged. Raises `operator_required`, `certificate_unknown`, `store_failed`.
        """


class Service(Protocol):
    """Everything swapd does for its callers. Raises `SwapdError` with the code of each refusal.

    Viewers may call what only looks; what changes something, and what shows text, refuses them.
    """

    @property
    def door(self) -> Door:
        """Sign-in to the console."""

    @property
    def plans(self) -> Plans:
        """Plans and certificates."""

    def authenticate(self, token: str | None) -> Caller:
        """Raises `unauthenticated`. Constant-time over all configured tokens."""

    async def create_session(self, caller: Caller, request: NewSession) -> SessionView:
        """Durable before it returns (H1). Raises the codes under "requests" and "admission"."""

    async def session(self, caller: Caller, session: str) -> SessionView:
        """Raises `session_unknown`, also for another namespace's (H9)."""

    async def cancel_session(self, caller: Caller, session: str) -> SessionView:
        """End it as `cancelled`; a finished one is left as it is (H3)."""

    def subscribe(
        self, caller: Caller, session: str, after: int | None, *, notices: bool = False
    ) -> AbstractAsyncContextManager[Subscription]:
        """Events strictly after `after` (None: from `created`). Raises `session_unknown`, `cursor_ahead`.

        While it is open the session counts as having a reader (H32). `notices` also tells when it is parked
        and resumed (B3, B6).
        """

    async def workers(self, caller: Caller) -> Sequence[WorkerView]:
        """Raises `operator_required`."""

    async def sessions(self, caller: Caller) -> Sequence[SessionView]:
        """Nonterminal sessions: the caller's namespace, or all for an operator."""

    async def preflight(self, caller: Caller, worker: str, mode: DrainMode = "native") -> PreflightView:
        """What `start_drain` would do with each session now; nothing is reserved, and it raises the same."""

    async def start_drain(
        self,
        caller: Caller,
        worker: str,
        deadline_s: float | None = None,
        origin: DrainOrigin = "operator",
        mode: DrainMode = "native",
        reason: str | None = None,
    ) -> DrainView:
        """Close the worker, then move what runs on it (H50-H65). Raises `worker_unknown`, `drain_exists`."""

    async def start_drains(
        self,
        caller: Caller,
        workers: Sequence[str],
        deadline_s: float | None = None,
        origin: DrainOrigin = "operator",
        mode: DrainMode = "native",
        reason: str | None = None,
    ) -> Sequence[DrainView]:
        """Close all of these workers, then move what runs on them, to others (B16): one drain for each.

        All or none begins. Raises what `start_drain` raises.
        """

    async def drain(self, caller: Caller, drain: str) -> DrainView:
        """Raises `drain_unknown`."""

    async def drains(
        self, caller: Caller, before: str | None = None, limit: int = DRAINS_SHOWN
    ) -> Sequence[DrainView]:
        """Newest first, at most `DRAINS_SHOWN`; with `before`, those that began before that drain."""

    async def cancel_drain(self, caller: Caller, drain: str) -> DrainView:
        """Reopen the worker; moves in flight come to a clean end first (H61)."""

    async def clear_quarantine(self, caller: Caller, worker: str) -> WorkerView:
        """Trust a quarantined worker again; durable before it returns. Not quarantined: unchanged (H79).

        Raises `operator_required`, `worker_unknown`, `reservations_open` while failed moves hold room on
        it, and `timeout` where it does not say what it holds.
        """

    async def switches(self, caller: Caller) -> SwitchesView:
        """Raises `operator_required`."""

    async def turn_switch(self, caller: Caller, switch: Switch, *, on: bool) -> SwitchesView:
        """Stop or reopen admission, or moves, for the whole service (H163, A13); durable before it returns.

        Repeats change nothing. Raises `operator_required`, `store_failed`.
        """

    async def reconciliation(self, caller: Caller) -> ReconciliationView:
        """What this start found of the last run, also while it still decides. Raises `operator_required`."""

    async def status(self, caller: Caller) -> StatusView:
        """Raises `operator_required`."""

    async def devices(self, caller: Caller) -> Sequence[DeviceView]:
        """Raises `operator_required`."""

    async def device(self, caller: Caller, device: str) -> DeviceView:
        """Raises `operator_required`, `device_unknown`."""

    async def take_back(self, caller: Caller, device: str, request: TakeBack) -> DeviceView:
        """Close the device at once, then give it to its owner; durable before it returns. Repeats replace.

        Raises `operator_required`, `device_unknown`, `invalid_request`.
        """

    async def lend(self, caller: Caller, device: str) -> DeviceView:
        """End a take-back; whatever else holds against lending still does. None in force: unchanged."""

    async def samples(self, caller: Caller, device: str, since: float = 0.0) -> Sequence[SamplePoint]:
        """Readings of the last six hours from `since` (seconds since 1970) on, oldest first."""

    async def trend(self, caller: Caller, device: str, span_s: float, points: int) -> Sequence[TrendPoint]:
        """The last `span_s` seconds (six hours at most) in `points` equal stretches, oldest first.

        The last one is the one that now is in. Raises `operator_required`, `device_unknown`, `disk_error`.
        """

    async def learning(self, caller: Caller, device: str) -> LearningView:
        """The live histograms of a device (R128). Raises `operator_required`, `device_unknown`."""

    async def device_events(self, caller: Caller, device: str) -> Sequence[DeviceEvent]:
        """What happened to a device, newest first, bounded. Raises `disk_error`."""

    async def settings(self, caller: Caller) -> SettingsView:
        """The owner's settings in the file beside those in force. Raises `operator_required`."""

    async def preview_settings(self, caller: Caller, change: SettingsChange) -> SettingsPreview:
        """What a save would do, and what the last six hours would have been; raises as `save_settings`."""

    async def save_settings(self, caller: Caller, change: SettingsChange) -> SettingsView:
        """Write the settings to the configuration file, for the next start (R126).

        Raises `operator_required`, `SettingsRefused` with nothing written (R40), `settings_changed`,
        `settings_not_editable`, `settings_not_written`, `config_invalid` where the file cannot be read.
        """

    async def activity(self, caller: Caller, since: float) -> ActivityView:
        """What was lent, served and moved from `since` (seconds since 1970) on; a few seconds behind.

        Raises `operator_required`, `invalid_request` for what is no time in the past.
        """

    def visit(self, caller: Caller) -> float | None:
        """An owner looks at the console: note it, and tell when the visit before this one ended, if any was.

        A viewer's look is none of the owner's. Raises `operator_required`.
        """

    async def diagnostics(self, caller: Caller) -> DiagnosticsView:
        """How each part of the service is, and its latest log lines. Raises `operator_required`."""

    async def export_diagnostics(self, caller: Caller) -> Archive:
        """All of it as one archive, without anything of a client (R128, B42).

        Raises `operator_required`, `timeout`, `store_failed`.
        """

    async def log_decisions(self, caller: Caller, for_s: float) -> DebugView:
        """Log every reading's decision for that long from now, in this run; 0 ends it (R129).

        Raises `operator_required`, `invalid_request`.
        """

    def metrics(self, caller: Caller) -> bytes:
        """Prometheus text (H177). Raises `operator_required`."""

    async def schedule(self, caller: Caller, worker: str) -> ScheduleLog:
        """Take the oldest recorded steps of a worker; none when none are left (benches only).

        Raises `operator_required`, `worker_unknown`, and `target_lost` where no process answers.
        """

    def readiness(self) -> Readiness:
        """Why the service as a whole can or cannot take work (H45)."""

    def limits(self) -> dict[str, Any]:
        """The effective limits (H176)."""

    @property
    def stopping(self) -> bool:
        """Whether shutdown has begun."""

    async def wait_stopping(self) -> None:
        """Return when shutdown begins, so that streams can end with their cursor intact."""
