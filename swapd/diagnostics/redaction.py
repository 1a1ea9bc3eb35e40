"""What of the configuration and of log lines may leave the machine: named keys alone (B42). Pure.

A key that is not named here is left out, whatever it holds: a new setting is private until somebody has
looked at it. Of the configuration, whole sections of plain numbers are shown as such, because a number is
no secret. Credentials, paths, names of the owner's programs and addresses are not named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from swapd.config import (
    Config,
    DeviceConfig,
    LimitConfig,
    ModelConfig,
    OwnerConfig,
    PressureConfig,
    SimConfig,
    TimerConfig,
    WorkerConfig,
)
from swapd.log import ALLOWED_FIELDS, ERROR_FIELDS, LIBRARY_MESSAGE, MAX_FIELD_CHARS, OURS

SHOWN: Final[Mapping[type[msgspec.Struct], frozenset[str]]] = {
    Config: frozenset(
        {
            *("workers", "models", "devices", "owner", "timers", "limits", "sim"),
            *("port", "transfer_arena", "arena_bytes", "park_bytes", "max_active_sessions"),
            *("max_concurrent_migrations", "migration_enabled", "self_certify", "allow_sim_engine"),
            *("allow_failpoints", "window_tokens", "precopy_duty", "drain_deadline_s", "stop_workers"),
            *("worker_restarts", "record_schedule", "certificate_id", "evidence_profile"),
            "allow_mock_certificates",
        }
    ),
    WorkerConfig: frozenset({"worker_id", "engine", "device", "cores", "spawn"}),
    ModelConfig: frozenset(
        {
            *("alias", "max_model_len", "block_tokens", "kv_cache_bytes", "max_num_seqs"),
            *("max_num_batched_tokens", "gpu_memory_utilization", "prefix_caching", "eos_token_ids"),
        }
    ),
    DeviceConfig: frozenset({"name", "kind", "selector", "cores"}),
    OwnerConfig: frozenset(
        {
            *("consent", "presence", "lend_when", "release", "resume_after_s", "when_full", "finish_s"),
            *("quiet_hours", "quiet_lead_s", "min_free_mib", "borrower_ports", "gamemode"),
            *("debug_decisions", "gpu_pressure"),
        }
    ),
    PressureConfig: frozenset(
        {
            *("enabled", "mode", "threshold_pct", "learn_quantile", "learn_half_life_h", "margin_pct"),
            *("floor_pct", "cap_pct", "raise_pct_per_h", "warmup_samples", "poll_ms", "sustain_s"),
            *("release_band_pct", "release_s", "baseline_quantile", "baseline_window_s"),
        }
    ),
}
NUMBERS: Final = (TimerConfig, LimitConfig, SimConfig)
"""Of these, every setting that is a number is shown."""

LINE_KEYS: Final = frozenset(
    {"time", "level", "logger", "message", "at", "fields_dropped", "error_at"} | ALLOWED_FIELDS | ERROR_FIELDS
) - {"path", "socket_dir", "endpoint", "database", "host"}
"""Of a log line: what the log's own list allows, without places of this machine."""


def shown_config(config: Config) -> dict[str, Any]:
    """The settings in force that may be seen, and under `left_out` the names of the others that are set."""
    return {**_shown(config), "left_out": sorted(_left_out(config, ""))}


def _shown(struct: msgspec.Struct) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if not _is_shown(struct, name, value):
            continue
        if isinstance(value, msgspec.Struct):
            shown[name] = _shown(value)
        elif isinstance(value, tuple):
            shown[name] = [_shown(each) if isinstance(each, msgspec.Struct) else each for each in value]
        else:
            shown[name] = value
    return shown


def _is_shown(struct: msgspec.Struct, name: str, value: object) -> bool:
    if isinstance(struct, NUMBERS):
        return value is None or isinstance(value, (bool, int, float))
    return name in SHOWN.get(type(struct), ())


def _left_out(struct: msgspec.Struct, before: str) -> Iterator[str]:
    defaults = {field.name: field.default for field in msgspec.structs.fields(struct)}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if not _is_shown(struct, name, value):
            if value != defaults[name]:
                yield f"{before}{name}"
        elif isinstance(value, msgspec.Struct):
            yield from _left_out(value, f"{before}{name}.")
        elif isinstance(value, tuple):
            for each in value:
                if isinstance(each, msgspec.Struct):
                    yield from _left_out(each, f"{before}{name}.")


def shown_line(line: str | bytes) -> dict[str, Any] | None:
    """A log line of a process of ours as it may be seen; None where it is none, as an engine's own output.

    A library's message and a field that no list names are left out, whoever wrote the line.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not {"time", "level", "logger", "message"} <= found.keys():
        return None
    logger = found["logger"]
    ours = isinstance(logger, str) and logger.partition(".")[0] in OURS
    if not ours and found["message"] != LIBRARY_MESSAGE:
        return None
    return {name: value for name, value in found.items() if name in LINE_KEYS and _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_FIELD_CHARS
    return value is None or isinstance(value, (bool, int, float))
