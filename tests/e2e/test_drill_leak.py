"""The leak drill, for a few cycles: it runs, judges, cleans up, and can fail (B48, H210, H211)."""

from __future__ import annotations

import gc
import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ops.leaking.drift import FEWEST_CYCLES, FIRST_CYCLE, Drift, drift, theil_sen
from ops.leaking.footprint import Footprint, look, rss_anon_kib, stray_names
from ops.leaking.rest import Rest, residues
from ops.leaking.steps import ABORTS, Rotation
from ops.leaking.verdict import Seen, aborted_at, claims, everywhere
from swapd.failpoints import STEPS
from tests.e2e.drills import run_drill

FEW = ("--cycles=8", "--warm=4", "--quiesce-s=3", "--step-ms=2")


def drill(folder: Path, *options: str) -> tuple[int, str, Any]:
    return run_drill("ops/drill_leak.py", folder, *options)


@pytest.mark.timeout(240)
def test_moves_and_aborts_leave_nothing_behind(tmp_path: Path) -> None:
    """H49, H210, H211: a few cycles both ways; a thousand are a command."""
    code, said, report = drill(tmp_path, *FEW)
    assert code == 0, said
    seen = report["seen"]
    assert seen["migrated"] == {"a to b": 2, "b to a": 2}
    assert sum(seen["aborted"].values()) == 4
    assert seen["baseline"]["held"]["open reservations"] == seen["rest"]["held"]["open reservations"] == 0
    assert {role: len(series) for role, series in seen["memory"].items()} == {
        "coordinator": 9,
        "a": 9,
        "b": 9,
    }
    assert "drill_leak: ok: sim, 8 cycles, 4 moves (2 a to b, 2 b to a), 4 aborts" in said


@pytest.mark.timeout(240)
def test_imports_that_nobody_discards_make_the_drill_fail(tmp_path: Path) -> None:
    """H49, H210: swapd is broken on purpose; what the target keeps is told by name."""
    code, said, report = drill(
        tmp_path, "--cycles=2", "--warm=0", "--quiesce-s=3", "--at=target I.after", "--break=kept_import"
    )
    assert code == 1, said
    [failed] = [one for one in report["claims"] if not one["holds"] and "left behind" in one["name"]]
    assert "a blocks" in failed["detail"] or "b blocks" in failed["detail"]
    assert "drill_leak: FAILED" in said


def test_every_step_before_the_commit_has_an_abort_in_each_direction() -> None:
    """H210: the steps' own list decides what there is; each direction has a turn of its own."""
    before = STEPS[: STEPS.index("K")]
    assert {abort.point.partition(".")[0] for abort in ABORTS} == {*before, "K"}
    rotation = Rotation(ABORTS)
    seen = [aborted_at(source, rotation.next(source)) for _ in ABORTS for source in ("a", "b")]
    assert sorted(seen) == sorted(everywhere())


# Each kind of leak is seen --------------------------------------------------------------------


@contextmanager
def a_thread() -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        # The thread has left Python; the kernel takes its own moment to let it go.
        while os.path.exists(f"/proc/self/task/{thread.native_id}"):
            time.sleep(0.001)


@contextmanager
def a_descriptor() -> Iterator[None]:
    with open("/dev/null") as _:
        yield


@contextmanager
def a_memory_file() -> Iterator[None]:
    with open(os.memfd_create("of-a-test"), "rb+", buffering=0) as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096):
            yield


@pytest.mark.parametrize(
    ("leak", "kind", "detail"),
    [
        (a_thread, "threads", ""),
        (a_descriptor, "descriptors", "1 /dev/null"),
        (a_memory_file, "shared mappings", ""),
    ],
)
def test_what_a_process_keeps_is_seen_from_outside(leak: Any, kind: str, detail: str) -> None:
    """H210: read from `/proc`, as the drill reads its three processes."""
    # What earlier tests left to it must not be closed between the looks.
    gc.collect()
    before = look(os.getpid())
    with leak():
        after = look(os.getpid())
    found = {one.name: one for one in residues(rest(a=before), rest(a=after))}
    assert found[f"a {kind}"].after == found[f"a {kind}"].before + 1
    assert found[f"a {kind}"].detail == detail
    assert residues(rest(a=before), rest(a=look(os.getpid()))) == []
    assert rss_anon_kib(os.getpid()) > 1000


