"""What clients of the service send and get, field by field: HTTP, the ops socket and the console share these.

Views carry no prompt and no text except where a field says so.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from swapd.device_views import DeviceView
from swapd.messages.generation import Sampling

SessionState = Literal[
    "created", "running", "migrating", "recovering", "parked", "completed", "failed", "cancelled"
]
DrainState = Literal["running", "drained", "blocked", "cancelled"]
Outcome = Literal[
    "completed_native",
    "completed_replay",
    "completed_redispatch",
    "rehomed_source",
    "parked",
    "aborted_source_resumed",
    "cancelled",
    "blocked",
    "failed",
]
OnDisconnect = Literal["cancel", "pause", "continue"]
DrainOrigin = Literal["operator", "owner_pressure", "take_back_now", "shutdown"]
DRAINS_SHOWN = 100
"""So many at a time, at most; older ones are asked for by the last one seen."""
DrainMode = Literal["native", "park", "replay", "cold_replay"]
"""native: the KV moves. park: the same, and what no worker has room for goes to host memory (B3).
replay: rebuilt on the target from the transcript, for sessions that permit it;
cold_replay: the same without the target's prefix cache (to measure what a cold target would cost)."""


Role = Literal["owner", "viewer"]
"""What somebody who is signed in to the console may: everything, or look."""


class Caller(msgspec.Struct, frozen=True):
    """Who asks. An operator sees workers, drains and states, not other namespaces' content (A27).

    A viewer sees the same and changes nothing.
    """

    namespace: str
    is_operator: bool = False
    is_viewer: bool = False


class SignedIn(msgspec.Struct, frozen=True):
    """A browser that is signed in to the console. `csrf` is what its forms must carry."""

    role: Role
    caller: Caller
    csrf: str


class NewSignIn(msgspec.Struct, frozen=True):
    """A sign-in that has just begun: `cookie` is its secret, which the browser alone keeps."""

    cookie: str
    role: Role
    lasts_s: float


class ConsoleLink(msgspec.Struct, frozen=True):
    """An address that lets one person in once. The code is its fragment; it is a secret."""

    url: str
    role: Role
    valid_s: float


class NewSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/sessions`. `prompt` is text or token ids; sampling fields stand beside it."""

    prompt: str | list[int]
    max_new_tokens: int
    model: str | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    seed: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    allow_replay_fallback: bool = False
    on_disconnect: OnDisconnect | None = None
    max_lifetime_s: float | None = None

    def sampling(self) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            min_tokens=self.min_tokens,
            seed=self.seed,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
        )


class SessionView(msgspec.Struct, frozen=True):
    """`GET /v1/sessions/{id}` (H10). `cursor` is the id of the last durable event."""

    id: str
    state: SessionState
    model: str
    cursor: int
    prompt_tokens: int
    accepted: int
    max_new_tokens: int
    worker: str | None
    epoch: int
    created_at: float
    finished_at: float | None = None
    finish_reason: str | None = None
    code: str | None = None
    waits: str | None = None
    """Why it makes no token now, where that is known: nobody reads it, or no worker has room for it."""
    without_kv: bool = False
    """Parked, and its KV is computed again once a worker has room for it: there was none in the park."""


class SessionOutcome(msgspec.Struct, frozen=True):
    """What a drain did with one session (H54). Times in ms, sizes in bytes."""

    session: str
    outcome: Outcome | None
    reason: str | None
    phase: str
    target: str | None = None
    frozen_ms: float | None = None
    precopied_bytes: int = 0
    frozen_bytes: int = 0
    rounds: int = 0
    reuse: float | None = None
    recomputed_tokens: int | None = 0
    """Positions below N - 1 that were computed again. None: rebuilt, but its first token is still to come."""
    copy_started_at: float | None = None
    copy_ended_at: float | None = None
    timings_ms: dict[str, float] = {}
    """Where the pause went, in ms after the freeze command: `boundary` (the source's last step ended),
    `frozen`, `prepared`, `committed`, `activated`, `first_token`; `export` and `import` are the copies."""
    detail: str | None = None
    """Names and numbers of the reason, for people."""


class Asker(msgspec.Struct, frozen=True):
    """Who wants the worker of a drain empty (B16). `reason` is what they said. Seconds since 1970."""

    origin: DrainOrigin
    at: float
    reason: str | None = None
    until: float | None = None
    """When they asked no more, while the drain went on for others."""


class DrainView(msgspec.Struct, frozen=True):
    """`GET /v1/drains/{id}`: one entry a session that was on the worker.

    `origin` is the strongest of those who ask (`askers`, in their order); `reason` is what was said first.
    """

    id: str
    worker: str
    state: DrainState
    origin: DrainOrigin
    created_at: float
    deadline_s: float
    finished_at: float | None
    sessions: tuple[SessionOutcome, ...]
    mode: DrainMode = "native"
    reason: str | None = None
    askers: tuple[Asker, ...] = ()
    time_to_clear_s: float | None = None
    """From the drain's begin until nothing of its sessions was left on the device (B17); None: not measured
    yet, or it could not be: the drain was cancelled, or the memory did not come back in time."""


Leave = Literal["move", "park", "replay", "anew"]
"""How a session leaves a worker: with its KV to another one, or to host memory; or rebuilt elsewhere.
`anew` is for one of which nothing has come yet: another worker begins it from its prompt (B18)."""
Would = Literal["move", "park", "replay", "anew", "wait", "stay", "end"]
"""What a drain would do with a session.

move, park, replay, anew  at once
wait                      not at once: `then`, once what `reason` names is over
stay                      it goes on where it is, and the drain stays open until something changes, or it ends
end                       its last tokens are on their way
"""


class Foreseen(msgspec.Struct, frozen=True):
    """One session of a pre-flight. `kv_bytes` is what a move of it would copy."""

    session: str
    state: SessionState
    accepted: int
    max_new_tokens: int
    kv_blocks: int
    kv_bytes: int
    would: Would
    then: Leave | None = None
    target: str | None = None
    """The worker that it would go to; None for the park."""
    reason: str | None = None
    detail: str | None = None
    """Names and numbers of the reason, for people."""


class PreflightView(msgspec.Struct, frozen=True):
    """What a drain of `worker` would do if it began now. Nothing is reserved for it."""

    worker: str
    mode: DrainMode
    sessions: tuple[Foreseen, ...]
    copy_bytes: int
    """What would be copied between workers, and to the park."""
    copy_s: float | None = None
    """For how long, at the pace of the latest drains; None where none has been measured."""
    longest_pause_ms: float | None = None
    """Of any client of those drains."""
    drains_measured: int = 0


class QuarantineView(msgspec.Struct, frozen=True):
    """Why a worker is not trusted with new work (H79): `code` is what went wrong there, `since` is when."""

    code: str
    since: float


class WorkerView(msgspec.Struct, frozen=True):
    """`GET /v1/workers`. Blocks are KV blocks; `committed_blocks` is the coordinator's ledger (H46)."""

    id: str
    state: Literal["starting", "ready", "suspect", "dead", "stopped"]
    admitting: bool
    reason: str | None
    incarnation: str | None
    engine: str | None
    model: str | None
    device: str
    pid: int | None
    sessions: int
    usable_blocks: int
    committed_blocks: int
    free_blocks: int | None
    drain: str | None
    stats: dict[str, float]
    quarantine: QuarantineView | None = None


Switch = Literal["admission", "migration"]
"""What an operator can turn off for the whole service (H163, A13)."""


class TurnSwitch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `PUT /v1/switches/{switch}`."""

    on: bool


class SwitchesView(msgspec.Struct, frozen=True):
    """`GET /v1/switches`. `migration` is what holds: the operator's switch and `migration_configured`.

    `…_off_since`: when the operator turned it off, seconds since 1970; None while the switch is on.
    """

    admission: bool = True
    migration: bool = True
    migration_configured: bool = True
    admission_off_since: float | None = None
    migration_off_since: float | None = None


ReconciledAs = Literal[
    "resumed",
    "parked",
    "replayed",
    "failed",
    "aborted",
    "committed_forward",
    "rehomed",
    "ended",
    "discarded",
]
"""What became of a session when the service started (H152).

resumed            its worker still had it, and goes on
parked             it is in the park, on disk, and waits there for room on a worker (B3)
aborted            its move had no commit: it goes on where it was
committed_forward  its move had a commit: it goes on at the target
rehomed            its move had a commit, the target was lost: it went back to the source (B22)
replayed           rebuilt from its transcript on another worker
failed             nobody had it, and its client did not permit replay
ended              it ended by itself, or its client ended it, before it was looked at
discarded          a worker held it, and the store does not know it or has its end
"""
ReconciledBecause = Literal[
    "owner_has_it",
    "move_not_committed",
    "move_committed",
    "target_lost",
    "worker_lost",
    "worker_absent",
    "session_lost",
    "session_unknown",
    "session_over",
]


class Reconciled(msgspec.Struct, frozen=True):
    """One session of the report. `worker` is its owner afterwards; of a discarded one, who held it."""

    session: str
    result: ReconciledAs
    reason: ReconciledBecause
    worker: str | None
    epoch: int
    accepted: int
    recomputed_tokens: int | None = 0
    """None: rebuilt, but its first token is still to come, and what it costs not known before."""
    code: str | None = None
    """With which it ended."""


class ReconciliationView(msgspec.Struct, frozen=True):
    """`GET /v1/reconciliation`: what this start found of the last run (H152). Times: seconds since 1970."""

    state: Literal["waiting", "deciding", "done"]
    """waiting: for workers to be found; deciding: what becomes of each session."""
    began_at: float
    finished_at: float | None
    workers: dict[str, Literal["found", "absent", "awaited"]]
    """found: attached with what it held; absent: no process of it was there; awaited: not heard of (yet)."""
    found_at: float | None
    """When the last worker had answered, or the wait for it was over."""
    found_to_ready_s: float | None
    """From then to the last decision."""
    counts: dict[str, int]
    sessions: tuple[Reconciled, ...]
    undecided: int
    left_out: int = 0
    """Sessions that are counted and not listed: the list is bounded."""


PartWord = Literal["ok", "waiting", "off", "trouble"]


class PartView(msgspec.Struct, frozen=True):
    """One part of the service. ok; waiting: ends by itself; off: somebody chose so; trouble: look at it."""

    name: str
    word: PartWord
    detail: str


class LogLine(msgspec.Struct, frozen=True):
    """A line of the service's log: `fields` is the rest of it as `name=value`."""

    time: str
    level: str
    logger: str
    message: str
    fields: str


class DebugView(msgspec.Struct, frozen=True):
    """Whether every reading's decision is logged (R129). `until` is seconds since 1970."""

    is_open: bool
    until: float | None
    by_configuration: bool


class DebugFor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `PUT /v1/diagnostics/debug`: for how long from now; 0 ends it."""

    for_s: float


class DiagnosticsView(msgspec.Struct, frozen=True):
    """`GET /v1/diagnostics`: how the service is. Sizes in bytes, times in seconds since 1970."""

    started_at: float
    pid: int
    versions: dict[str, str]
    parts: tuple[PartView, ...]
    runqueue_wait_ratio: float | None
    """Of the time that the service wants a CPU, the share that it waits for one (B8)."""
    commit_ms_p50: float
    commit_ms_p95: float
    arena_bytes: dict[str, int]
    park_bytes: dict[str, int]
    debug: DebugView
    log: tuple[LogLine, ...]
    """The latest lines, oldest first."""


class StatusView(msgspec.Struct, frozen=True):
    """`GET /status`: what an owner or operator asks first."""

    version: str
    ready: bool
    reasons: tuple[str, ...]
    consent: bool
    devices: tuple[DeviceView, ...]
    workers: tuple[WorkerView, ...]
    sessions: dict[str, int]
    drains: tuple[DrainView, ...]
    switches: SwitchesView = SwitchesView()


class Readiness(msgspec.Struct, frozen=True):
    """`/readyz`: 200 when `ready`, else 503 with reasons."""

    ready: bool
    reasons: tuple[str, ...]
