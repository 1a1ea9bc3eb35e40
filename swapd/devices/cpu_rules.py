"""How busy a set of cores is with its owner's work, between two pictures of `/proc`. Pure; in clock ticks.

    owner = busy - lenders - ignored        share = owner / capacity

Busy is user + nice + system + irq + softirq. Guest time is in user and nice already. Waiting for I/O is idle:
the core could have run something. Stolen time went to other machines of the hypervisor: nobody here used it,
and it was no capacity either, so it is in neither part of the fraction; an owner who takes all that is left
reads 100 %.

A process's own total is right to the tick, threads that ended included; which core it was spent on is known
only as "where the thread ran last". Workers are pinned, so for them it is exact; for a thread that floats
over the cores of several devices it is an approximation, and within one device's cores it does not matter.

A process that ended is in no picture. Its last ticks are in its parent's total of waited-for children when
the parent is a lender too. Where not, a lender's end would look like its owner's demand: `lost`, and the
reading is not trusted. The same holds for a lender whose earlier time nobody took down: `unaccounted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

MIN_INTERVAL_S: Final = 0.2
"""Ticks are 10 ms: below this a reading is a dice throw."""
MIN_CAPACITY_TICKS: Final = 10
"""What the hypervisor must have left us in one interval, all cores together."""


class CoreTicks(NamedTuple):
    """One `cpuN` line of `/proc/stat` without stolen and guest time."""

    user: int
    nice: int
    system: int
    idle: int
    iowait: int
    irq: int
    softirq: int


class ThreadTicks(NamedTuple):
    """User and system time of a thread, and the core on which it ran last."""

    ticks: int
    core: int


class ProcessTicks(NamedTuple):
    """User and system time of a process; `children` is that of the children it has waited for."""

    parent: int
    start_ticks: int
    own: int
    children: int
    core: int
    threads: Mapping[int, ThreadTicks]
    """Empty: it has one thread, which `own` and `core` describe."""


class Picture(NamedTuple):
    """What was seen at one time; CLOCK_BOOTTIME and the same in ticks since boot."""

    at_s: float
    at_ticks: int
    cores: Mapping[int, CoreTicks]
    lenders: Mapping[int, ProcessTicks]
    ignored: Mapping[int, ProcessTicks]


class Spent(NamedTuple):
    """Ticks of some processes by core, and the cores where some are missing in that sum."""

    by_core: Mapping[int, float]
    lost: frozenset[int]
    unaccounted: frozenset[int]


class Share(NamedTuple):
    """Percentages of a device's capacity; all None where there were no cores or too little capacity."""

    cores: int
    owner_pct: float | None = None
    busy_pct: float | None = None
    lender_pct: float | None = None
    ignored_pct: float | None = None


def share(before: Picture, after: Picture, cores: Iterable[int], lenders: Spent, ignored: Spent) -> Share:
    """The shares of one device's cores; those that are in one picture only do not count."""
    busy = capacity = lent = passed = 0.0
    present = 0
    for core in cores:
        old, new = before.cores.get(core), after.cores.get(core)
        if old is None or new is None:
            continue
        present += 1
        # Idle and iowait may go back a little (proc(5)).
        spent = CoreTicks(*(max(0, b - a) for a, b in zip(old, new, strict=True)))
        capacity += sum(spent)
        busy += sum(spent) - spent.idle - spent.iowait
        lent += lenders.by_core.get(core, 0.0)
        passed += ignored.by_core.get(core, 0.0)
    if not present or capacity < MIN_CAPACITY_TICKS:
        return Share(present)
    # The device's sums, not core by core: a thread that moved between its cores was still there.
    owner = max(0.0, busy - lent - passed)
    return Share(
        present,
        owner_pct=_percent(owner, capacity),
        busy_pct=_percent(busy, capacity),
        lender_pct=_percent(lent, capacity),
        ignored_pct=_percent(passed, capacity),
    )


def _percent(part: float, whole: float) -> float:
    return min(100.0, max(0.0, 100.0 * part / whole))


