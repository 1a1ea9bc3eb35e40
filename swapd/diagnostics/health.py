"""How each part of the service is, in a word and a sentence. Pure: from what the parts say of themselves.

A word is one of four: `ok`; `waiting`, which ends by itself; `off`, which somebody chose; and `trouble`,
which somebody should look at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from swapd.device_views import DeviceView
from swapd.views import PartView, PartWord, ReconciliationView, WorkerView

GIB: Final = 1 << 30

_WORKERS: Final[Mapping[str, PartWord]] = {
    "ready": "ok",
    "starting": "waiting",
    "stopped": "off",
    "suspect": "trouble",
    "dead": "trouble",
}


def run_queue_part(ratio: float | None, high: float) -> PartView:
    """B8: whether the service gets a CPU when it wants one."""
    if ratio is None:
        return PartView("processor", "waiting", "not known yet how long the service waits for a CPU")
    told = f"of the time that the service wants a CPU it waits {ratio * 100:.0f} %"
    if ratio > high:
        return PartView(
            "processor", "trouble", f"{told}: give it a core of its own, or leave it more of them"
        )
    return PartView("processor", "ok", told)


def store_part(failed: str | None, p50_ms: float, p95_ms: float, stuck_s: float | None = None) -> PartView:
    """The database; `stuck_s`: for how long its disk has not answered."""
    if failed is not None:
        told = f"it cannot write ({failed}); see to the disk and start swapd again"
        return PartView("store", "trouble", told)
    if stuck_s is not None:
        told = f"its disk has not answered for {stuck_s:.0f} s: nothing is acknowledged until it does"
        return PartView("store", "trouble", told)
    return PartView("store", "ok", f"a write takes {p50_ms:.1f} ms, 19 of 20 take under {p95_ms:.1f} ms")


def disk_part(room: str, free_bytes: int | None) -> PartView:
    """Whether the database has room to grow (B40); `room` is `enough`, `low` or `full`."""
    free = (
        f"{free_bytes / GIB:.1f} GiB are free" if free_bytes is not None else "nobody looks how much is free"
    )
    if room == "enough":
        return PartView("disk", "ok" if free_bytes is not None else "off", free)
    told = "it is full and nothing is served" if room == "full" else "it is nearly full"
    return PartView("disk", "trouble", f"{told}: {free}; make room")


def reconciliation_part(report: ReconciliationView) -> PartView:
    """What the start had to resolve."""
    if report.state == "done":
        told = ", ".join(f"{count} {result}" for result, count in sorted(report.counts.items()))
        return PartView("last start", "ok", told or "nothing was left of the run before")
    return PartView("last start", "waiting", f"{report.undecided} sessions of the run before are undecided")


def moves_part(off: str | None, arena_refusal: str | None) -> PartView:
    """Whether sessions can move."""
    if off is not None:
        return PartView("moves", "off", f"switched off {off}")
    if arena_refusal is not None:
        return PartView("moves", "trouble", f"sessions stay where they are: {arena_refusal}")
    return PartView("moves", "ok", "sessions can move between workers")


def worker_parts(workers: Sequence[WorkerView]) -> Iterator[PartView]:
    """Each worker's process."""
    for worker in workers:
        word: PartWord = "trouble" if worker.quarantine is not None else _WORKERS[worker.state]
        told = worker.reason or worker.state
        if worker.quarantine is not None:
            told = f"not trusted with new work: {worker.quarantine.code}"
        yield PartView(f"worker {worker.id}", word, told)


class Sampled(Protocol):
    """What a sampler's link says of itself."""

    @property
    def pid(self) -> int | None: ...
    @property
    def took_ms(self) -> float | None: ...
    @property
    def starts(self) -> int: ...
    @property
    def ended(self) -> int: ...
    @property
    def unanswered(self) -> int: ...
    @property
    def abandoned(self) -> int: ...


def sampler_part(kind: str, known: Sampled) -> PartView:
    """The process that measures devices of one kind."""
    name = f"sampler {kind}"
    if known.abandoned:
        return PartView(name, "trouble", f"{known.abandoned} of its processes hang in the driver")
    if known.pid is None or known.took_ms is None:
        return PartView(name, "waiting", f"starting; started {known.starts} times")
    lost = known.ended + known.unanswered
    again = f"; started again {lost} times" if lost else ""
    return PartView(name, "ok", f"the last measurement took {known.took_ms:.0f} ms{again}")


def attendance_part(attendance: str, detail: str, losses: int, crashes: int) -> PartView:
    """Whether it is known that the owner is there."""
    if attendance == "unknown":
        return PartView("attendance", "trouble", detail)
    trouble = f"; lost the bus {losses} times" if losses else ""
    trouble += f"; failed {crashes} times" if crashes else ""
    return PartView("attendance", "ok", f"{attendance}: {detail}{trouble}")


def calibration_part(not_used: str | None, saves: int, failures: int, *, fixed: bool) -> PartView:
    """The file that keeps what was learned."""
    if not_used is not None:
        return PartView("calibration file", "trouble", f"left alone in this run: {not_used}")
    if fixed:
        return PartView("calibration file", "off", "the threshold is fixed, nothing is learned")
    if failures:
        return PartView("calibration file", "trouble", f"{failures} saves failed, {saves} did not")
    return PartView("calibration file", "ok", f"saved {saves} times since the start")


def reading_parts(devices: Sequence[DeviceView]) -> Iterator[PartView]:
    """Whether each lent device can be read."""
    for view in devices:
        name = f"readings of {view.name}"
        if view.readings == "ok":
            yield PartView(name, "ok", "readings come")
        elif view.readings == "off":
            yield PartView(name, "off", "nothing is measured, by the configuration")
        else:
            yield PartView(name, "trouble", view.readings_detail or f"readings are {view.readings}")
