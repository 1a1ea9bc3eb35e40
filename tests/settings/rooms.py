"""A real keeper over a real file and a real store, as a running service has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import trio

from swapd.config import Config
from swapd.config_file import parse_config
from swapd.device_views import SamplePoint
from swapd.lending.device import LentDevice
from swapd.pressure.calibration import DevicePressure
from swapd.settings.keeper import SettingsKeeper
from swapd.settings.views import SettingsChange
from swapd.store.devices import add_samples
from swapd.store.writer import Store
from tests.settings.files import GOOD

NOW = 2e9


class Room(NamedTuple):
    keeper: SettingsKeeper
    path: Path
    config: Config
    store: Store
    device: LentDevice

    async def change(self, **values: str) -> SettingsChange:
        return SettingsChange(values, (await self.keeper.view()).digest)

    def parsed(self) -> Config:
        return parse_config(self.path.read_text(), folder=self.path.parent, name="swapd.toml")


@asynccontextmanager
async def room(tmp_path: Path, text: str = GOOD, *, replay_deadline_s: float = 30.0) -> AsyncIterator[Room]:
    path = tmp_path / "swapd.toml"
    path.write_text(text)
    path.chmod(0o600)
    config = parse_config(text, folder=tmp_path, name=path.name)
    store = Store.open(config.database_path)
    device = LentDevice(config.devices[0], ("a",), DevicePressure(config.owner.gpu_pressure))
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        keeper = SettingsKeeper(
            config,
            path,
            store,
            {device.name: device},
            wall=lambda: NOW,
            replay_deadline_s=replay_deadline_s,
        )
        yield Room(keeper, path, config, store, device)
        nursery.cancel_scope.cancel()
    store.close()


async def fill(at: Room, *values: float) -> None:
    points = [
        (
            "cpu0",
            SamplePoint(NOW - 5.0 * (len(values) - number), "ok", "unlocked", value, 25.0, engaged=False),
        )
        for number, value in enumerate(values)
    ]
    await at.store.commit(lambda db: add_samples(db, points))
