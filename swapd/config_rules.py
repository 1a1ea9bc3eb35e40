"""What a configuration may say beyond its types: ranges, names, and how settings go together. Pure.

A rule reports where (a path in the file) and what, never the value of a token.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from swapd.config import (
    Config,
    CredentialConfig,
    LimitConfig,
    ModelConfig,
    OwnerConfig,
    PressureConfig,
    SimConfig,
    TimerConfig,
    WorkerConfig,
)
from swapd.config_lines import Path
from swapd.errors import Code
from swapd.messages.generation import PARK

WORKER_ID: Final = re.compile(r"[a-z0-9-]{1,32}")
RESERVED_IDS: Final = frozenset({"ops", "events", "coordinator", "sampler-nvml", "sampler-cpu", PARK})
"""A worker's files are `<id>.sock`, `<id>.lock`…; these would be the service's own: libzmq steals paths."""
NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
ALIAS: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
SHA256_HEX: Final = re.compile(r"[0-9a-f]{64}")
SHORT_TOKEN_CHARS: Final = 16
"""Below this a warning; a token that can be guessed is no token."""

KIB: Final = 1 << 10
MIB: Final = 1 << 20
TIB: Final = 1 << 40
HOUR_S: Final = 3_600.0
DAY_S: Final = 86_400.0
PERCENT: Final = (0.0, 100.0)
TIMER_RANGE_S: Final = (0.001, DAY_S)


class Problem(NamedTuple):
    """One refusal: where in the file, what is wrong, and its code."""

    path: Path
    text: str
    code: Code = Code.CONFIG_INVALID


RANGES: Final[dict[type[msgspec.Struct], dict[str, tuple[float, float]]]] = {
    Config: {
        "port": (0, 65535),
        "arena_bytes": (1 << 20, TIB),
        "park_bytes": (0, TIB),
        "park_dir_bytes": (0, 64 * TIB),
        "max_active_sessions": (1, 65536),
        "max_concurrent_migrations": (1, 1024),
        "window_tokens": (1, 64),
        "precopy_duty": (0.01, 1.0),
        "drain_deadline_s": (0.001, DAY_S),
        "worker_restarts": (0, 1 << 20),
    },
    ModelConfig: {
        "max_model_len": (2, 1 << 24),
        "block_tokens": (1, 1024),
        "kv_cache_bytes": (1 << 20, TIB),
        "max_num_seqs": (1, 4096),
        "max_num_batched_tokens": (1, 1 << 20),
        "gpu_memory_utilization": (0.01, 1.0),
    },
    SimConfig: {
        "step_ms": (0.0, 60_000.0),
        "block_tokens": (1, 1024),
        "block_bytes": (16, 1 << 30),
        "blocks": (1, 1 << 24),
        "max_model_len": (2, 1 << 24),
        "vocab_size": (2, 1 << 24),
        "max_num_seqs": (1, 65536),
    },
    TimerConfig: dict.fromkeys(TimerConfig.__struct_fields__, TIMER_RANGE_S),
    LimitConfig: {
        "max_body_bytes": (KIB, 1 << 26),
        "max_new_tokens": (1, 1 << 24),
        "max_lifetime_s": (0.001, 30 * DAY_S),
        "disconnect_grace_s": (0.001, 30 * DAY_S),
        "retention_s": (0.001, 365 * DAY_S),
        "max_stop_strings": (0, 64),
        "max_stop_length": (1, 4096),
        "max_connections": (1, 65536),
    },
    OwnerConfig: {
        "resume_after_s": (0.0, DAY_S),
        "finish_s": (0.0, DAY_S),
        "quiet_lead_s": (0.0, DAY_S),
        "min_free_mib": (0, 1 << 20),
    },
    PressureConfig: {
        "threshold_pct": PERCENT,
        "learn_quantile": (0.01, 1.0),
        "learn_half_life_h": (0.001, 87_600.0),
        "margin_pct": PERCENT,
        "floor_pct": PERCENT,
        "cap_pct": PERCENT,
        "raise_pct_per_h": (0.0, 1e6),
        "warmup_samples": (1, 1_000_000),
        "poll_ms": (50, 600_000),
        "sustain_s": (0.0, HOUR_S),
        "release_band_pct": PERCENT,
        "release_s": (0.0, HOUR_S),
    },
}
"""Smallest and largest value of each number (H42, H164-H176)."""


def problems(config: Config) -> Iterator[Problem]:
    """Everything that is wrong with a well-typed configuration, in the order of the file's parts."""
    yield from _out_of_range(config, ())
    for name in ("database_path", "socket_dir"):
        if not getattr(config, name):
            yield Problem((name,), f"{name} is empty")
    yield from _parking(config)
    yield from _certificates(config)
    yield from _workers(config)
    yield from _models(config)
    yield from _credentials(config)
    yield from _host(config)
    yield from _failpoints(config)
    yield from _timers(config.timers)


