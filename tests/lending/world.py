"""Lent devices without samplers: a coordinator of scripted workers, and readings that the test feeds by hand.

Time is the test's: `clock` is boot time and wall clock at once, and moves when the test says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import trio

from swapd.config import DeviceConfig, OwnerConfig, PressureConfig, WorkerConfig
from swapd.device_views import DeviceEvent, GiveBackView
from swapd.lending.desk import LendingDesk
from swapd.lending.device import LentDevice
from swapd.lending.verdict import Quiet
from swapd.messages.sampler import Measurement
from swapd.pressure.reading import Reading
from swapd.store.devices import device_events, last_give_back
from tests.migration.world import World, open_world

OWNER = OwnerConfig(
    consent=True,
    presence="headless",
    gpu_pressure=PressureConfig(mode="fixed", threshold_pct=30.0),
)
POLL_S = 5.0


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Lending:
    """A desk over a world. Device `of_a` has worker a, `of_b` worker b."""

    def __init__(self, world: World, desk: LendingDesk, clock: Clock) -> None:
        self.world = world
        self.desk = desk
        self.clock = clock
        self.quiet = Quiet()

    @property
    def a(self) -> LentDevice:
        return self.desk.devices["of_a"]

    @property
    def b(self) -> LentDevice:
        return self.desk.devices["of_b"]

    def feed(self, device: LentDevice, reading: Reading, **measured: Any) -> None:
        """One reading, as its tracker would take it, at the clock's time."""
        good = isinstance(reading, float)
        measurement = Measurement(
            device=device.name,
            result="ok" if good else "failed",
            at_s=self.clock.now,
            reading_pct=reading if isinstance(reading, float) else None,
        )
        device.measurement = msgspec.structs.replace(measurement, **measured)
        if good:
            device.valid_at_s = self.clock.now
        assert device.pressure is not None
        device.decision = device.pressure.observe(self.clock.now, reading, device.attendance)
        self.desk.decided(device, device.measurement, device.decision)

    def feed_for(self, seconds: float, a: Reading = 5.0, b: Reading = 5.0) -> None:
        """Readings of both devices every `POLL_S`."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += POLL_S
            self.feed(self.a, a)
            if "of_b" in self.desk.devices:
                self.feed(self.b, b)

    async def until(self, true: Callable[[], bool]) -> None:
        await self.world.until(true)

    async def until_state(self, device: LentDevice, state: str) -> None:
        await self.until(lambda: device.state == state)

    async def events(self, device: LentDevice) -> Sequence[DeviceEvent]:
        """Oldest first."""
        found = await self.world.store.commit(lambda db: device_events(db, device.name, 100))
        return list(reversed(found))

    async def kinds(self, device: LentDevice) -> list[str]:
        return [event.kind for event in await self.events(device)]

    async def stored_give_back(self, device: LentDevice) -> GiveBackView | None:
        return await self.world.store.commit(lambda db: last_give_back(db, device.name))


@asynccontextmanager
async def lending(
    path: Path,
    owner: OwnerConfig = OWNER,
    *,
    lent: bool = True,
    devices: Sequence[str] = ("of_a", "of_b"),
    prepare: Callable[[World], None] = lambda world: None,
    clock: Clock | None = None,
    workers: Mapping[str, str] = {},
    **changes: Any,
) -> AsyncIterator[Lending]:
    """A running desk. `lent`: the owner is known and idle, so that both devices are lent.

    `workers`: more of them than a and b, and the device of each.
    """
    places = {"a": "of_a", "b": "of_b", **workers}
    known = [WorkerConfig(worker_id=name, engine="sim", device=device) for name, device in places.items()]
    entries = tuple(DeviceConfig(name=name, kind="cpu", cores=(0,)) for name in devices)
    async with open_world(path, known, devices=entries, owner=owner, **changes) as world:
        prepare(world)
        clock = clock or Clock()
        desk = LendingDesk(
            world.config,
            world.table,
            world.admission,
            world.recovery,
            world.supervisor,
            world.links,
            wall=clock,
            boottime=clock,
        )
        made = Lending(world, desk, clock)
        desk.quiet = lambda: made.quiet
        await desk.load()
        async with trio.open_nursery() as nursery:
            await nursery.start(desk.run)
            if lent:
                desk.attendance_changed("unlocked", None)
                made.feed_for(POLL_S)
                assert all(device.state == "lent" for device in desk.devices.values())
            yield made
            nursery.cancel_scope.cancel()
