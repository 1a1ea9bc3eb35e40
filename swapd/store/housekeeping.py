"""What goes on beside the writer: copying the log, and looking after the room on the disk (B40)."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from swapd.store.ballast import Ballast, Disk, Room, look_at_disk, room_of
from swapd.store.checkpoint import Checkpointer

CHECKPOINT_EVERY_S: Final = 0.5
LOOK_AT_DISK_EVERY_S: Final = 1.0

logger = logging.getLogger("swapd.store")


class Housekeeper:
    """Runs while the store does. `ballast_bytes` 0: no room is kept back, and nobody looks at the disk."""

    def __init__(self, path: Path, ballast_bytes: int) -> None:
        self._folder = path.parent
        self._checkpointer = Checkpointer(path)
        self.ballast = Ballast(path, ballast_bytes) if ballast_bytes else None
        self.disk: Disk | None = None
        self.on_room: Callable[[], None] = lambda: None
        """Called when the disk was full and has room again."""
        self.room = Room.ENOUGH
        """As it was last told."""

    @property
    def full(self) -> bool:
        """Whether the room that was kept back is in use: the disk is full."""
        return self.ballast is not None and not self.ballast.held

    async def begin(self) -> None:
        """Keep room back before anything is written; without it the store begins as `full`."""
        if self.ballast is not None:
            await self._look(self.ballast)

    async def run(self, written_ops: Callable[[], int], fail: Callable[[sqlite3.Error], None]) -> None:
        """Keep house until cancelled. `fail` is told of a checkpoint that the disk has failed (H160)."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._checkpoint, written_ops, fail)
            if self.ballast is not None:
                nursery.start_soon(self._watch, self.ballast)

    def close(self) -> None:
        self._checkpointer.close()

    async def _checkpoint(
        self, written_ops: Callable[[], int], fail: Callable[[sqlite3.Error], None]
    ) -> None:
        while True:
            await trio.sleep(CHECKPOINT_EVERY_S)
            ops = written_ops()
            if self._checkpointer.due(ops):
                try:
                    await trio.to_thread.run_sync(self._checkpointer.checkpoint, ops)
                except sqlite3.Error as error:
                    # Not tried again: what a failed fsync left behind, nobody knows.
                    fail(error)
                    return

    async def _watch(self, ballast: Ballast) -> None:
        while True:
            await trio.sleep(LOOK_AT_DISK_EVERY_S)
            await self._look(ballast)

    async def _look(self, ballast: Ballast) -> None:
        was_full = self.disk is not None and not ballast.held
        try:
            await trio.to_thread.run_sync(ballast.make)
            self.disk = await trio.to_thread.run_sync(look_at_disk, self._folder)
        except OSError as error:
            logger.warning("the disk cannot be looked at", extra={"errno": error.errno})
            return
        now = Room.FULL if not ballast.held else room_of(self.disk, self.room)
        if now is not self.room:
            self.room = now
            log = logger.info if now is Room.ENOUGH else logger.warning
            log("room on the disk of the database", extra={"state": now, "free_bytes": self.disk.free_bytes})
        if was_full and ballast.held:
            self.on_room()