def spent_by_trees(
    before: Mapping[int, ProcessTicks], after: Mapping[int, ProcessTicks], since_ticks: int
) -> Spent:
    """What processes whose children are among them too have spent between two pictures."""
    by_core: dict[int, float] = {}
    unaccounted: set[int] = set()
    ended = _ended_under(before, after)
    for pid, new in after.items():
        start = _start_of(before.get(pid), new, since_ticks)
        if start is None:
            if new.own > 0:
                unaccounted |= _where(new)
            continue
        _add(by_core, _own_by_core(start, new))
        gone = ended.get(pid, [])
        more = new.children - start.children - sum(old.own + old.children for old in gone)
        if more < 0:
            continue  # Nobody has waited for them, yet or ever: they stay in `ended` and are lost.
        # The last ticks of those that we knew, and those of children that came and went unseen.
        _add(by_core, _evenly(more, _cores(gone) or frozenset((new.core,))))
        ended.pop(pid, None)
    lost = _cores(old for gone in ended.values() for old in gone if old.own + old.children > 0)
    return Spent(by_core, lost, frozenset(unaccounted))


def _ended_under(
    before: Mapping[int, ProcessTicks], after: Mapping[int, ProcessTicks]
) -> dict[int, list[ProcessTicks]]:
    """Those that ended, by the nearest ancestor that did not; else by the one that nobody knows."""
    ended: dict[int, list[ProcessTicks]] = {}
    for pid, old in before.items():
        if _same(old, after.get(pid)):
            continue
        above = old.parent
        while above in before and not _same(before[above], after.get(above)):
            above = before[above].parent
        ended.setdefault(above, []).append(old)
    return ended


def spent_alone(
    before: Mapping[int, ProcessTicks], after: Mapping[int, ProcessTicks], since_ticks: int
) -> Spent:
    """What these processes have spent, without their children; one that ended has spent nothing."""
    by_core: dict[int, float] = {}
    for pid, new in after.items():
        start = _start_of(before.get(pid), new, since_ticks)
        if start is not None:
            _add(by_core, _own_by_core(start, new))
    return Spent(by_core, frozenset(), frozenset())


def _same(old: ProcessTicks, new: ProcessTicks | None) -> bool:
    return new is not None and new.start_ticks == old.start_ticks


def _start_of(old: ProcessTicks | None, new: ProcessTicks, since_ticks: int) -> ProcessTicks | None:
    """Where to count from; None for a process that had run before and was not looked at."""
    if old is not None and _same(old, new):
        return old
    if new.start_ticks >= since_ticks:
        return new._replace(own=0, children=0, threads={})
    return None


def _own_by_core(old: ProcessTicks, new: ProcessTicks) -> dict[int, float]:
    """A process's own ticks, by the core on which each of its threads ran last."""
    own = max(0, new.own - old.own)
    if not new.threads:
        return {new.core: float(own)}
    by_core: dict[int, float] = {}
    for tid, thread in new.threads.items():
        had = old.threads.get(tid)
        _add(by_core, {thread.core: max(0, thread.ticks - (had.ticks if had is not None else 0))})
    seen = sum(by_core.values())
    gone = frozenset(thread.core for tid, thread in old.threads.items() if tid not in new.threads)
    if seen < own and gone:
        _add(by_core, _evenly(own - seen, gone))
        return by_core
    if not seen:
        return {new.core: float(own)}
    # What is between the two is rounding: each thread's ticks are cut off by themselves.
    return {core: own * ticks / seen for core, ticks in by_core.items()}


def _where(process: ProcessTicks) -> frozenset[int]:
    cores = frozenset(thread.core for thread in process.threads.values() if thread.ticks > 0)
    return cores or frozenset((process.core,))


def _cores(processes: Iterable[ProcessTicks]) -> frozenset[int]:
    return frozenset(core for process in processes for core in _where(process))


def _evenly(ticks: float, cores: frozenset[int]) -> dict[int, float]:
    return {core: ticks / len(cores) for core in cores}


def _add(into: dict[int, float], more: Mapping[int, float]) -> None:
    for core, ticks in more.items():
        into[core] = into.get(core, 0.0) + ticks
