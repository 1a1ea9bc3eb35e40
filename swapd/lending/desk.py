"""All lent devices of one coordinator: whoever asks about a device or wants it back comes here.

    attendance, game, readings, quiet hours, the owner's word → facts → verdict → the device's give-back

A device is judged again whenever one of its facts changes, and by a ticker for what only time changes.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from swapd.config import Config
from swapd.device_views import GiveBackView, TakeBack, TakenBack
from swapd.errors import Code, SwapdError
from swapd.lending.device import LentDevice
from swapd.lending.diary import Diary
from swapd.lending.facts import FactBook
from swapd.lending.giveback import GiveBack
from swapd.lending.reasons import Why
from swapd.lending.refusing import refusal_of, unready_of
from swapd.lending.take_back import check_take_back
from swapd.lending.verdict import NEEDS, Quiet, needed
from swapd.messages.sampler import Measurement
from swapd.migration.supervisor import MigrationSupervisor
from swapd.pressure.calibration import DevicePressure
from swapd.pressure.reading import Attendance, Decision
from swapd.sessions.admission import Admission
from swapd.sessions.recovery import Recovery
from swapd.sessions.table import SessionTable
from swapd.store.devices import device_events, last_give_back, load_take_backs, save_take_back
from swapd.worker.link import WorkerLink

log = logging.getLogger("swapd.lending")

TICK_S: Final = 0.5
"""How soon what only time changes is noticed: the end of a rest, of quiet hours, of a take-back."""
RESTART_S: Final = 1.0
EVENTS_READ: Final = 50

Source = Callable[..., Awaitable[None]]
"""An actor that tells the desk of facts; `run(task_status)`."""


def boottime_s() -> float:
    """CLOCK_BOOTTIME: runs through suspend and never goes back (D5)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _Saved(NamedTuple):
    taken_back: TakenBack | None
    give_back: GiveBackView | None
    given_back: bool
    """Whether the device was its owner's, or on the way there, when it was last written of."""


