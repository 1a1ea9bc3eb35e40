"""The configuration: one TOML file and nothing else (H117). Pure: text in, checked structs out.

Keys are those of H118 where they exist there; defaults are what was measured (decision 9).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from swapd.certify.certificate import Profile


class WorkerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[workers]]` entry. `spawn = false` waits for a worker started elsewhere in `socket_dir`."""

    worker_id: str
    engine: Literal["vllm", "sim"] = "vllm"
    device: str = "cpu"
    """The `[[devices]]` entry that it runs on; where there are none, only a label."""
    cores: tuple[int, ...] = ()
    """CPU cores that the engine thread is bound to; empty: not bound."""
    spawn: bool = True
    python: str | None = None
    """Another interpreter for this worker (H114); default: the coordinator's."""
    incarnation: str | None = None
    """Optional pin (decision 7)."""


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[models]]` entry; this version serves exactly one. `path` is a checkpoint folder."""

    alias: str
    path: str
    max_model_len: int = 8192
    block_tokens: int | None = None
    """Default: 32 on a CPU, the engine's own on a GPU."""
    kv_cache_bytes: int = 1 << 30
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 64
    gpu_memory_utilization: float = 0.88
    prefix_caching: bool = True
    weights_digest: str | None = None
    tokenizer_digest: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Default: those of the checkpoint."""


class SimConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `sim` engine: only for tests and load, and only where `allow_sim_engine` says so."""

    step_ms: float = 1.0
    block_tokens: int = 16
    block_bytes: int = 4096
    blocks: int = 4096
    max_model_len: int = 16384
    vocab_size: int = 1024
    max_num_seqs: int = 256


class CredentialConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bearer token, plain or as its SHA-256 (B34), and what it may do."""

    namespace: str
    token: str | None = None
    token_sha256: str | None = None
    is_operator: bool = False


class TimerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Deadlines of the protocol, in seconds (head of the H rules)."""

    rpc_s: float = 2.0
    reserve_s: float = 5.0
    copy_s: float = 30.0
    freeze_s: float = 1.0
    prepare_s: float = 10.0
    activate_s: float = 2.0
    decide_s: float = 5.0
    heartbeat_s: float = 1.0
    suspect_s: float = 3.0
    dead_s: float = 10.0
    import_orphan_s: float = 10.0
    sweep_s: float = 5.0
    worker_start_s: float = 300.0
    orphan_grace_s: float = 600.0


class LimitConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client may ask for (H164-H176)."""

    max_body_bytes: int = 1 << 20
    max_new_tokens: int | None = None
    """Default: up to the context."""
    max_lifetime_s: float = 3600.0
    disconnect_grace_s: float = 30.0
    retention_s: float = 3600.0
    max_stop_strings: int = 8
    max_stop_length: int = 256
    max_connections: int = 512


class DeviceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[devices]]` entry: what an owner lends. Without any, the workers' devices belong to the service.

    `selector` is for `nvml`: a UUID, or an index such as "0", whose learning is not kept (R91). `cores` is
    for `cpu`.
    """

    name: str
    kind: Literal["nvml", "cpu"] = "nvml"
    selector: str | None = None
    cores: tuple[int, ...] = ()


class PressureConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[owner.gpu_pressure]`: how the owner's need is learned; for devices of every kind (R1-R130)."""

    enabled: bool = True
    """False: nothing is measured; consent, attendance, quiet hours and "take back now" still hold."""
    mode: Literal["calibrated", "fixed", "adaptive"] = "calibrated"
    """`adaptive` is retired and runs as calibrated (R78)."""
    threshold_pct: float = 0.0
    learn_quantile: float = 0.75
    learn_half_life_h: float = 72.0
    margin_pct: float = 20.0
    floor_pct: float = 25.0
    cap_pct: float = 40.0
    raise_pct_per_h: float = 1.0
    warmup_samples: int = 60
    poll_ms: int = 5000
    sustain_s: float = 10.0
    release_band_pct: float = 5.0
    release_s: float = 30.0
    state_file: str | None = None
    """Default: `swapd-pressure.json` beside the configuration (R81)."""
    baseline_quantile: float | None = None
    """Retired; read and ignored with a warning (R122)."""
    baseline_window_s: float | None = None
    """Retired; read and ignored with a warning (R122)."""


class OwnerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[owner]`: what the owner of the `[[devices]]` allows (D33-D40)."""

    consent: bool = False
    """Nothing is lent before the owner has said so (D40)."""
    presence: Literal["auto", "headless"] = "auto"
    lend_when: Literal["always", "locked"] = "always"
    release: Literal["stop", "keep"] = "stop"
    """stop: the workers of a device that is given back end, so that its memory returns."""
    resume_after_s: float = 60.0
    """How long the owner's need must be gone before the device is lent again."""
    when_full: Literal["finish", "cancel", "park"] = "finish"
    """What becomes of sessions that can go nowhere: they may finish for `finish_s`, end at once, or wait in
    host memory for a device; one that the memory has no room for may finish."""
    finish_s: float = 300.0
    quiet_hours: tuple[str, ...] = ()
    """Times at which nothing is lent, in local time: "22:00-07:00", "Mon-Fri 09:00-17:30"."""
    quiet_lead_s: float = 60.0
    """How long before quiet hours the device begins to be given back."""
    min_free_mib: int = 0
    """Below this much free device memory, with others holding some, the owner needs it; 0: off (D37)."""
    ignore: tuple[str, ...] = ()
    """Process names that are no owner's work: their share is subtracted (D23)."""
    always: tuple[str, ...] = ()
    """Process names whose presence alone means that the owner needs the device (D37)."""
    borrower_ports: tuple[int, ...] = ()
    """Whoever listens there is a lender as well (D24)."""
    gamemode: bool = True
    """Whether a client of GameMode on the session bus means that the owner plays."""
    debug_decisions: bool = False
    """Log every reading's decision (R129)."""
    gpu_pressure: PressureConfig = PressureConfig()


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`swapd.toml`. Relative paths are relative to the file's folder."""

    database_path: str
    socket_dir: str
    workers: tuple[WorkerConfig, ...]
    models: tuple[ModelConfig, ...]
    credentials: tuple[CredentialConfig, ...]
    host: str = "127.0.0.1"
    port: int = 8080
    transfer_arena: bool = True
    arena_bytes: int = 512 << 20
    park_bytes: int = 0
    """Host memory for the KV of parked sessions, reserved at start (B3); 0: none is parked."""
    park_dir: str | None = None
    """A folder of our own that parked sessions go to when the memory is full, and at a clean stop."""
    park_dir_bytes: int = 0
    """How much of them it may hold; 0: what its disk has, but for a rest that is left free."""
    max_active_sessions: int | None = None
    max_concurrent_migrations: int | None = None
    """Default: as many as the arena has room for (decision 19)."""
    migration_enabled: bool = True
    certificate_path: str | None = None
    """The evidence for native moves; without it and `self_certify` they are refused (H124)."""
    certificate_id: str | None = None
    """The id that the file must have; none: whichever it has."""
    evidence_profile: Profile = "cuda_release"
    """Where its evidence must have been made."""
    self_certify: bool = False
    allow_mock_certificates: bool = False
    """Never true: evidence of the sim proves nothing of an engine that serves (H120)."""
    allow_sim_engine: bool = False
    allow_failpoints: bool = False
    """Whoever may write in `socket_dir` may hold, end or fail every step of a move (A36). For tests only."""
    devices: tuple[DeviceConfig, ...] = ()
    owner: OwnerConfig = OwnerConfig()
    window_tokens: int = 8
    precopy_duty: float = 0.25
    """Share of time the copy thread may be busy during pre-copy, so that neighbours keep their pace (B30)."""
    drain_deadline_s: float = 600.0
    stop_workers: Literal["idle", "always", "never"] = "idle"
    """Which spawned workers end with the coordinator; by default those that hold no session (H230)."""
    worker_restarts: int = 20
    """Starts in a row that did not last after which a worker is not started any more (B32)."""
    record_schedule: bool = False
    """Workers remember each step's batch for the bench's control run; memory grows with it."""
    timers: TimerConfig = TimerConfig()
    limits: LimitConfig = LimitConfig()
    sim: SimConfig = SimConfig()
