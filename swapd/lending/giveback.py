"""Giving one device back and taking it up again: one actor a device, which follows the verdict.

    hold lost → admission closed, in the same tick → drains of all its workers at once → what can go nowhere
    steps down the ladder → workers ended and collected → the device's memory is back → free in N s
    hold regained → drains of ours cancelled → workers start → ready → admission opens

It is level-triggered: each look compares what should be with what is and does the next thing, so that the
owner may come and go at any moment. `judged` is synchronous and closes admission before it returns; all
that takes time happens in `run`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import trio

from swapd.config import Config
from swapd.device_views import GiveBackView, HeldUp
from swapd.errors import Code, SwapdError
from swapd.lending.cores import OtherCores
from swapd.lending.device import LentDevice
from swapd.lending.diary import Diary
from swapd.lending.leavers import Leavers
from swapd.lending.lifecycle import DeviceChange, change, next_event
from swapd.lending.memory import MemoryReturn
from swapd.lending.reasons import Why
from swapd.lending.storeless import UnsettledMoves, patience_s
from swapd.migration.askers import OWNERS, asks, shortened
from swapd.migration.rehearsal import REBUILDS
from swapd.migration.supervisor import MigrationSupervisor
from swapd.sessions.admission import Admission
from swapd.sessions.recovery import Recovery
from swapd.sessions.table import SessionTable
from swapd.views import DrainOrigin
from swapd.worker.link import WorkerLink

log = logging.getLogger("swapd.lending")

LOOK_EVERY_S: Final = 0.1
"""While something leaves or starts; whatever makes progress wakes the look at once."""
FAILED_S: Final = 1.0
"""Between looks that end in an error."""


class GiveBack:
    """Sole writer of a device's `state` and `give_back`. `boottime` is CLOCK_BOOTTIME."""

    def __init__(
        self,
        device: LentDevice,
        config: Config,
        table: SessionTable,
        admission: Admission,
        recovery: Recovery,
        supervisor: MigrationSupervisor,
        links: Mapping[str, WorkerLink],
        diary: Diary,
        boottime: Callable[[], float],
    ) -> None:
        self.measure_soon: Callable[[], None] = lambda: None
        """Asks for a measurement before the next tick: the memory is looked at."""
        self.other_cores: Callable[[], frozenset[int]] = frozenset
        """Cores of the machine that no owner wants back now, for workers that leave a `cpu` device."""
        self._cores = OtherCores()
        self._device = device
        self._config = config
        self._owner = config.owner
        self._table = table
        self._admission = admission
        self._supervisor = supervisor
        self._links = {name: links[name] for name in device.workers}
        others = [link for name, link in links.items() if name not in device.workers]
        self._leavers = Leavers(device.name, config, table, recovery, supervisor, others)
        self._unsettled = UnsettledMoves(table.store)
        self._diary = diary
        self._boottime = boottime
        self._woken = trio.Event()
        self._empty = False
        self._is_open = False
        self._resumed = False
        self._began_s = 0.0
        self._silent = False
        self._drains: dict[str, str] = {}
        """By worker, those that the owner asks for, alone or with others."""
        self._outlived: list[str] = []
        """Drains of the last run for a wish that ended while the service was down."""
        self._joined: set[str] = set()
        """Workers that have had a drain in this give-back, ours or another's."""
        self._memory = MemoryReturn()
        self._free_s: float | None = None

    # Following the verdict ---------------------------------------------------------------------

    def begin(self, unfinished: GiveBackView | None, *, given_back: bool) -> None:
        """Take up what the last run left, before any worker is looked for.

        `unfinished`: a give-back that was under way. `given_back`: the device was its owner's already.
        """
        verdict = self._device.verdict
        assert verdict is not None, "a device is judged before it is begun"
        for name in self._links:
            self._admission.close(name, "device", self._reason())
        if verdict.hold:
            for name in self._links:
                book = self._supervisor.draining(name)
                if book is not None and asks(book.askers, OWNERS):
                    self._outlived.append(book.id)
            return
        for link in self._links.values():
            link.unwant(self._reason())
        self._device.state = "vacating"
        self._began_s = self._boottime()
        self._silent = given_back and unfinished is None
        if unfinished is not None:
            self._began_s -= max(self._diary.wall() - unfinished.began_at, 0.0)
            self._device.give_back = unfinished
        elif not given_back:
            self._note_begin()

    def judged(self, cause_s: float | None = None) -> None:
        """The verdict is new: follow it as far as that takes no time. Admission is right when this returns.

        `cause_s` is when that happened which it follows from: the reading was taken, the owner asked.
        """
        before = self._device.state
        self._settle(cause_s)
        self.set_doors()
        view = self._device.give_back
        if self._device.state == "vacating" and before != "vacating" and view is not None:
            closed_ms = (self._boottime() - self._began_s) * 1000
            self._device.give_back = msgspec.structs.replace(view, closed_in_ms=round(closed_ms, 3))
            self._diary.give_back(self._device.name, self._device.give_back)
        self._woken.set()
        if self._device.state in ("vacating", "returning"):
            self._table.notify()

    def _settle(self, cause_s: float | None = None) -> None:
        verdict = self._device.verdict
        assert verdict is not None
        while True:
            event = next_event(self._device.state, verdict, empty=self._empty, started=self._started())
            if event is None:
                return
            self._device.state = change(self._device.state, event)
            self._entered(event, cause_s)

    def _entered(self, event: DeviceChange, cause_s: float | None) -> None:
        why = self._why()
        self._device.held_up = None  # no event leaves it on its way to the owner
        match event:
            case "needed":
                self._empty = self._silent = False
                self._drains.clear()
                self._joined.clear()
                self._memory.begin()
                self._free_s = None
                now = self._boottime()
                self._began_s = min(cause_s, now) if cause_s is not None else now
                self._note_begin()
            case "emptied":
                self._finish()
                if self._owner.release == "stop":
                    self._cores.forget()
            case "released":
                self._empty = self._resumed = False
                self._diary.note(self._device.name, "returning")
            case "opened":
                self._diary.note(self._device.name, "lent")
            case "closed":
                self._diary.note(self._device.name, "refused", why)
            case "started":
                pass

    def _note_begin(self) -> None:
        at = self._diary.wall() - (self._boottime() - self._began_s)
        self._device.give_back = GiveBackView(self._why() or "", at, None, ())
        self._diary.give_back(self._device.name, self._device.give_back)
        self._diary.note(self._device.name, "vacating", self._why())

    def _finish(self) -> None:
        """Free: measured, told and written down (B17)."""
        view = self._device.give_back
        if self._silent or view is None:
            return
        free_s = self._free_s if self._free_s is not None else self._boottime()
        seconds = round(max(free_s - self._began_s, 0.0), 3)
        view = self._device.give_back = msgspec.structs.replace(view, free_in_s=seconds)
        self._diary.give_back(self._device.name, view)
        self._diary.note(self._device.name, "free", view.why, seconds)
        if view.memory_back is not False:
            for drain in view.drains:
                self._supervisor.cleared(drain, ago_s=max(self._boottime() - free_s, 0.0))

    def set_doors(self) -> None:
        """Let new sessions in while the device is lent, and tell why while it is not."""
        was_open = self._is_open
        self._is_open = self._device.state == "lent"
        for name in self._links:
            if self._is_open:
                self._admission.reopen(name, "device")
            else:
                self._admission.close(name, "device", self._reason())
        if self._is_open and not was_open:
            self._table.notify()

    def _why(self) -> str | None:
        verdict = self._device.verdict
        return str(verdict.reasons[0]) if verdict is not None and verdict.reasons else None

    def _reason(self) -> str:
        verdict = self._device.verdict
        told = "its workers are starting" if verdict is None or verdict.admit else verdict.sentence
        return f"device {self._device.name}: {told}"

    def _started(self) -> bool:
        return self._resumed and (
            not self._links or any(link.state == "ready" for link in self._links.values())
        )

    # The actor ---------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do what the state asks for, until cancelled. Cancelled: workers and drains stay as they are."""
        task_status.started()
        while True:
            self._woken = trio.Event()
            state = self._device.state
            try:
                while self._outlived:
                    await self._supervisor.leave(self._outlived.pop(), OWNERS)
                if state == "vacating":
                    await self._vacate()
                elif state == "returning":
                    await self._return()
            except SwapdError as error:
                # The store failed meanwhile: the next look goes on without it.
                log.error("giving back is held up", extra={"device": self._device.name, "code": error.code})
                await trio.sleep(FAILED_S)
            self._settle()
            self.set_doors()
            if self._device.state != state:
                continue
            if state in ("vacating", "returning"):
                await self._table.wait_activity(LOOK_EVERY_S)
            else:
                await self._woken.wait()

    async def _return(self) -> None:
        self._joined.clear()
        while self._drains:
            _, drain = self._drains.popitem()
            await self._supervisor.leave(drain, OWNERS)  # over already: unchanged
        if self._device.state != "returning":
            return  # the owner came back meanwhile
        if all(link.at_rest for link in self._links.values()):
            self._memory.remember(self._device.measurement)
        for link in self._links.values():
            link.resume()
        self._cores.bring_back()
        self._resumed = True

    async def _vacate(self) -> None:
        why = self._reason()
        stops = self._owner.release == "stop"
        if stops:
            for link in self._links.values():
                link.unwant(why)
        if self._device.config.kind == "cpu":
            for link in self._links.values():
                if link.pid is not None:
                    self._cores.send(link.pid, self.other_cores())
        if self._table.store.failed:
            await self._vacate_without_store(why)
            return
        await self._drain_all()
        vacated = True
        for name, link in self._links.items():
            sessions = self._leavers.left(name)
            if sessions or self._supervisor.draining(name) is not None:
                vacated = False
                for session in sessions:
                    await self._leavers.step(session, self._boottime() - self._began_s)
            elif stops and self._device.state == "vacating":
                self._memory.expect(self._device.measurement)
                link.stop_soon(why)
        if self._device.state != "vacating" or not vacated:
            return
        if not stops:
            self._empty = True
        elif all(link.at_rest for link in self._links.values()):
            self._empty = self._is_free()

    async def _vacate_without_store(self, why: str) -> None:
        """End the workers that may be ended (`swapd.lending.storeless`), and tell of those that may not."""
        unsettled = await self._unsettled.workers()
        if self._device.state != "vacating":
            return  # the owner gave it back meanwhile
        now = self._boottime()
        ends_at_s = self._began_s + patience_s(self._owner)
        stays: list[str] = []
        for name, link in self._links.items():
            if link.at_rest:
                continue
            unknown = unsettled is None or name in unsettled
            sessions = bool(self._leavers.left(name))
            if unknown or (sessions and now < ends_at_s):
                stays.append(name)
            elif sessions or self._owner.release == "stop":
                self._memory.expect(self._device.measurement)
                link.stop_soon(why)
        self._tell_held_up(stays, unsettled, ends_at_s - now)
        if all(link.at_rest for link in self._links.values()):
            self._empty = self._is_free()
        elif self._owner.release == "keep":
            rests = [link.at_rest or not self._leavers.left(name) for name, link in self._links.items()]
            self._empty = not stays and all(rests)

    def _tell_held_up(self, stays: list[str], unsettled: frozenset[str] | None, left_s: float) -> None:
        if not stays:
            self._device.held_up = None
            return
        if self._device.held_up is None:
            extra = {"device": self._device.name, "workers": stays, "code": Code.STORE_FAILED}
            log.error("giving back is held up", extra=extra)
        unknown = unsettled is None or not unsettled.isdisjoint(stays)
        processes = {name: pid for name in stays if (pid := self._links[name].pid) is not None}
        at = None if unknown else self._diary.wall() + left_s
        self._device.held_up = HeldUp(at, processes)

    def _is_free(self) -> bool:
        """All processes are collected; True when the memory is back, cannot be told, or was waited for."""
        if self._memory.gone_s is None:
            self.measure_soon()
        found = self._memory.look(self._device.measurement, self._boottime())
        view = self._device.give_back
        if found is not None and view is not None and not self._silent:
            self._free_s = found.free_s
            self._device.give_back = msgspec.structs.replace(view, memory_back=found.back)
        return found is not None

    async def _drain_all(self) -> None:
        """Have a drain at every worker that has anything; one that is there already is joined (B16)."""
        origin: DrainOrigin = "take_back_now" if self._why() == Why.TAKEN_BACK else "owner_pressure"
        reason = shortened(self._reason())
        async with trio.open_nursery() as nursery:
            for name in self._links:
                book = self._supervisor.draining(name)
                if book is not None and book.mode in REBUILDS:
                    # It rebuilds only; a native move loses nothing.
                    nursery.start_soon(self._supervisor.cancel, book.id)
        begin = []
        for name, link in self._links.items():
            book = self._supervisor.draining(name)
            if book is not None:
                await self._supervisor.join(book.id, origin, reason)
                self._adopt(name, book.id)
            elif self._leavers.left(name) or (name not in self._joined and link.owner is not None):
                begin.append(name)
        if not begin:
            return
        try:
            views = await self._supervisor.start_all(
                begin, self._config.drain_deadline_s, origin, reason=reason
            )
        except SwapdError as error:
            if error.code is not Code.DRAIN_EXISTS:
                raise
            return  # somebody else began one meanwhile: the next look joins it
        for view in views:
            self._adopt(view.worker, view.id)

    def _adopt(self, worker: str, drain: str) -> None:
        self._drains[worker] = drain
        self._joined.add(worker)
        view = self._device.give_back
        if view is not None and not self._silent and drain not in view.drains:
            self._device.give_back = msgspec.structs.replace(view, drains=(*view.drains, drain))
            self._diary.give_back(self._device.name, self._device.give_back)
