"""Keeps watching for the owner: who reads, what happens when reading ends, and what was seen last.

Each part, logind and GameMode, runs until its bus is lost or it crashes; then nothing is known, and it
starts again after a growing delay. Neither ends the other, nor the service.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import trio

from swapd.attendance.bus import BusLost, BusPlaces, bus_places
from swapd.attendance.gamemode import GameModeReader
from swapd.attendance.headless import HEADLESS
from swapd.attendance.logind import LogindReader
from swapd.attendance.rules import BUS_LOST, FAILED, NO_ANSWER, NO_BUS, NOT_READ, Seen
from swapd.attendance.timings import Timings
from swapd.config import OwnerConfig
from swapd.pressure.reading import Attendance

log = logging.getLogger("swapd.attendance")

REAL_TIMINGS: Final = Timings()


class AttendanceStatistics(msgspec.Struct, frozen=True):
    """Counts since the start; `changes` of attendance, `losses` of a bus, `crashes` of a part."""

    attendance: Attendance
    detail: str
    game: bool
    reads: int
    signals: int
    changes: int
    losses: int
    crashes: int


class AttendanceWatch:
    """Whether the owner is at the machine, and plays. `run` is its task; all else is read at any time.

    `on_change` is called when the attendance or its detail changes, `on_game` when a game comes or goes; both
    in the task of `run`, and they must not block. What they raise is logged and ends nothing.
    """

    def __init__(
        self,
        owner: OwnerConfig,
        on_change: Callable[[Attendance, str], None],
        on_game: Callable[[bool], None],
        places: BusPlaces | None = None,
        timings: Timings = REAL_TIMINGS,
    ) -> None:
        self._owner = owner
        self._on_change = on_change
        self._on_game = on_game
        self._timings = timings
        places = places or bus_places(os.environ, os.getuid())
        self._logind = LogindReader(places.system, timings, self._see)
        self._gamemode = GameModeReader(places.session, timings, self._play)
        self._seen = NOT_READ
        self.game = False
        self._changes = self._losses = self._crashes = 0

    @property
    def attendance(self) -> Attendance:
        return self._seen.attendance

    @property
    def detail(self) -> str:
        return self._seen.detail

    def statistics(self) -> AttendanceStatistics:
        return AttendanceStatistics(
            attendance=self.attendance,
            detail=self.detail,
            game=self.game,
            reads=self._logind.reads + self._gamemode.reads,
            signals=self._logind.signals + self._gamemode.signals,
            changes=self._changes,
            losses=self._losses,
            crashes=self._crashes,
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch for ever. Starting waits for no bus: until the first read, attendance is unknown."""
        headless = self._owner.presence == "headless"
        if headless:
            self._see(HEADLESS)
        async with trio.open_nursery() as nursery:
            if not headless:
                nursery.start_soon(self._keep, "logind", self._logind.run, self._logind_down)
            if self._owner.gamemode:
                nursery.start_soon(self._keep, "gamemode", self._gamemode.run, self._gamemode_down)
            task_status.started()

    # Supervision -----------------------------------------------------------------------------

    async def _keep(
        self,
        source: str,
        part: Callable[[], Awaitable[None]],
        on_down: Callable[[BusLost | None], None],
    ) -> None:
        delay_s = self._timings.backoff_first_s
        told: str | None = None
        while True:
            began = trio.current_time()
            lost: BusLost | None = None
            crashed: BaseException | None = None
            try:
                await part()
            except* BusLost as group:
                lost = _first(group)
            # The supervision boundary of a part: a bug in one makes attendance unknown and ends nothing.
            except* Exception as group:
                crashed = group
            if crashed is not None:
                self._crashes += 1
                log.error("attendance part crashed", exc_info=crashed, extra={"source": source})
                lost = None
            elif lost is not None:
                self._losses += 1
                # A machine without that bus stays so: told once, not at every attempt.
                if lost.reason != told:
                    log.info("bus is not available", extra={"source": source, "reason": lost.reason})
            told = lost.reason if lost is not None else None
            on_down(lost)
            if trio.current_time() - began > self._timings.backoff_max_s:
                delay_s = self._timings.backoff_first_s
            await trio.sleep(delay_s)
            delay_s = min(delay_s * 2, self._timings.backoff_max_s)

    def _logind_down(self, lost: BusLost | None) -> None:
        if lost is None:
            self._see(FAILED)
        elif lost.silent:
            self._see(NO_ANSWER)
        else:
            # Still not there at a later attempt: then it is not a connection that was lost.
            known = self._seen.attendance != "unknown"
            self._see(BUS_LOST if known else NO_BUS)

    def _gamemode_down(self, lost: BusLost | None) -> None:
        # A bus that hangs ends no game: what was known holds until it answers or is gone.
        if lost is None or not lost.silent:
            self._play(False)

    # What was seen ---------------------------------------------------------------------------

    def _see(self, seen: Seen) -> None:
        if seen == self._seen:
            return
        if seen.attendance != self._seen.attendance:
            self._changes += 1
            log.info("attendance changed", extra={"state": seen.attendance, "reason": seen.detail})
        self._seen = seen
        self._tell(lambda: self._on_change(*seen))

    def _play(self, game: bool) -> None:
        if game == self.game:
            return
        self.game = game
        log.info("game started" if game else "game ended", extra={"source": "gamemode"})
        self._tell(lambda: self._on_game(game))

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            call()
        # The supervision boundary of who listens: its bug must not end the watching.
        except Exception:
            log.exception("listener of attendance failed")


def _first(group: BaseExceptionGroup[BusLost]) -> BusLost:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, BusLost)
    return found
