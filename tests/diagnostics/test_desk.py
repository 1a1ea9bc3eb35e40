"""The view and the archive of a real service's parts, through its front door."""

from __future__ import annotations

import json
import sqlite3
import threading
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from swapd.api import Archive
from swapd.diagnostics import desk as desk_module
from swapd.diagnostics.archive import Facts
from swapd.diagnostics.desk import Diagnostics
from swapd.diagnostics.log_ring import LogRing
from swapd.errors import Code, SwapdError
from swapd.service import SwapdService
from swapd.views import Caller
from tests.lending.desk_double import DeskDouble
from tests.lending.test_view import device, summary, unfinished
from tests.migration.world import World, open_world

TENANT, VIEWER, OPERATOR = Caller("tenant"), Caller("v", is_viewer=True), Caller("ops", True)
LINE = {
    "time": "2026-01-02T03:04:05.000+00:00",
    "level": "info",
    "logger": "swapd.x",
    "message": "worker ready",
}


class Bench(NamedTuple):
    world: World
    service: SwapdService
    ring: LogRing
    made: Diagnostics


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    async with open_world(folder) as world:
        lent = DeskDouble(device(summary(), unfinished("unlocked")))
        ring = LogRing()
        made = Diagnostics(
            world.config,
            folder / "swapd.toml",
            world.store,
            world.supervisor,
            lent.devices,
            None,
            log_ring=ring,
        )
        service = SwapdService(
            world.config,
            world.store,
            world.table,
            world.ledger,
            world.admission,
            world.recovery,
            world.supervisor,
            world.links,
            lent,
            diagnostics=made,
        )
        yield Bench(world, service, ring, made)


async def test_who_may_look_and_who_may_take_it_away(tmp_path: Path) -> None:
    """H9"""
    async with bench(tmp_path) as each:
        doors = each.service
        assert (await doors.diagnostics(VIEWER)).parts
        for call in (
            doors.diagnostics(TENANT),
            doors.export_diagnostics(TENANT),
            doors.export_diagnostics(VIEWER),
            doors.log_decisions(VIEWER, 60.0),
        ):
            with pytest.raises(SwapdError) as refused:
                await call
            assert refused.value.code is Code.OPERATOR_REQUIRED


async def test_the_view_tells_of_every_part_and_the_latest_lines(tmp_path: Path) -> None:
    async with bench(tmp_path) as each:
        each.ring.add(json.dumps(LINE | {"worker": "a", "above_s": 0.123456, "path": "/home/x"}))
        each.world.link("b").state = "dead"
        view = await each.service.diagnostics(OPERATOR)
        words = {part.name: part.word for part in view.parts}
        assert (words["worker a"], words["worker b"], words["store"]) == ("ok", "trouble", "ok")
        (line,) = view.log
        assert (line.level, line.message, line.fields) == ("info", "worker ready", "worker=a above_s=0.1235")
        assert view.versions["trio"] == trio.__version__


async def test_the_archive_has_each_live_histogram_in_short(tmp_path: Path) -> None:
    """R128"""
    async with bench(tmp_path) as each:
        archive = await each.service.export_diagnostics(OPERATOR)
        with archive.file as file, zipfile.ZipFile(file) as zipped:
            live = json.loads(zipped.read("calibration/live.json"))
            status = json.loads(zipped.read("status.json"))
        locked, unlocked = live["gpu0"]
        assert (locked["profile"], locked["threshold_pct"], locked["bins"]) == ("locked", 33.6, [[26, 12.5]])
        assert (unlocked["profile"], unlocked["calibrated"], unlocked["warmup_have"]) == (
            "unlocked",
            False,
            12,
        )
        assert [view["name"] for view in status["devices"]] == ["gpu0"]


async def test_an_export_that_takes_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread learns of it, and keeps the one place there is until it ends: never two at a hung disk."""
    ended, was_given_up = threading.Event(), threading.Event()

    def hang(facts: Facts, given_up: threading.Event) -> Archive:
        given_up.wait(60)
        was_given_up.set()
        ended.wait(60)
        raise OSError("no disk")

    monkeypatch.setattr(desk_module, "build_archive", hang)
    monkeypatch.setattr(desk_module, "EXPORT_DEADLINE_S", 0.2)
    async with bench(tmp_path) as each:
        try:
            for _ in range(2):
                with pytest.raises(SwapdError) as refused:
                    await each.service.export_diagnostics(OPERATOR)
                assert refused.value.code is Code.TIMEOUT
            await trio.to_thread.run_sync(was_given_up.wait, 60)
            assert each.made._one.borrowed_tokens == 1
        finally:
            ended.set()


async def test_a_disk_that_refuses_is_told_by_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(facts: Facts, given_up: threading.Event) -> Archive:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(desk_module, "build_archive", refuse)
    async with bench(tmp_path) as each:
        with pytest.raises(SwapdError) as refused:
            await each.service.export_diagnostics(OPERATOR)
        assert refused.value.code is Code.STORE_FAILED


async def test_a_database_that_cannot_be_read_is_named_and_the_rest_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B42: activity and drains are only in the database."""

    async def broken(fn: object) -> object:
        raise sqlite3.OperationalError("disk I/O error")

    async with bench(tmp_path) as each:
        monkeypatch.setattr(each.world.store, "read", broken)
        archive = await each.service.export_diagnostics(OPERATOR)
        with archive.file as file, zipfile.ZipFile(file) as zipped:
            names = set(zipped.namelist())
            missing = json.loads(zipped.read("manifest.json"))["missing"]
        assert {"status.json", "health.json", "calibration/live.json", "log/service.jsonl"} <= names
        for name in ("activity.json", "drains.jsonl"):
            assert name not in names
            assert "the database cannot be read" in missing[name]


async def test_without_lent_devices_nothing_is_decided(tmp_path: Path) -> None:
    """R129"""
    async with bench(tmp_path) as each:
        with pytest.raises(SwapdError) as refused:
            await each.service.log_decisions(OPERATOR, 60.0)
        assert refused.value.code is Code.INVALID_REQUEST


async def test_a_high_wait_ratio_is_a_metric_and_a_warning(tmp_path: Path) -> None:
    """B8, H232: and the documentation says how to give the service a core."""
    page = Path(__file__).parents[2] / "docs" / "operations.md"
    assert "CPUAffinity" in page.read_text(encoding="utf-8")
    async with bench(tmp_path) as each:
        assert b"\nswapd_coordinator_runqueue_wait_ratio " not in each.service.metrics(OPERATOR)
        each.made.run_queue.ratio = 0.75
        assert b"\nswapd_coordinator_runqueue_wait_ratio 0.75\n" in each.service.metrics(OPERATOR)
        view = await each.service.diagnostics(OPERATOR)
        assert {part.name: part.word for part in view.parts}["processor"] == "trouble"


async def test_a_service_without_diagnostics_has_nothing_at_that_address(tmp_path: Path) -> None:
    async with bench(tmp_path) as each:
        each.service._diagnostics = None
        with pytest.raises(SwapdError) as refused:
            await each.service.diagnostics(OPERATOR)
        assert refused.value.code is Code.NOT_FOUND
