"""The link over the real bindings, with a driver that hangs, crashes and loses its card."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio

from swapd.config import DeviceConfig
from tests.devices.fake_nvml import LOST, FakeNvml
from tests.devices.test_link import HANGS_S, WAIT_S, Heard, alive, files, pid_of, running

GPU = (DeviceConfig("gpu", "nvml", selector="0"),)
HANG = "nvmlDeviceGetProcessUtilization"


@pytest.fixture
def driver(fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """What samplers that are started from now on find as their driver."""
    for name, value in fake_nvml.env().items():
        monkeypatch.setenv(name, value)
    return fake_nvml


async def test_a_driver_that_hangs_fails_its_own_readings_only_and_recovers(
    driver: FakeNvml, folder: Path
) -> None:
    """A 60 s hang: the GPU's readings fail, those of other devices go on; nobody restarts swapd."""
    gpu, cpu = Heard(), Heard()
    async with (
        running(folder, cpu),
        running(folder, gpu, kind="nvml", devices=GPU, deadline_s=HANGS_S) as link,
    ):
        await gpu.result("ok", "gpu")
        hung = await pid_of(link)
        driver.set(hang={HANG: 60.0})
        failed = await gpu.result("failed", "gpu")
        assert failed.reason == "GPU driver not answering"
        await cpu.result("ok")
        await gpu.result("failed", "gpu")
        assert not alive(hung)
        driver.set(hang={})
        await gpu.result("ok", "gpu")
        assert link.statistics().unanswered >= 1
        assert link.statistics().ended == 0
    assert {each.result for each in cpu.of("one")} <= {"first", "ok", "invalid"}


async def test_a_driver_that_takes_its_process_down_takes_nothing_else(
    driver: FakeNvml, folder: Path
) -> None:
    gpu = Heard()
    async with running(folder, gpu, kind="nvml", devices=GPU) as link:
        await gpu.result("ok", "gpu")
        driver.set(crash=[HANG])
        failed = await gpu.result("failed", "gpu")
        assert failed.reason == "the sampler process ended"
        driver.set(crash=[])
        await gpu.result("ok", "gpu")
        assert link.statistics().ended >= 1


async def test_a_lost_gpu_that_comes_back_is_read_again_by_the_same_process(
    driver: FakeNvml, folder: Path
) -> None:
    gpu = Heard()
    async with running(folder, gpu, kind="nvml", devices=GPU) as link:
        await gpu.result("ok", "gpu")
        before = await pid_of(link)
        driver.card(fails=LOST)
        await gpu.result("failed", "gpu")
        driver.card(fails=None)
        await gpu.result("ok", "gpu")
        assert await pid_of(link) == before
        assert link.statistics().starts == 1


async def test_a_sampler_ends_when_it_is_told_to_while_its_driver_hangs(
    driver: FakeNvml, folder: Path
) -> None:
    """The thread that waits in the driver is not the one that hears the signal."""
    gpu = Heard()
    async with running(folder, gpu, kind="nvml", devices=GPU, deadline_s=WAIT_S) as link:
        await gpu.result("ok", "gpu")
        pid = await pid_of(link)
        driver.record()
        driver.set(hang={HANG: 600.0})
        with trio.fail_after(WAIT_S):
            while HANG not in driver.calls():  # noqa: ASYNC110  # another process's call
                await trio.sleep(0.02)
        os.kill(pid, signal.SIGTERM)
        await gpu.result("failed", "gpu")
        assert not alive(pid)
        assert link.statistics().ended == 1
        driver.set(hang={})
    assert files(folder) == ["sampler-nvml.log"]
