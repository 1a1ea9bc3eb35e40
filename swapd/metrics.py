"""Every metric there is: its name, what it means, and which values its labels may have (H178, H179).

Label values come from closed sets: no id, no namespace, no path and no text of a model is ever one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

from swapd.errors import Code
from swapd.migration.tally import FINAL_STATES, PHASES
from swapd.pressure.reading import PROFILES
from swapd.sessions.inventory import Found
from swapd.sessions.table import FencedBy
from swapd.store.ballast import Room
from swapd.views import Outcome

OTHER: Final = "other"
"""What a value outside its set becomes in production (H178)."""
DEVICE: Final = ("<device>",)
"""Stands for the configured names of the devices."""

LIVE_STATES: Final = ("created", "running", "migrating", "recovering", "parked")
RESULTS: Final = ("ok", "first", "failed", "invalid", "unsupported", "asleep", "missing")
DEVICE_STATES: Final = ("lent", "refused", "vacating", "free", "returning")
REFUSALS: Final = tuple(
    str(code)
    for code in (
        *(Code.CAPACITY, Code.BUDGET_EXCEEDED, Code.NO_ADMITTING_WORKER, Code.DEVICE_NOT_LENT),
        *(
            Code.DEVICE_CALIBRATING,
            Code.NOT_READY,
            Code.STOPPING,
            Code.STORE_FAILED,
            Code.STORE_STUCK,
            Code.DISK_FULL,
            Code.TIMEOUT,
        ),
        *(
            Code.ADMISSION_STOPPED,
            Code.TARGET_LOST,
            Code.MODEL_UNKNOWN,
            Code.PROMPT_EMPTY,
            Code.INVALID_REQUEST,
        ),
        *(Code.UNSUPPORTED_PARAMETER, Code.IDEMPOTENCY_CONFLICT),
    )
)


class MetricType(NamedTuple):
    """One metric. `labels` names each label and its closed set."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: Mapping[str, Sequence[str]] = {}
    is_sparse: bool = False
    """Series without a value are left out instead of being 0; for values that may be unknown."""


_OUTCOMES: Final = tuple(get_args(Outcome))
_PROFILE: Final[Mapping[str, Sequence[str]]] = {"device": DEVICE, "profile": PROFILES}

METRICS: Final = (
    MetricType("swapd_ready", "gauge", "1 when the service takes work."),
    MetricType("swapd_sessions", "gauge", "Sessions that have not ended.", {"state": LIVE_STATES}),
    MetricType("swapd_tokens_accepted_total", "counter", "Tokens made durable."),
    MetricType("swapd_admission_refusals_total", "counter", "New sessions refused.", {"reason": REFUSALS}),
    MetricType("swapd_open_reservations", "gauge", "Promises of KV room, of sessions and of moves."),
    MetricType("swapd_migrations_total", "counter", "Moves that are over.", {"outcome": _OUTCOMES}),
    MetricType(
        "swapd_migration_phase_seconds", "histogram", "How long parts of moves took.", {"phase": PHASES}
    ),
    MetricType("swapd_frozen_pause_seconds", "histogram", "From freeze to the next token of a session."),
    MetricType("swapd_reused_tokens_total", "counter", "Positions that targets took over."),
    MetricType("swapd_recomputed_tokens_total", "counter", "Positions computed again, by move or replay."),
    MetricType(
        "swapd_recoveries_total",
        "counter",
        "Sessions resolved after a worker or the service was lost.",
        {"outcome": ("replayed", "failed", *get_args(Found))},
    ),
    MetricType(
        "swapd_certificate_expires_seconds", "gauge", "Until the first registered certificate expires."
    ),
    MetricType("swapd_certificates_registered", "gauge", "Certificates that are issued and not revoked."),
    MetricType("swapd_drains_total", "counter", "Drains that are over.", {"state": FINAL_STATES}),
    MetricType("swapd_drains_open", "gauge", "Drains under way.", {"state": ("running", "blocked")}),
    MetricType(
        "swapd_drain_clear_seconds",
        "histogram",
        "From a drain's begin until nothing of its sessions was left on the device.",
    ),
    MetricType("swapd_arena_bytes", "gauge", "The transfer arena.", {"kind": ("total", "lent", "free")}),
    MetricType("swapd_park_bytes", "gauge", "KV of parked sessions.", {"kind": ("total", "memory", "disk")}),
    MetricType("swapd_store_commit_seconds", "histogram", "How long the disk took to confirm a commit."),
    MetricType(
        "swapd_store_disk_bytes", "gauge", "The disk of the database.", {"kind": ("total", "free")}, True
    ),
    MetricType(
        "swapd_store_room", "gauge", "1 for how much room that disk has.", {"state": [*map(str, Room)]}
    ),
    MetricType(
        "swapd_fenced_messages_total",
        "counter",
        "Messages of workers that were not obeyed.",
        {"reason": ("incarnation", *get_args(FencedBy))},
    ),
    MetricType("swapd_sweep_reclaimed_total", "counter", "Imports that nobody completed, freed by sweeps."),
    MetricType(
        "swapd_coordinator_runqueue_wait_ratio",
        "gauge",
        "Of the time that the service wants a CPU, the share that it waits for one.",
        is_sparse=True,
    ),
    MetricType("swapd_log_fields_dropped_total", "counter", "Log fields outside the allowlist."),
    MetricType("swapd_tasks", "gauge", "Tasks of the service's process that have not ended."),
    MetricType(
        "swapd_device_state",
        "gauge",
        "1 for the state that a device is in.",
        {"device": DEVICE, "state": DEVICE_STATES},
    ),
    MetricType(
        "swapd_give_back_seconds",
        "gauge",
        "From the reason to a free device, the last time.",
        {"device": DEVICE},
        True,
    ),
    MetricType("swapd_pressure_engaged", "gauge", "1 while the owner needs the device.", {"device": DEVICE}),
    MetricType("swapd_pressure_reading_pct", "gauge", "The owner's load, now.", _PROFILE, True),
    MetricType("swapd_pressure_threshold_pct", "gauge", "The threshold in force.", _PROFILE, True),
    MetricType("swapd_pressure_baseline_pct", "gauge", "The learned quantile.", _PROFILE, True),
    MetricType("swapd_pressure_target_pct", "gauge", "Where the threshold goes.", _PROFILE, True),
    MetricType("swapd_readings_total", "counter", "Measurements.", {"device": DEVICE, "result": RESULTS}),
)