def test_a_name_that_nobody_has_open_is_left_behind(tmp_path: Path) -> None:
    """H210: one that a process has open or mapped is in use, whoever's it is."""
    mapped, opened, stray = (tmp_path / name for name in ("mapped", "opened", "stray"))
    for path in (mapped, opened, stray):
        path.write_bytes(b"x" * 4096)
    with mapped.open("rb+") as file:
        memory = mmap.mmap(file.fileno(), 4096)
    with opened.open("rb"):
        assert stray_names(tmp_path) == [str(stray)]
    memory.close()
    found = residues(rest(), msgspec.structs.replace(rest(), names=["/dev/shm/of-ours"]))
    assert [(one.name, one.detail) for one in found] == [("names in /dev/shm", "/dev/shm/of-ours")]


def rest(held: dict[str, float] | None = None, **processes: Footprint) -> Rest:
    kept: dict[str, float] = {}
    for role, seen in processes.items():
        kept[f"{role} descriptors"] = seen.descriptors
        kept[f"{role} threads"] = seen.threads
        kept[f"{role} shared mappings"] = seen.mappings
    return Rest(held or {}, kept, processes, [], 0.1)


def seen(**fields: Any) -> Seen:
    nothing = rest()
    aborted = dict.fromkeys(everywhere(), 1)
    given = {
        "engine": "sim",
        "at": "",
        "cycles": 1000,
        "migrated": {"a to b": 1},
        "aborted": aborted,
        "again": 0,
        "sessions": 1,
        "tokens": 1,
        "took_s": 1.0,
        "baseline": nothing,
        "rest": nothing,
        "memory": {},
        "drifts": {},
        "cycle_faults": [],
        "stream_faults": [],
    }
    return Seen(**(given | fields))


@pytest.mark.parametrize(
    ("fields", "claim"),
    [
        ({"rest": rest({"open reservations": 1})}, "nothing is left behind within 0.1 s"),
        ({"baseline": rest({"a blocks": 3})}, "nothing is held at the baseline"),
        ({"stream_faults": ["s1 lost: a token"]}, "0 tokens lost or changed"),
        ({"stream_faults": ["s1 doubled: a token"]}, "0 tokens doubled"),
        ({"cycle_faults": ["it ended otherwise"]}, "every cycle ended as it was to"),
        ({"aborted": {}}, "a move was aborted at every point in both directions"),
        ({"drifts": {"a": Drift(0, 0, 10.5, 200)}}, "a grows by at most 10 KiB a cycle"),
    ],
)
def test_each_claim_can_fail(fields: dict[str, Any], claim: str) -> None:
    """B48, H210, H211"""
    assert [one.name for one in claims(seen()) if not one.holds] == []
    assert [one.name for one in claims(seen(**fields)) if not one.holds] == [claim]


def test_the_slope_is_that_of_the_leak_whatever_jumps_there_are() -> None:
    """B48: the median over all pairs, from cycle 200 on; too few cycles have none."""
    leaking = [50_000 + 11 * cycle + (4_000 if cycle > 600 else 0) for cycle in range(1001)]
    steady = [50_000 + 900 * min(cycle, 150) + (300 if cycle % 7 == 0 else 0) for cycle in range(1001)]
    assert drift(leaking).slope == pytest.approx(11, abs=8)
    assert drift(leaking).slope > 10  # type: ignore[operator]  # not None, as approx has shown
    assert drift(steady) == Drift(steady[0], steady[-1], 0.0, FIRST_CYCLE)
    assert drift([1] * FEWEST_CYCLES).slope is None
    assert theil_sen([(0, 0), (1, 5), (2, 4), (3, 6), (4, 8)]) == pytest.approx(2.0, abs=0.25)
