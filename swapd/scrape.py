"""`GET /metrics`: the numbers of one moment, read from the actors when somebody asks (H177-H180).

Nothing is counted here, so a metric costs nothing while nobody looks. Every series of a closed set is
always there: how many there are depends on the configuration alone, never on sessions (H178).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product

import msgspec
import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from swapd.device_views import DeviceView, ProfileView
from swapd.distribution import Spread
from swapd.log import log_statistics
from swapd.metrics import DEVICE, METRICS, OTHER, MetricType
from swapd.migration.ledger import CapacityLedger
from swapd.migration.supervisor import MigrationSupervisor
from swapd.sessions.recovery import Recovery
from swapd.sessions.table import SessionTable
from swapd.worker.link import WorkerLink


class UnknownLabel(Exception):
    """A label value outside its set: a fault in swapd, raised in tests only."""


class Scrape:
    """The values of one moment, checked against `METRICS`."""

    def __init__(self, devices: Sequence[str], *, strict: bool = False) -> None:
        """`devices` are the configured names. `strict`: raise where production says `other`."""
        self._devices = tuple(devices)
        self._strict = strict
        self._types = {metric.name: metric for metric in METRICS}
        self._values: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in self._types}
        self._spreads: dict[str, dict[tuple[str, ...], Spread]] = {name: {} for name in self._types}

    def put(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge's or counter's value; values that fold into `other` are added up."""
        key = self._key(self._types[name], labels)
        known = self._values[name]
        known[key] = known.get(key, 0.0) + value if OTHER in key else value

    def put_all(self, name: str, values: Mapping[str, float], *before: str) -> None:
        """Set one value for each value of the last label."""
        for label, value in values.items():
            self.put(name, value, *before, label)

    def put_spread(self, name: str, spread: Spread, *labels: str) -> None:
        """Set a histogram."""
        self._spreads[name][self._key(self._types[name], labels)] = spread

    def families(self) -> Iterator[Metric]:
        """All metrics, each series of a closed set included."""
        for metric in METRICS:
            family = Metric(metric.name.removesuffix("_total"), metric.help, metric.kind)
            names = list(metric.labels)
            if metric.kind == "histogram":
                for key, spread in self._spreads[metric.name].items():
                    _add_spread(family, dict(zip(names, key, strict=True)), spread)
            else:
                values = self._values[metric.name]
                if not metric.is_sparse:
                    values = dict.fromkeys(product(*self._sets(metric)), 0.0) | values
                for key, value in values.items():
                    family.add_sample(metric.name, dict(zip(names, key, strict=True)), value)
            yield family

    def text(self) -> bytes:
        """Prometheus text."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Once(self))
        return generate_latest(registry)

    def _sets(self, metric: MetricType) -> list[Sequence[str]]:
        return [self._devices if values is DEVICE else values for values in metric.labels.values()]

    def _key(self, metric: MetricType, labels: Sequence[str]) -> tuple[str, ...]:
        key = []
        for known, label in zip(self._sets(metric), labels, strict=True):
            if label not in known and self._strict:
                raise UnknownLabel(f"{metric.name}: {label}")
            key.append(str(label) if label in known else OTHER)
        return tuple(key)


@dataclass(frozen=True)
class Parts:
    """Whose statistics are read."""

    table: SessionTable
    ledger: CapacityLedger
    recovery: Recovery
    supervisor: MigrationSupervisor
    links: Mapping[str, WorkerLink]
    refusals: Mapping[str, int]
    """New sessions that were refused, by code."""
    is_ready: bool
    runqueue_wait_ratio: float | None = None


class _Once(Collector):
    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        return self._scrape.families()


def _add_spread(family: Metric, labels: dict[str, str], spread: Spread) -> None:
    bounds = [*(str(bound) for bound in spread.bounds), "+Inf"]
    counts = list(accumulate(spread.counts))
    for bound, count in zip(bounds, counts, strict=True):
        family.add_sample(f"{family.name}_bucket", labels | {"le": bound}, count)
    family.add_sample(f"{family.name}_count", labels, counts[-1])
    family.add_sample(f"{family.name}_sum", labels, spread.total)


def put_service(scrape: Scrape, service: Parts) -> None:
    """What the actors counted, and what is there now."""
    supervisor, tally = service.supervisor, service.supervisor.tally
    scrape.put("swapd_ready", float(service.is_ready))
    if service.runqueue_wait_ratio is not None:
        scrape.put("swapd_coordinator_runqueue_wait_ratio", service.runqueue_wait_ratio)  # B8
    scrape.put_all("swapd_sessions", Counter(session.record.state for session in service.table))
    scrape.put("swapd_tokens_accepted_total", service.table.accepted_tokens)
    scrape.put_all("swapd_admission_refusals_total", service.refusals)
    scrape.put("swapd_open_reservations", service.ledger.total_charges())
    scrape.put_all("swapd_migrations_total", tally.moves)
    for phase, taken in tally.phases_s.items():
        scrape.put_spread("swapd_migration_phase_seconds", taken.spread(), phase)
    scrape.put_spread("swapd_frozen_pause_seconds", tally.pause_s.spread())
    scrape.put("swapd_reused_tokens_total", tally.reused_tokens + service.recovery.salvaged_tokens)
    recomputed = tally.recomputed_tokens + service.recovery.replayed_tokens
    scrape.put("swapd_recomputed_tokens_total", recomputed)
    scrape.put_all("swapd_recoveries_total", service.recovery.outcomes)
    scrape.put_all("swapd_drains_total", tally.drains)
    scrape.put_all("swapd_drains_open", Counter(book.state for book in supervisor.open_drains()))
    scrape.put_spread("swapd_drain_clear_seconds", tally.clear_s.spread())
    scrape.put_all("swapd_arena_bytes", supervisor.loans.arena_bytes())
    scrape.put("swapd_certificate_expires_seconds", supervisor.certificates.expires_s())
    scrape.put("swapd_certificates_registered", supervisor.certificates.registered())
    if supervisor.park is not None:
        scrape.put_all("swapd_park_bytes", supervisor.park.room.park_bytes())
    store = service.table.store.statistics()
    scrape.put_spread("swapd_store_commit_seconds", store.commit_s)
    scrape.put("swapd_store_room", 1.0, store.room)
    if store.disk is not None:
        disk = {"total": store.disk.total_bytes, "free": store.disk.free_bytes}
        scrape.put_all("swapd_store_disk_bytes", disk)
    links = service.links.values()
    scrape.put("swapd_fenced_messages_total", sum(link.fenced for link in links), "incarnation")
    scrape.put_all("swapd_fenced_messages_total", service.table.fenced)
    scrape.put("swapd_sweep_reclaimed_total", sum(link.swept for link in links))
    scrape.put("swapd_log_fields_dropped_total", log_statistics().fields_dropped)
    scrape.put("swapd_tasks", trio.lowlevel.current_statistics().tasks_living)


def put_device(scrape: Scrape, view: DeviceView, readings: Mapping[str, int]) -> None:
    """What is told of one lent device; `readings` are its measurements by result."""
    scrape.put("swapd_device_state", 1.0, view.name, view.state)
    scrape.put("swapd_pressure_engaged", float(view.engaged), view.name)
    scrape.put_all("swapd_readings_total", readings, view.name)
    given = view.last_give_back
    if given is not None and given.free_in_s is not None:
        scrape.put("swapd_give_back_seconds", given.free_in_s, view.name)
    profiles: dict[str, ProfileView | DeviceView] = {**view.profiles}
    if view.profile is not None:
        profiles[view.profile] = view
        if view.reading_pct is not None:
            scrape.put("swapd_pressure_reading_pct", view.reading_pct, view.name, view.profile)
    for name, known in profiles.items():
        for kind, value in (
            ("threshold", known.threshold_pct),
            ("baseline", known.baseline_pct),
            ("target", known.target_pct),
        ):
            if not isinstance(value, msgspec.UnsetType):
                scrape.put(f"swapd_pressure_{kind}_pct", value, view.name, name)