def _out_of_range(struct: msgspec.Struct, path: Path) -> Iterator[Problem]:
    for name, (low, high) in RANGES.get(type(struct), {}).items():
        value = getattr(struct, name)
        # `not <=` also catches nan.
        if value is not None and not low <= value <= high:
            yield Problem((*path, name), f"{name} = {value} is outside {low:g} to {high:g}")
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, msgspec.Struct):
            yield from _out_of_range(value, (*path, name))
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, msgspec.Struct):
                    yield from _out_of_range(item, (*path, name, index))


def _parking(config: Config) -> Iterator[Problem]:
    if config.park_bytes and config.park_bytes < MIB:
        yield Problem(("park_bytes",), f"park_bytes = {config.park_bytes} is neither 0 nor at least 1 MiB")
    if config.park_bytes and not config.transfer_arena:
        yield Problem(("park_bytes",), "park_bytes needs transfer_arena: KV reaches the park through it")
    if config.park_dir is not None and not config.park_bytes:
        yield Problem(("park_dir",), "park_dir has no effect without park_bytes")
    if config.park_dir_bytes and config.park_dir is None:
        yield Problem(("park_dir_bytes",), "park_dir_bytes has no effect without park_dir")
    if config.park_dir == "":
        yield Problem(("park_dir",), "park_dir is empty; leave it out to keep nothing on disk")


def _certificates(config: Config) -> Iterator[Problem]:
    if config.certificate_path == "":
        yield Problem(("certificate_path",), "certificate_path is empty; leave it out to have none")
    if config.certificate_id is not None and config.certificate_path is None:
        yield Problem(("certificate_id",), "certificate_id has no effect without certificate_path")
    if config.certificate_path is not None and config.self_certify:
        # A31: two truths. Whoever has evidence must not be able to move without it.
        yield Problem(("self_certify",), "self_certify and certificate_path exclude each other")
    if config.allow_mock_certificates:
        yield Problem(
            ("allow_mock_certificates",),
            "allow_mock_certificates = true is refused: evidence of the sim engine proves nothing",
        )


def _workers(config: Config) -> Iterator[Problem]:
    if not config.workers:
        yield Problem(("workers",), "there must be at least one [[workers]] entry")
    seen: dict[str, int] = {}
    for index, worker in enumerate(config.workers):
        path: Path = ("workers", index, "worker_id")
        if not WORKER_ID.fullmatch(worker.worker_id):
            yield Problem(path, "worker_id must be 1 to 32 characters of a-z, 0-9 and '-'")
        elif worker.worker_id in RESERVED_IDS:
            yield Problem(path, f"worker_id '{worker.worker_id}' is a name that swapd itself uses")
        elif worker.worker_id in seen:
            # H119: two workers under one id would be one owner to the store.
            yield Problem(path, f"worker_id '{worker.worker_id}' is used twice")
        seen[worker.worker_id] = index
        yield from _worker(config, worker, index)


