"""Devices over the ops socket: the views of the service, and its refusals with all they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from swapd.device_views import DeviceEvent, SamplePoint, TakeBack
from swapd.errors import Code, SwapdError
from swapd.ops.client import open_ops
from tests.lent_devices import lent_device
from tests.ops.test_ops_server import folder, request, running

__all__ = ["folder"]


async def test_devices_are_looked_at_taken_back_and_lent(folder: Path) -> None:
    async with running(folder) as bench, open_ops(folder) as client:
        bench.service.lent = {"gpu0": lent_device("gpu0")}
        bench.service.points = [SamplePoint(10.0, "ok", "locked", 3.0, 34.0, False)]
        bench.service.happened = [DeviceEvent(1.0, "gpu0", "engaged", "pressure")]
        assert await client.devices() == (lent_device("gpu0"),)
        assert await client.device("gpu0") == lent_device("gpu0")
        assert (await client.take_back("gpu0", TakeBack(for_s=60.0))).state == "vacating"
        await client.take_back("gpu0")
        assert bench.service.taken == [("gpu0", TakeBack(60.0, "time")), ("gpu0", TakeBack(until="told"))]
        assert (await client.lend("gpu0")).state == "lent"
        assert await client.samples("gpu0") == tuple(bench.service.points)
        assert await client.samples("gpu0", 11.0) == ()
        assert await client.device_events("gpu0") == tuple(bench.service.happened)
        assert await client.metrics() == "swapd_ready 1.0\n"


async def test_the_status_has_the_devices_beside_all_that_it_had(folder: Path) -> None:
    """R62"""
    async with running(folder) as bench, open_ops(folder) as client:
        bench.service.lent = {"gpu0": lent_device("gpu0")}
        status = await client.status()
        assert status.devices == (lent_device("gpu0"),)
        assert (status.ready, status.reasons, status.consent) == (True, (), True)
        assert status.readiness.ready
        assert [worker.id for worker in status.workers] == ["a", "b"]


async def test_a_device_that_is_not_there_is_refused(folder: Path) -> None:
    async with running(folder), open_ops(folder) as client:
        with pytest.raises(SwapdError) as caught:
            await client.take_back("gpu9")
        assert caught.value.code is Code.DEVICE_UNKNOWN


async def test_a_refusal_keeps_when_to_come_back(folder: Path) -> None:
    """R60"""
    async with running(folder) as bench, open_ops(folder) as client:
        bench.service.failing = SwapdError(Code.DEVICE_CALIBRATING, "gpu0", 185.0)
        with pytest.raises(SwapdError) as caught:
            await client.create_session(request())
        assert (caught.value.code, caught.value.retry_after_s) == (Code.DEVICE_CALIBRATING, 185.0)
