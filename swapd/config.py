"""The configuration: one TOML file and nothing else (H117). Pure: text in, checked structs out.

Keys are those of H118 where they exist there; defaults are what was measured (decision 9).
"""

from __future__ import annotations

from typing import Literal

import msgspec


class WorkerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[workers]]` entry. `spawn = false` waits for a worker started elsewhere in `socket_dir`."""

    worker_id: str
    engine: Literal["vllm", "sim"] = "vllm"
    device: str = "cpu"
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
    max_active_sessions: int | None = None
    max_concurrent_migrations: int | None = None
    """Default: as many as the arena has room for (decision 19)."""
    migration_enabled: bool = True
    self_certify: bool = False
    allow_sim_engine: bool = False
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