def _worker(config: Config, worker: WorkerConfig, index: int) -> Iterator[Problem]:
    if worker.engine == "sim" and not config.allow_sim_engine:
        yield Problem(
            ("workers", index, "engine"),
            "engine 'sim' makes up its output; it needs allow_sim_engine = true",
            Code.ENGINE_REFUSED,
        )
    if worker.incarnation is not None and worker.spawn:
        # Every start has an incarnation of its own (H102): one that we start can never be the pinned one.
        yield Problem(
            ("workers", index, "incarnation"),
            "incarnation names a worker that is started elsewhere; it needs spawn = false",
        )
    if any(core < 0 for core in worker.cores) or len(set(worker.cores)) != len(worker.cores):
        yield Problem(("workers", index, "cores"), "cores must be distinct numbers, zero or more")


def _models(config: Config) -> Iterator[Problem]:
    if not config.models:
        yield Problem(("models",), "there must be one [[models]] entry")
    aliases: set[str] = set()
    for index, model in enumerate(config.models):
        path: Path = ("models", index)
        if not ALIAS.fullmatch(model.alias):
            yield Problem((*path, "alias"), "alias must be 1 to 128 letters, digits or any of _.:/-")
        elif model.alias in aliases:
            yield Problem((*path, "alias"), f"alias '{model.alias}' is used twice")
        aliases.add(model.alias)
        for name in ("weights_digest", "tokenizer_digest"):
            digest = getattr(model, name)
            if digest is not None and not SHA256_HEX.fullmatch(digest):
                yield Problem((*path, name), f"{name} must be a SHA-256 in 64 lower-case hex digits")
        if any(token < 0 for token in model.eos_token_ids):
            yield Problem((*path, "eos_token_ids"), "eos_token_ids must be zero or more")
    if len(config.models) > 1 and len(aliases) == len(config.models):
        yield Problem(("models", 1), "this version serves exactly one model")


def _credentials(config: Config) -> Iterator[Problem]:
    if not config.credentials:
        # H126: a service that nobody may use, or everybody.
        yield Problem(("credentials",), "there must be at least one [[credentials]] entry")
    seen: set[str] = set()
    for index, credential in enumerate(config.credentials):
        path: Path = ("credentials", index)
        if not NAMESPACE.fullmatch(credential.namespace):
            yield Problem((*path, "namespace"), "namespace must be 1 to 64 letters, digits or any of _.-")
        if (credential.token is None) == (credential.token_sha256 is None):
            yield Problem(path, "a credential has either token or token_sha256")
            continue
        name = "token" if credential.token is not None else "token_sha256"
        if wrong := _token_problem(credential):
            yield Problem((*path, name), wrong)
        digest = token_digest(credential)
        if digest in seen:
            yield Problem((*path, name), "this token is used twice")
        seen.add(digest)


def _token_problem(credential: CredentialConfig) -> str | None:
    if credential.token_sha256 is not None:
        if SHA256_HEX.fullmatch(credential.token_sha256):
            return None
        return "token_sha256 must be 64 lower-case hex digits"
    token = credential.token or ""
    if not token:
        return "token is empty"
    if not token.isascii() or not token.isprintable() or " " in token:
        return "a token is printable ASCII without spaces, as an HTTP header carries it"
    return None


def token_digest(credential: CredentialConfig) -> str:
    """The SHA-256 of a credential's token, however it was written down (B34)."""
    if credential.token_sha256 is not None:
        return credential.token_sha256
    return hashlib.sha256((credential.token or "").encode()).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether a host name or address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(config: Config) -> Iterator[Problem]:
    if not config.host or any(char.isspace() for char in config.host):
        yield Problem(("host",), "host must be an address or a name")
    elif not is_loopback(config.host) and not config.credentials:
        yield Problem(("host",), "a host other than loopback needs credentials")


def _failpoints(config: Config) -> Iterator[Problem]:
    # A36: a service that real clients use must not be one typing error away from them.
    if config.allow_failpoints and not (config.allow_sim_engine and is_loopback(config.host)):
        yield Problem(
            ("allow_failpoints",),
            "failpoints hold and fail moves on purpose: they need allow_sim_engine = true and loopback",
        )


def _timers(timers: TimerConfig) -> Iterator[Problem]:
    if not timers.heartbeat_s < timers.suspect_s < timers.dead_s:
        yield Problem(("timers",), "timers must keep heartbeat_s < suspect_s < dead_s")
