"""How the parts are, whether the service gets a CPU, and which versions these are."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from swapd.diagnostics import health, run_queue
from swapd.diagnostics.run_queue import HIGH_RATIO, RunQueueWatch, RunTimes, wait_ratio
from swapd.diagnostics.versions import nvidia_driver, versions
from swapd.views import PartView, QuarantineView, ReconciliationView, WorkerView
from tests.lent_devices import lent_device


@pytest.mark.parametrize(
    ("ran", "waited", "ratio"),
    [(1.0, 1.0, 0.5), (1.0, 3.0, 0.75), (1.0, 0.0, 0.0), (0.05, 0.1, 0.0), (0.05, 0.16, 0.16 / 0.21)],
)
def test_the_ratio_is_the_share_of_wanted_time_that_was_waited_for(
    ran: float, waited: float, ratio: float
) -> None:
    """B8: and a thread that wants next to nothing waits for nobody's harm."""
    assert wait_ratio(RunTimes(5.0, 2.0, 3.0), RunTimes(15.0, 2.0 + ran, 3.0 + waited)) == pytest.approx(
        ratio
    )


async def test_the_watch_reads_what_the_kernel_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B8"""
    monkeypatch.setattr(run_queue, "LOOK_EVERY_S", 0.002)
    stat = tmp_path / "schedstat"
    stat.write_text("0 0 1\n")
    watch = RunQueueWatch(stat, clock=lambda: 0.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.run)
        stat.write_text("1000000000 3000000000 2\n")
        while not watch.ratio:
            await trio.lowlevel.checkpoint()
        assert watch.ratio == 0.75
        stat.unlink()
        while watch.ratio is not None:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


def test_where_the_kernel_does_not_count_nothing_is_told(tmp_path: Path) -> None:
    assert RunQueueWatch(tmp_path / "none").read() is None
    (tmp_path / "odd").write_text("what")
    assert RunQueueWatch(tmp_path / "odd").read() is None


def test_a_service_that_waits_longer_than_it_runs_is_in_trouble() -> None:
    """B8"""
    assert health.run_queue_part(0.5, HIGH_RATIO).word == "ok"
    part = health.run_queue_part(0.51, HIGH_RATIO)
    assert (part.word, "51 %" in part.detail, "core" in part.detail) == ("trouble", True, True)
    assert health.run_queue_part(None, HIGH_RATIO).word == "waiting"


def test_each_part_has_a_word_and_a_sentence() -> None:
    assert health.store_part(None, 0.41, 1.2).detail == "a write takes 0.4 ms, 19 of 20 take under 1.2 ms"
    assert health.store_part("SQLITE_FULL", 0.4, 1.2).word == "trouble"
    stuck = health.store_part(None, 0.4, 1.2, 31.4)
    assert (stuck.word, "31 s" in stuck.detail) == ("trouble", True)
    assert health.disk_part("enough", 3 << 30) == PartView("disk", "ok", "3.0 GiB are free")
    assert [health.disk_part(room, 0).word for room in ("low", "full")] == ["trouble", "trouble"]
    assert health.disk_part("enough", None).word == "off"
    off = health.moves_part("by the operator", None)
    assert (off.word, off.detail) == ("off", "switched off by the operator")
    assert health.moves_part(None, "no memory").word == "trouble"
    assert health.moves_part(None, None).word == "ok"
    done = ReconciliationView("done", 1.0, 2.0, {}, 1.5, 0.1, {"resumed": 2, "failed": 1}, (), 0)
    assert health.reconciliation_part(done).detail == "1 failed, 2 resumed"
    waiting = ReconciliationView("deciding", 1.0, None, {}, None, None, {}, (), 4)
    assert health.reconciliation_part(waiting).word == "waiting"


@pytest.mark.parametrize(
    ("known", "word"),
    [
        ({"abandoned": 1}, "trouble"),
        ({"pid": None}, "waiting"),
        ({"took_ms": None}, "waiting"),
        ({}, "ok"),
        ({"ended": 2}, "ok"),
    ],
)
def test_samplers(known: dict[str, object], word: str) -> None:
    facts = {"pid": 5, "took_ms": 3.0, "starts": 1, "ended": 0, "unanswered": 0, "abandoned": 0} | known
    part = health.sampler_part("nvml", SimpleNamespace(**facts))  # type: ignore[arg-type]
    assert part.word == word
    assert ("started again 2 times" in part.detail) == (known.get("ended") == 2)


def test_workers_attendance_calibration_and_readings() -> None:
    worker = WorkerView("a", "ready", True, None, "i", "sim", "m", "d", 1, 0, 1, 0, 1, None, {})
    held = WorkerView(
        "b",
        "ready",
        True,
        None,
        "i",
        "sim",
        "m",
        "d",
        1,
        0,
        1,
        0,
        1,
        None,
        {},
        QuarantineView("timeout", 1.0),
    )
    gone = WorkerView("c", "dead", False, "lost", None, None, None, "d", None, 0, 1, 0, None, None, {})
    words = [(part.name, part.word) for part in health.worker_parts([worker, held, gone])]
    assert words == [("worker a", "ok"), ("worker b", "trouble"), ("worker c", "trouble")]
    assert health.attendance_part("unknown", "no system bus", 1, 0).word == "trouble"
    assert health.attendance_part("locked", "the screen is locked", 0, 0).word == "ok"
    assert health.calibration_part("folder", 1, 0, fixed=False).word == "trouble"
    assert health.calibration_part(None, 1, 0, fixed=True).word == "off"
    assert health.calibration_part(None, 1, 2, fixed=False).word == "trouble"
    assert health.calibration_part(None, 1, 0, fixed=False).word == "ok"
    views = [
        lent_device("a"),
        lent_device("b", readings="off"),
        lent_device("c", readings="failed", readings_detail="no reading for 40 s"),
    ]
    assert [(p.word, p.detail) for p in health.reading_parts(views)][2] == ("trouble", "no reading for 40 s")
    assert [p.word for p in health.reading_parts(views)] == ["ok", "off", "trouble"]


def test_versions_are_those_of_this_process(tmp_path: Path) -> None:
    found = versions()
    assert found["trio"] == trio.__version__
    assert found["kernel"] == os.uname().release
    assert os.uname().nodename not in found.values() or len(os.uname().nodename) < 3
    assert nvidia_driver(tmp_path / "none") is None
    told = tmp_path / "version"
    told.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n")
    assert nvidia_driver(told) == "570.124.06"
    told.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n")
    assert nvidia_driver(told) == "535.104.05"
