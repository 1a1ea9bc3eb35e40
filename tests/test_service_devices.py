"""Lent devices behind the front door: who may ask, what admission and readiness say (R60-R62, H177)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from swapd.device_views import DeviceEvent, SamplePoint, TakeBack
from swapd.errors import Code, SwapdError
from swapd.service import SwapdService
from swapd.store.devices import add_device_event, add_samples
from swapd.views import Caller, NewSession
from tests.lending.desk_double import DeskDouble
from tests.lending.test_view import device, unfinished
from tests.migration.world import World, open_world

TENANT, OPERATOR = Caller("tenant"), Caller("ops", True)


class Lending(NamedTuple):
    world: World
    desk: DeskDouble
    service: SwapdService


@asynccontextmanager
async def lending(tmp_path: Path) -> AsyncIterator[Lending]:
    async with open_world(tmp_path) as world:
        desk = DeskDouble(device())
        doors = SwapdService(
            world.config,
            world.store,
            world.table,
            world.ledger,
            world.admission,
            world.recovery,
            world.supervisor,
            world.links,
            desk,
            strict_metrics=True,
        )
        yield Lending(world, desk, doors)


def close_all(world: World) -> None:
    for name in world.links:
        world.link(name).state = "dead"


async def test_only_operators_see_and_take_devices(tmp_path: Path) -> None:
    """H9, H177"""
    async with lending(tmp_path) as each:
        doors = each.service
        for call in (
            doors.status(TENANT),
            doors.devices(TENANT),
            doors.device(TENANT, "gpu0"),
            doors.take_back(TENANT, "gpu0", TakeBack()),
            doors.lend(TENANT, "gpu0"),
            doors.samples(TENANT, "gpu0"),
            doors.device_events(TENANT, "gpu0"),
        ):
            with pytest.raises(SwapdError) as refused:
                await call
            assert refused.value.code is Code.OPERATOR_REQUIRED
        with pytest.raises(SwapdError) as refused:
            doors.metrics(TENANT)
        assert refused.value.code is Code.OPERATOR_REQUIRED
        assert each.desk.asked == []


async def test_a_device_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    async with lending(tmp_path) as each:
        doors = each.service
        for call in (
            doors.device(OPERATOR, "gpu9"),
            doors.take_back(OPERATOR, "gpu9", TakeBack()),
            doors.lend(OPERATOR, "gpu9"),
            doors.samples(OPERATOR, "gpu9"),
            doors.device_events(OPERATOR, "gpu9"),
        ):
            with pytest.raises(SwapdError) as refused:
                await call
            assert refused.value.code is Code.DEVICE_UNKNOWN


async def test_without_lent_devices_there_are_none_and_nothing_else_changes(tmp_path: Path) -> None:
    async with lending(tmp_path) as each:
        world = each.world
        doors = SwapdService(
            world.config,
            world.store,
            world.table,
            world.ledger,
            world.admission,
            world.recovery,
            world.supervisor,
            world.links,
        )
        assert await doors.devices(OPERATOR) == []
        assert (await doors.status(OPERATOR)).devices == ()
        assert doors.readiness().ready
        with pytest.raises(SwapdError) as refused:
            await doors.take_back(OPERATOR, "gpu0", TakeBack())
        assert refused.value.code is Code.DEVICE_UNKNOWN


async def test_the_status_shows_how_far_calibration_is(tmp_path: Path) -> None:
    """R62"""
    async with lending(tmp_path) as each:
        each.desk.devices["gpu0"] = device(unfinished(have=23), state="refused")
        status = await each.service.status(OPERATOR)
        (view,) = status.devices
        profile = view.profiles["locked"]
        assert (profile.warmup_have, profile.warmup_samples, view.calibrated) == (23, 60, False)
        assert [worker.id for worker in status.workers] == ["a", "b"]


async def test_a_take_back_reaches_the_desk_checked(tmp_path: Path) -> None:
    async with lending(tmp_path) as each:
        view = await each.service.take_back(OPERATOR, "gpu0", TakeBack(for_s=60.0))
        assert each.desk.asked == [("gpu0", TakeBack(60.0, "time"))]
        assert (view.state, view.admitting) == ("vacating", False)
        with pytest.raises(SwapdError) as refused:
            await each.service.take_back(OPERATOR, "gpu0", TakeBack(until="time"))
        assert refused.value.code is Code.INVALID_REQUEST
        assert len(each.desk.asked) == 1
        assert (await each.service.lend(OPERATOR, "gpu0")).taken_back is None


async def test_while_a_device_calibrates_a_session_is_refused_with_the_reason(tmp_path: Path) -> None:
    """R60: 503, why, and when to come back."""
    async with lending(tmp_path) as each:
        each.desk.refused = (Code.DEVICE_CALIBRATING, "gpu0: 23 of 60 readings", 185.0)
        close_all(each.world)
        with pytest.raises(SwapdError) as refused:
            await each.service.create_session(TENANT, NewSession(prompt=[1], max_new_tokens=1))
        error = refused.value
        assert (error.code, error.status, error.retryable) == (Code.DEVICE_CALIBRATING, 503, True)
        assert "23 of 60 readings" in error.sentence
        assert error.retry_after_s == 185.0


async def test_workers_of_other_devices_take_sessions_meanwhile(tmp_path: Path) -> None:
    """R60: what does not depend on the device is not refused."""
    async with lending(tmp_path) as each:
        each.desk.refused = (Code.DEVICE_CALIBRATING, "gpu0", 185.0)
        each.world.link("a").state = "dead"
        view = await each.service.create_session(TENANT, NewSession(prompt=[1], max_new_tokens=1))
        assert view.worker == "b"


async def test_without_a_device_to_blame_the_refusal_is_the_workers(tmp_path: Path) -> None:
    async with lending(tmp_path) as each:
        close_all(each.world)
        with pytest.raises(SwapdError) as refused:
            await each.service.create_session(TENANT, NewSession(prompt=[1], max_new_tokens=1))
        assert refused.value.code is Code.NO_ADMITTING_WORKER


async def test_a_device_that_calibrates_makes_the_service_unready(tmp_path: Path) -> None:
    """R61, D11: and work that another device can take is taken all the same (decision 15)."""
    async with lending(tmp_path) as each:
        assert each.service.readiness().ready
        each.desk.reasons = ("calibrating:gpu0",)
        ready = each.service.readiness()
        assert (ready.ready, ready.reasons) == (False, ("calibrating:gpu0",))
        status = await each.service.status(OPERATOR)
        assert (status.ready, status.reasons) == (False, ("calibrating:gpu0",))
        await each.service.create_session(TENANT, NewSession(prompt=[1], max_new_tokens=1))


async def test_samples_and_events_come_from_the_store(tmp_path: Path) -> None:
    """R128: six hours, even where older ones wait to be pruned."""
    async with lending(tmp_path) as each:
        now = time.time()
        points = [SamplePoint(now - age, "ok", "locked", 3.0, 34.0, False) for age in (22_000, 20_000, 10)]
        event = DeviceEvent(now, "gpu0", "engaged", "pressure")
        await each.world.store.commit(lambda db: add_samples(db, [("gpu0", point) for point in points]))
        await each.world.store.commit(lambda db: add_device_event(db, event))
        assert await each.service.samples(OPERATOR, "gpu0") == points[1:]
        assert await each.service.samples(OPERATOR, "gpu0", now - 60) == points[2:]
        assert await each.service.device_events(OPERATOR, "gpu0") == [event]
        with pytest.raises(SwapdError) as refused:
            await each.service.samples(OPERATOR, "gpu0", float("nan"))
        assert refused.value.code is Code.INVALID_REQUEST


async def test_what_happened_meanwhile_is_for_operators(tmp_path: Path) -> None:
    async with lending(tmp_path) as each:
        doors, now = each.service, time.time()
        with pytest.raises(SwapdError) as refused:
            await doors.activity(TENANT, now)
        assert refused.value.code is Code.OPERATOR_REQUIRED
        with pytest.raises(SwapdError) as refused:
            doors.visit(TENANT)
        assert refused.value.code is Code.OPERATOR_REQUIRED
        await each.world.store.commit(lambda db: add_device_event(db, DeviceEvent(now, "gpu0", "engaged")))
        view = await doors.activity(OPERATOR, now - 3600)
        assert [(one.device, one.pressure_events) for one in view.devices] == [("gpu0", 1)]
        assert doors.visit(OPERATOR) is None


async def test_a_disk_that_cannot_be_read_costs_the_past_and_not_the_present(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages with the owner's buttons are made of `status`; history is refused with a code of its own."""
    async with lending(tmp_path) as each:
        doors, supervisor = each.service, each.world.supervisor
        for worker in ("a", "b"):
            await each.world.session(
                f"on_{worker}", worker
            )  # with nowhere to go, so that the drains stay open
        drains = [await supervisor.start(worker, 60.0, "operator") for worker in ("a", "b")]

        async def unreadable(fn: object) -> object:
            raise sqlite3.DatabaseError("disk I/O error")

        monkeypatch.setattr(each.world.store, "read", unreadable)
        status = await doors.status(OPERATOR)
        assert [view.id for view in status.drains] == [drain.id for drain in reversed(drains)]
        assert [view.name for view in status.devices] == ["gpu0"]
        for past in (
            doors.trend(OPERATOR, "gpu0", 3600.0, 60),
            doors.samples(OPERATOR, "gpu0"),
            doors.device_events(OPERATOR, "gpu0"),
        ):
            with pytest.raises(SwapdError) as refused:
                await past
            assert refused.value.code is Code.DISK_ERROR
