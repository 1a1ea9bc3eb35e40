"""Everything that may be left behind, at rest: looked at from outside, and what the service says itself."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Mapping
from typing import Final

import msgspec
import trio

from ops.crashing.stage import COORDINATOR, Stage
from ops.leaking.footprint import Footprint, descriptors_more, look, stray_names
from swapd.store.reader import READERS
from tests.e2e.deployment import not_counted_since

QUIESCE_S: Final = 10.0
LOOK_EVERY_S: Final = 0.25
STORE_CONNECTIONS: Final = READERS + 2
"""The readers, the writer and the checkpointer: each is opened when it is first needed, and kept."""
ROLES: Final = (COORDINATOR, "a", "b")
_STATS: Final = ("running", "held", "frozen", "reserved", "sessions", "unaccepted")
_METRICS: Final = {
    "swapd_open_reservations": "open reservations",
    'swapd_arena_bytes{kind="lent"}': "arena bytes lent",
    "swapd_sweep_reclaimed_total": "imports that a sweep had to free",
}
_ROWS: Final = {
    "rows of open sessions": "SELECT count(*) FROM sessions WHERE finished_at IS NULL",
    "rows of open moves": "SELECT count(*) FROM moves WHERE state <> 'finished'",
    "rows of open drains": "SELECT count(*) FROM drains WHERE finished_at IS NULL",
}


class Rest(msgspec.Struct):
    """What was there at rest.

    `held` must be zero. `kept` is what a process has for itself: it must not be more than at the baseline.
    """

    held: dict[str, float]
    kept: dict[str, float]
    processes: dict[str, Footprint]
    names: list[str]
    """In `/dev/shm`, without a process that has them."""
    after_s: float
    """How long it took until nothing was held or kept too much; the whole time if it never was so."""


class Residue(msgspec.Struct, frozen=True):
    """Something that was left behind."""

    name: str
    before: float
    after: float
    detail: str = ""


def residues(before: Rest | None, after: Rest) -> list[Residue]:
    """What is there that should not be; without a baseline only what is held. Pure."""
    found = [Residue(name, 0, value) for name, value in after.held.items() if value]
    if before is None:
        return found
    if new := sorted(set(after.names) - set(before.names)):
        found.append(Residue("names in /dev/shm", len(before.names), len(after.names), ", ".join(new)))
    for name, value in after.kept.items():
        if value > (known := before.kept.get(name, 0)):
            role = name.partition(" ")[0]
            more = descriptors_more(before.processes[role], after.processes[role])
            detail = ", ".join(f"{count} {what}" for what, count in more.items())
            found.append(Residue(name, known, value, detail if "descriptors" in name else ""))
    return found


async def come_to_rest(stage: Stage, baseline: Rest | None, within_s: float = QUIESCE_S) -> Rest:
    """Look until nothing is left or the time is over; for a baseline, for the whole time.

    Of what is kept the least counts: connections and idle threads come and go.
    """
    began = trio.current_time()
    since = time.monotonic()
    rest: Rest | None = None
    while True:
        held, kept, processes = await _look(stage, since)
        if rest is not None:
            kept = {name: min(value, rest.kept.get(name, value)) for name, value in kept.items()}
        after_s = trio.current_time() - began
        rest = Rest(held, kept, processes, stray_names(), after_s)
        if after_s >= within_s or (baseline is not None and not residues(baseline, rest)):
            return rest
        await trio.sleep(LOOK_EVERY_S)


async def _look(
    stage: Stage, since: float
) -> tuple[dict[str, float], dict[str, float], dict[str, Footprint]]:
    metrics = await stage.metrics()
    views = await stage.deployment.workers()
    held = {name: metrics[metric] for metric, name in _METRICS.items()}
    held["sessions"] = _sum(metrics, "swapd_sessions{")
    held["drains"] = _sum(metrics, "swapd_drains_open{")
    # What a worker holds is known from its heartbeats, and an old one may be from before the cycles.
    held["workers not heard from since"] = len(not_counted_since(since, views))
    kept = {f"{COORDINATOR} tasks": metrics["swapd_tasks"]}
    for name, view in views.items():
        held[f"{name} blocks"] = view["usable_blocks"] - view["free_blocks"]
        held[f"{name} promised blocks"] = view["committed_blocks"]
        held[f"{name} quarantined"] = float(view["quarantine"] is not None)
        held |= {f"{name} {stat}": view["stats"][stat] for stat in _STATS}
        kept[f"{name} tasks"] = view["stats"]["tasks"]
    held |= _open_rows(stage)
    pids = {role: stage.pid(role) for role in ROLES}
    held["other processes"] = len(set(stage.deployment.processes()) - set(pids.values()))
    processes = {role: look(pid) for role, pid in pids.items()}
    coordinator, connections = processes[COORDINATOR].split(str(stage.database))
    processes[COORDINATOR] = coordinator
    held["store connections over its pool"] = max(0, connections - STORE_CONNECTIONS)
    for role, seen in processes.items():
        kept[f"{role} descriptors"] = seen.descriptors
        kept[f"{role} threads"] = seen.threads
        kept[f"{role} shared mappings"] = seen.mappings
    return held, kept, processes


def _sum(metrics: Mapping[str, float], prefix: str) -> float:
    return sum(value for name, value in metrics.items() if name.startswith(prefix))


def _open_rows(stage: Stage) -> dict[str, float]:
    with contextlib.closing(sqlite3.connect(f"file:{stage.database}?mode=ro", uri=True)) as db:
        return {name: db.execute(query).fetchone()[0] for name, query in _ROWS.items()}