class LendingDesk:
    """Owns the devices' actors. `run` is its task; the rest may be called from any task of the service."""

    devices: dict[str, LentDevice]

    def __init__(
        self,
        config: Config,
        table: SessionTable,
        admission: Admission,
        recovery: Recovery,
        supervisor: MigrationSupervisor,
        links: dict[str, WorkerLink],
        *,
        sources: Sequence[Source] = (),
        quiet: Callable[[], Quiet] = Quiet,
        wall: Callable[[], float] = time.time,
        boottime: Callable[[], float] = boottime_s,
    ) -> None:
        self.devices = {}
        self.sources = list(sources)
        """What is watched for the devices; started by `run`."""
        self.measure_soon: Callable[[LentDevice], None] = lambda device: None
        self.pressure_text: Callable[[Decision], str | None] = lambda decision: None
        self._config = config
        self._owner = config.owner
        self._store = table.store
        self._table = table
        self._admission = admission
        self._recovery = recovery
        self._supervisor = supervisor
        self._links = links
        self.quiet = quiet
        self._wall = wall
        self._boottime = boottime
        self.diary = Diary(table.store, wall)
        self._give_backs: dict[str, GiveBack] = {}
        self._facts = FactBook(config.owner, wall, boottime)
        self._was_locked: set[str] = set()
        headless = config.owner.presence == "headless"
        for entry in config.devices:
            workers = tuple(w.worker_id for w in config.workers if w.device == entry.name)
            pressure = (
                DevicePressure(self._owner.gpu_pressure, headless=headless)
                if self._owner.gpu_pressure.enabled
                else None
            )
            self.devices[entry.name] = LentDevice(entry, workers, pressure)

    # What others ask -----------------------------------------------------------------------------

    def device(self, name: str) -> LentDevice:
        """Raises `device_unknown`."""
        found = self.devices.get(name)
        if found is None:
            raise SwapdError(
                Code.DEVICE_UNKNOWN, f"the devices are {', '.join(sorted(self.devices)) or 'none'}"
            )
        return found

    async def take_back(self, name: str, request: TakeBack) -> None:
        """Close at once, then write it down, then let what runs leave. Raises `invalid_request`.

        Cancelled: it is taken back all the same. With `store_failed`, too, until swapd is started again.
        """
        asked_s = self._boottime()
        device = self.device(name)
        request = check_take_back(request)
        until = request.until or "told"
        if until == "unlock" and self._owner.presence == "headless":
            raise SwapdError(
                Code.INVALID_REQUEST,
                'a headless machine has no screen that is unlocked; use for_s, or until = "told"',
            )
        now = self._wall()
        taken = TakenBack(now, until, None if request.for_s is None else now + request.for_s)
        device.taken_back = taken
        self._was_locked.discard(name)
        if device.attendance == "locked":
            self._was_locked.add(name)
        self._judge(device, asked_s)
        self.diary.note(name, "taken_back", until, request.for_s)
        await self._save(name, taken)

    async def lend(self, name: str) -> None:
        """End a take-back; none in force: nothing changes. Cancelled: it is ended all the same."""
        device = self.device(name)
        if device.taken_back is not None:
            self._end_take_back(device, "told")
            await self._save(name, None)

    def refusal(self) -> tuple[Code, str, float | None] | None:
        """What to tell a client when no worker admits because of devices: code, reason, Retry-After."""
        return refusal_of(self.devices.values())

    def unready(self) -> Sequence[str]:
        """Reasons for `/readyz` (R61, D11), each `<why>:<device>`; none where all devices are lent."""
        return unready_of(self.devices.values())

    def lenders(self) -> Sequence[int]:
        """Processes whose load is not the owner's: the workers, each with its children (D24)."""
        return [link.pid for link in self._links.values() if link.pid is not None]

    # The actors ----------------------------------------------------------------------------------

    async def load(self) -> None:
        """Take up what the last run left, before any worker is looked for or started."""
        if not self.devices:
            return
        self._facts.quiet = self.quiet()
        saved = await self._store.read(lambda db: {name: _saved(db, name) for name in self.devices})
        for name, device in self.devices.items():
            was = saved[name]
            device.taken_back, device.give_back = was.taken_back, was.give_back
            if was.given_back and was.give_back is not None and was.give_back.why in _RESTS:
                # Whether the owner still needs it will show; until then it rests as after a need.
                self._facts.needed(name)
            give_back = GiveBack(
                device,
                self._config,
                self._table,
                self._admission,
                self._recovery,
                self._supervisor,
                self._links,
                self.diary,
                self._boottime,
            )
            give_back.measure_soon = partial(self._measure_soon, device)
            give_back.other_cores = self._other_cores
            device.verdict = self._facts.verdict(device)
            unfinished = was.give_back if was.given_back and _under_way(was.give_back) else None
            give_back.begin(unfinished, given_back=was.given_back)
            self._give_backs[name] = give_back
            give_back.judged()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Samplers, attendance, trackers, give-backs, until cancelled; saves what was learned at the end."""
        async with trio.open_nursery() as nursery:
            if self.devices:
                for name, give_back in self._give_backs.items():
                    nursery.start_soon(self.keep, f"give-back of {name}", give_back.run)
                for source in self.sources:
                    await nursery.start(source)
                nursery.start_soon(self.keep, "ticker", self._tick)
            task_status.started()

    def _other_cores(self) -> frozenset[int]:
        """Cores that this service may use and no owner wants back."""
        taken = {
            core
            for device in self.devices.values()
            if device.state in ("vacating", "free")
            for core in device.config.cores
        }
        return frozenset(os.sched_getaffinity(0) - taken)

    def _measure_soon(self, device: LentDevice) -> None:
        self.measure_soon(device)

    async def keep(self, part: str, run: Callable[[], Awaitable[None]]) -> None:
        """A defect in one device's actor must not end the service: it is told, and the actor starts anew."""
        while True:
            try:
                await run()
            except Exception:  # the supervision boundary of the lending actors
                log.exception("lending actor crashed", extra={"kind": part})
            await trio.sleep(RESTART_S)

    async def _tick(self) -> None:
        while True:
            self._facts.quiet = self.quiet()
            for device in self.devices.values():
                taken = device.taken_back
                if taken is not None and taken.ends_at is not None and self._wall() >= taken.ends_at:
                    self._take_back_over(device, "time")
                else:
                    self._judge(device)
            await trio.sleep(TICK_S)

    # Facts ---------------------------------------------------------------------------------------

    def attendance_changed(self, attendance: Attendance, detail: str | None) -> None:
        """The owner came or went; also ends take-backs that last until the screen is unlocked."""
        for name, device in self.devices.items():
            device.attendance, device.attendance_detail = attendance, detail
            if attendance == "locked":
                self._was_locked.add(name)
            taken, unlocks = device.taken_back, attendance == "unlocked" and name in self._was_locked
            if unlocks and taken is not None and taken.until == "unlock":
                self._take_back_over(device, "unlock")
            if attendance == "unlocked":
                self._was_locked.discard(name)
            self._judge(device)

    def game_changed(self, game: bool) -> None:
        """A game of the owner began or ended."""
        for device in self.devices.values():
            device.game = game
            self._judge(device)

    def decided(self, device: LentDevice, measurement: Measurement, decision: Decision) -> None:
        """A tracker took a measurement in: the device's own fields are written already."""
        text = self.pressure_text(decision)
        self._facts.measured(device.name, measurement, text)
        was = device.verdict
        self._judge(device, measurement.at_s)
        engaged = was is not None and Why.PRESSURE in was.reasons
        if decision.engaged != engaged:
            self.diary.note(device.name, "engaged" if decision.engaged else "released", text)
        self._table.notify()

    def _judge(self, device: LentDevice, cause_s: float | None = None) -> None:
        give_back = self._give_backs.get(device.name)
        if give_back is None:
            return  # not loaded yet
        before, device.verdict = device.verdict, self._facts.verdict(device)
        if needed(device.verdict):
            self._facts.needed(device.name)
        if before is None or before[:3] != device.verdict[:3]:
            give_back.judged(cause_s)
        else:
            give_back.set_doors()

    # Take-backs ----------------------------------------------------------------------------------

    def _take_back_over(self, device: LentDevice, how: str) -> None:
        """It ends by itself, and no other device waits while that is written down."""
        self._end_take_back(device, how)
        self._store.post(lambda db: save_take_back(db, device.name, None), lambda _: None)

    def _end_take_back(self, device: LentDevice, how: str) -> None:
        device.taken_back = None
        self.diary.note(device.name, "take_back_ended", how)
        self._judge(device)

    async def _save(self, name: str, taken: TakenBack | None) -> None:
        # Shielded, one disk write long: what is in force here must be in the store, too.
        try:
            with trio.CancelScope(shield=True):
                await self._store.commit(lambda db: save_take_back(db, name, taken))
        except SwapdError as error:
            told = "it is taken back" if taken is not None else "it is no longer taken back"
            raise SwapdError(error.code, f"{name}: {told}, until swapd is started again") from error


_RESTS: Final = NEEDS | {Why.RESUMING}
_GIVEN_BACK: Final = frozenset({"vacating", "free"})
_STATES: Final = frozenset({"vacating", "free", "returning", "lent", "refused"})


def _saved(db: sqlite3.Connection, name: str) -> _Saved:
    kinds = [event.kind for event in device_events(db, name, EVENTS_READ) if event.kind in _STATES]
    given_back = bool(kinds) and kinds[0] in _GIVEN_BACK
    return _Saved(load_take_backs(db).get(name), last_give_back(db, name), given_back)


def _under_way(view: GiveBackView | None) -> bool:
    return view is not None and view.free_in_s is None
