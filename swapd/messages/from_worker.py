"""Worker → coordinator: answers carry the request's id, the rest carries request id 0."""

from __future__ import annotations

from typing import Literal

import msgspec

from swapd.messages.generation import Manifest

Finish = Literal["eos", "length", "stop_token", "engine_failed"]
Phase = Literal["waiting", "running", "held", "frozen", "prepared", "reserved", "finished", "parked"]
"""parked: in the service's own memory, not on a worker.
waiting: not yet given to the engine (no credit so far). held: window full. finished: tokens unaccepted."""


class EngineInfo(msgspec.Struct, frozen=True):
    """What the coordinator must know of an engine. Sizes in tokens, blocks and bytes."""

    engine: str
    engine_version: str
    model: str
    fingerprint: str
    block_tokens: int
    block_bytes: int
    usable_blocks: int
    max_model_len: int
    max_num_seqs: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The JSON ready line (H101) and the answer to `Hello`."""

    worker: str
    incarnation: str
    pid: int
    control: str
    arena_socket: str
    info: EngineInfo
    window: int
    versions: dict[str, str]


class WorkerStats(msgspec.Struct, frozen=True):
    """Counted by the worker itself; `step` grows while the engine thread lives and has work."""

    step: int
    step_ms_median: float
    free_blocks: int
    running: int
    held: int
    frozen: int
    reserved: int
    sessions: int
    unaccepted: int
    threads: int
    fds: int
    rss_bytes: int
    preemptions: int
    fenced: int
    recomputed_tokens: int
    """Prompt and output positions computed by prefill for sessions that came with outputs."""
    swept: int = 0
    """Imports that nobody completed, freed by the sweep."""
    tasks: int = 0
    """Trio tasks of the process that have not ended."""
    taken_at: float = 0.0
    """When the engine thread counted, on the monotonic clock of its host: older news is not about now."""


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Every second, with what `swapd status` shows."""

    stats: WorkerStats


class TokenRun(msgspec.Struct, frozen=True, array_like=True):
    """Tokens `first_pos`… of one session; positions of outputs count from 1 (H19).

    `recomputed` comes with the first token of a session that was rebuilt: positions below N - 1 that were
    computed for it, so neither taken up from a move nor found in the prefix cache (H209).
    """

    session: str
    epoch: int
    first_pos: int
    ids: tuple[int, ...]
    finish: Finish | None = None
    recomputed: int | None = None


class Tokens(msgspec.Struct, frozen=True, tag="tokens"):
    """All tokens of one engine step (H38)."""

    step: int
    runs: tuple[TokenRun, ...]


class Started(msgspec.Struct, frozen=True, tag="started"):
    """`kept`: positions whose KV was taken up from the move that `Start.salvage` named."""

    session: str
    epoch: int
    kept: int = 0


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Any request can be answered so; `code` is a `swapd.errors.Code`."""

    code: str
    detail: str = ""


class Reserved(msgspec.Struct, frozen=True, tag="reserved"):
    move: str
    blocks: int


class Exported(msgspec.Struct, frozen=True, tag="exported"):
    """Blocks [from_block, frontier) are in the lease; full ones that appeared since are not."""

    move: str
    manifest: Manifest
    frontier: int
    copy_ms: float


class Imported(msgspec.Struct, frozen=True, tag="imported"):
    move: str
    frontier: int
    copy_ms: float


class Quiesced(msgspec.Struct, frozen=True, tag="quiesced"):
    batch: str


class FrozenItem(msgspec.Struct, frozen=True):
    """`position`: output tokens generated. `computed`: KV positions held, prompt + position - 1 (H81).

    A frozen session without a manifest could not be exported, for the reason `code`.
    """

    move: str
    status: Literal["frozen", "finished", "not_ready", "unknown"]
    position: int = 0
    computed: int = 0
    manifest: Manifest | None = None
    code: str | None = None


class Frozen(msgspec.Struct, frozen=True, tag="frozen"):
    """`boundary_ms`: wait for the step boundary; `export_ms`: copying the tails."""

    batch: str
    items: tuple[FrozenItem, ...]
    boundary_ms: float
    export_ms: float


class PreparedItem(msgspec.Struct, frozen=True):
    move: str
    ok: bool
    code: str | None = None


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    batch: str
    items: tuple[PreparedItem, ...]
    import_ms: float


class Activated(msgspec.Struct, frozen=True, tag="activated"):
    """Sessions of `Activate` that this worker did not hold are in `unknown`."""

    unknown: tuple[str, ...] = ()


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The request has had its effect, now or earlier.

    `recomputed`: positions computed again for a session that was being rebuilt and is cancelled before its
    first token, so that no `TokenRun` ever says it (H209).
    """

    recomputed: int = 0


class InventoryItem(msgspec.Struct, frozen=True):
    """`position` output tokens exist here; `unaccepted` are those after the last credit."""

    session: str
    epoch: int
    phase: Phase
    position: int
    unaccepted: tuple[int, ...]
    move: str | None = None
    finish: Finish | None = None


class Inventory(msgspec.Struct, frozen=True, tag="inventory"):
    """Every session that is here. `free_blocks`: the engine's, between the same two steps."""

    items: tuple[InventoryItem, ...]
    free_blocks: int | None = None
    """None: not told, by the park or an earlier version."""


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """One engine step: when it began (monotonic seconds) and (session, tokens computed) in batch order."""

    at_s: float
    took_s: float
    batch: tuple[tuple[str, int], ...]


class ScheduleLog(msgspec.Struct, frozen=True, tag="schedule_log"):
    steps: tuple[StepRecord, ...]


class Alarm(msgspec.Struct, frozen=True, tag="alarm"):
    """Something that must not happen did: `preempted`, `engine_failed`, `copy_failed`."""

    code: str
    detail: str = ""


FromWorker = (
    Ready
    | Heartbeat
    | Tokens
    | Started
    | Refused
    | Reserved
    | Exported
    | Imported
    | Quiesced
    | Frozen
    | Prepared
    | Activated
    | Done
    | Inventory
    | ScheduleLog
    | Alarm
)
