"""The real sampler process over the real bindings: a driver hangs, crashes, loses a card, and comes back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swapd.config import DeviceConfig
from tests.devices.fake_nvml import LOST, FakeCard, FakeNvml, FakeUse
from tests.devices.test_link import HANGS_S, Heard, running

pytestmark = pytest.mark.timeout(120)

CARD = FakeCard(util=50)
DEVICES = (DeviceConfig("one", "nvml", selector=CARD.uuid),)


@pytest.fixture
def driver(fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """This process is the coordinator, and so a lender, with 40 of the 50 % that the card is used."""
    for name in ("LD_LIBRARY_PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, fake_nvml.env()[name])
    fake_nvml.set(devices=[FakeCard(util=50, uses=[FakeUse(os.getpid(), sm=40)])])
    return fake_nvml


async def test_a_hanging_driver_fails_the_readings_until_it_answers(folder: Path, driver: FakeNvml) -> None:
    """R21: and row 19; the process is killed in the call."""
    heard = Heard()
    async with running(folder, heard, kind="nvml", devices=DEVICES, deadline_s=HANGS_S) as link:
        assert (await heard.result("ok")).reading_pct == 10.0
        driver.set(hang={"nvmlDeviceGetProcessUtilization": 60.0})
        failed = await heard.result("failed")
        assert (failed.reading_pct, failed.reason) == (None, "GPU driver not answering")
        driver.set(hang={})
        assert (await heard.result("ok")).reading_pct == 10.0
        assert link.statistics().abandoned == 0


async def test_a_crashing_driver_takes_only_its_sampler_with_it(folder: Path, driver: FakeNvml) -> None:
    """R21: and row 16."""
    heard = Heard()
    async with running(folder, heard, kind="nvml", devices=DEVICES) as link:
        await heard.result("ok")
        driver.set(crash=["nvmlDeviceGetUtilizationRates"])
        assert (await heard.result("failed")).reason == "the sampler process ended"
        driver.set(crash=[])
        await heard.result("ok")
        assert link.statistics().ended >= 1


async def test_a_lost_card_comes_back_in_the_same_process(folder: Path, driver: FakeNvml) -> None:
    """R21: and rows 17, 18 and 21."""
    heard = Heard()
    async with running(folder, heard, kind="nvml", devices=DEVICES) as link:
        await heard.result("ok")
        driver.card(fails=LOST)
        assert "lost" in ((await heard.result("failed")).reason or "")
        driver.card(fails=None)
        await heard.result("first")
        assert (await heard.result("ok")).uuid == CARD.uuid
        assert link.statistics().starts == 1
