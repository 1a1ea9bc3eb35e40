"""The store: one thread that writes, groups of operations in one COMMIT, readers beside it.

    commit(op) ─┐                                  ┌─ done(result) … in order, on the Trio thread
    commit(op) ─┼─► queue ─► writer thread: BEGIN  ─┤
    post(op)  ──┘            op op op … COMMIT      └─ one hop for the whole group

Rules of this file:

- COMMIT costs the same for one row as for hundreds, so every operation that has arrived goes into the
  next one, whichever session or worker it is from. The thread does nothing else.
- Operations take effect in the order in which they were posted. Each runs in a savepoint of its own: one
  that raises is undone and gets its exception back, and the others are not touched.
- Nothing is acknowledged before COMMIT has returned (H18).
- An error *of* COMMIT, or of the storage before it, means that the outcome is unknown (H160, decision 1).
  The store is then `failed` for good: all that waits and all that comes gets `store_failed`, nothing is
  written any more, and the log is left for the next start to read. Reading goes on.
- One error is not of that kind: a disk that is full (`is_disk_full`). The group is undone and made again
  in the room that the ballast held, once; the store is `full` until the ballast is back (B40).
- A write that hangs is waited for without an end, for its outcome is unknown; meanwhile it is `trouble`.
- The queue is bounded by those who fill it: a worker has at most `window` tokens of a session on the way,
  and whoever calls `commit` waits.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import trio

from swapd.errors import Code, SwapdError
from swapd.store.ballast import Room
from swapd.store.database import (
    create_file,
    disk_fault,
    is_disk_full,
    is_storage_error,
    open_writer,
    write_log_again,
)
from swapd.store.housekeeping import Housekeeper
from swapd.store.reader import Readers
from swapd.store.schema import migrate
from swapd.store.stall import Stall
from swapd.store.statistics import CommitCounts, StoreStatistics
from swapd.transport.lock import FileLock

T = TypeVar("T")

LOCK_NAME: Final = "coordinator.lock"
GROUP_LIMIT: Final = 1024
"""Operations in one COMMIT: bounds how long the first of them waits for the last."""
STOP_S: Final = 5.0
"""How long a stop waits for what was posted before it."""

logger = logging.getLogger("swapd.store")


class _Posted(NamedTuple):
    """An operation on its way. Its result's type is known only to the one who posted it."""

    op: Callable[[sqlite3.Connection], Any]
    done: Callable[[Any], None]


class Store:
    """The durable record of one coordinator. All methods are called on the Trio thread."""

    connection_class: ClassVar[type[sqlite3.Connection]] = sqlite3.Connection
    """The writer's connection: a subclass of the store may name one that fails on purpose."""

    def __init__(
        self, path: Path, lock: FileLock, connection: sqlite3.Connection, ballast_bytes: int = 0
    ) -> None:
        self._lock = lock
        self._connection = connection
        self._readers = Readers(path)
        self._house = Housekeeper(path, ballast_bytes)
        # Guards `_queue` and `_closing`, which both threads touch.
        self._arrived = threading.Condition()
        self._queue: deque[_Posted] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stopped = trio.Event()
        self._failed = trio.Event()
        self._broken: BaseException | None = None
        self._broke = trio.Event()
        self._closed = False
        # Written by the writer thread only; a reader may be one group behind.
        self._failure: str | None = None
        self._disk_fault: Code | None = None
        self._counts = CommitCounts()
        self._stall = Stall()

    @classmethod
    def open(cls, path: str | Path, *, ballast_bytes: int = 0) -> Store:
        """Take the lock, then make or migrate the database. `ballast_bytes` are kept back while it runs.

        Raises `coordinator_lock_held` at once (H122), before anything is touched, `schema_newer`, and
        `store_failed` with the path and why for a file that is no store of ours or cannot be one.
        """
        try:
            return cls._open(Path(path), ballast_bytes)
        except (OSError, ValueError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise SwapdError(Code.STORE_FAILED, f"{path}: {reason}") from error

    @classmethod
    def _open(cls, path: Path, ballast_bytes: int) -> Store:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLock.acquire(path.parent / LOCK_NAME, Code.COORDINATOR_LOCK_HELD)
        try:
            create_file(path)
            connection = open_writer(path, cls.connection_class)
            try:
                migrate(connection)
                write_log_again(connection)
                return cls(path, lock, connection, ballast_bytes)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            lock.release()
            raise

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled; then finish what was posted, within `STOP_S`, and close.

        Raises what a `done` callback raised: then an acknowledgement was lost, and nothing may go on.
        """
        if self._thread is not None or self._closed:
            raise RuntimeError("a store runs once")
        self._token = trio.lowlevel.current_trio_token()
        # A daemon: a disk that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._write, name="swapd-store", daemon=True)
        self._thread.start()
        try:
            await self._house.begin()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._house.run, lambda: self._counts.ops, self._fail_of)
                nursery.start_soon(self._stall.watch)
                task_status.started()
                await self._broke.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._close_queue()
            with trio.move_on_after(STOP_S, shield=True):
                await self._stopped.wait()
            self.close()
        if self._broken is not None:
            raise self._broken

    async def commit(self, op: Callable[[sqlite3.Connection], T]) -> T:
        """Run `op` in the next transaction and return its result once that is durable.

        Raises what `op` raised, or `store_failed`. If cancelled before it is posted, nothing happens; if
        cancelled while it waits, `op` still runs and the caller does not learn how it ended.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        finished = trio.Event()
        results: list[T | BaseException] = []

        def done(result: T | BaseException) -> None:
            results.append(result)
            finished.set()

        self.post(op, done)
        await finished.wait()
        result = results[0]
        if isinstance(result, BaseException):
            raise result
        return result

    def post(self, op: Callable[[sqlite3.Connection], T], done: Callable[[T | BaseException], None]) -> None:
        """Queue `op`, first in first out with `commit`; `done` gets its result once that is durable.

        `done` is called on the Trio thread, in order, all of one group in one hop. It must not raise.
        """
        posted = _Posted(op, done)
        with self._arrived:
            if not self._closing:
                self._queue.append(posted)
                self._arrived.notify()
                return
        refusal = self._refusal()
        trio.lowlevel.current_trio_token().run_sync_soon(self._deliver, [(posted, refusal)])

    async def read(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Run `fn` in a thread on one snapshot of what is committed. Not cancelled once it has begun."""
        return await self._readers.read(fn)

    @property
    def failed(self) -> bool:
        """Whether an outcome is unknown and nothing is acknowledged any more (H160)."""
        return self._failed.is_set()

    @property
    def full(self) -> bool:
        """Whether the disk is full: what comes is written in the last room, no more is asked for (B40)."""
        return self._house.full

    def trouble(self) -> tuple[Code, ...]:
        """Why the service must not take work, the code that decides first; nothing: it may."""
        if self._failure is not None:
            return (Code.STORE_FAILED, *([self._disk_fault] if self._disk_fault is not None else []))
        stuck = (Code.STORE_STUCK,) if self._stall.stuck_s is not None else ()
        return (*stuck, Code.DISK_FULL) if self.full else stuck

    def on_room(self, tell: Callable[[], None]) -> None:
        """Have `tell` called on the Trio thread when a full disk has room again."""
        self._house.on_room = tell

    async def wait_failed(self) -> None:
        """Return when the store has failed."""
        await self._failed.wait()

    def statistics(self) -> StoreStatistics:
        counts = self._counts
        return StoreStatistics(
            commits=counts.commits,
            ops=counts.ops,
            largest_group=counts.largest_group,
            failed=self._failure,
            commit_ms_p50=counts.last_ms(50),
            commit_ms_p95=counts.last_ms(95),
            queue=len(self._queue),
            commit_s=counts.commit_s.spread(),
            disk=self._house.disk,
            room=Room.FULL if self.full else self._house.room,
            stuck_s=self._stall.stuck_s,
        )

    def close(self) -> None:
        """Close the files and let the lock go; `run` does it. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._close_queue()
        if self._thread is not None and not self._stopped.is_set():
            # The thread hangs in the disk. Its connection cannot be closed under it, and the lock must
            # not pass to another coordinator while it might still write: both end with the process.
            logger.error("the store's writer did not stop in time")
            return
        self._house.close()
        if self._failure is None:
            self._readers.close()
            self._connection.close()
        else:
            # The last connection to close copies the log and deletes it, unless it is a reader.
            self._readers.keep_one()
            self._connection.close()
            self._readers.close()
        self._lock.release()

    # --- the writer's thread -------------------------------------------------------------------------

    def _write(self) -> None:
        try:
            while group := self._take():
                self._stall.begin()
                results = self._commit_group(group)
                self._stall.end()
                self._hop(self._deliver, results)
        except BaseException as error:  # supervision boundary: a thread that dies must be heard of
            self._hop(self._break, error)
        finally:
            self._hop(self._stopped.set)

    def _take(self) -> list[_Posted]:
        """Wait for operations; empty means that the store closes and all have been taken."""
        with self._arrived:
            while not self._queue and not self._closing:
                # No deadline: close() ends the wait.
                self._arrived.wait()
            return [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_LIMIT))]

    def _commit_group(self, group: Sequence[_Posted]) -> list[tuple[_Posted, Any]]:
        if self._failure is not None:
            return [(posted, self._refusal()) for posted in group]
        try:
            try:
                return self._transact(group)
            except sqlite3.Error as error:
                if not self._makes_room(error):
                    raise
            return self._transact(group)
        except sqlite3.Error as error:
            self._fail(error)
            return [(posted, self._refusal()) for posted in group]

    def _transact(self, group: Sequence[_Posted]) -> list[tuple[_Posted, Any]]:
        self._connection.execute("BEGIN IMMEDIATE")
        results = [(posted, self._apply(posted)) for posted in group]
        begun = time.perf_counter()
        self._connection.execute("COMMIT")
        took_s = time.perf_counter() - begun
        self._counts.add(len(group), took_s)
        return results

    def _makes_room(self, error: sqlite3.Error) -> bool:
        """Undo a group that found the disk full and give the ballast up for it (B40)."""
        ballast = self._house.ballast
        if ballast is None or not is_disk_full(error):
            return False
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        if not ballast.release():
            return False
        logger.error("the disk is full: the last room is in use, and no token is asked for")
        return True

    def _apply(self, posted: _Posted) -> Any:
        """Run one operation in a savepoint. Raises only what fails the whole store."""
        self._connection.execute("SAVEPOINT op")
        try:
            result = posted.op(self._connection)
        except Exception as error:  # the operation's own; it goes back to whoever posted it
            if is_storage_error(error):
                raise
            # Fails, and the store with it, if the operation has ended the transaction of its group.
            self._connection.execute("ROLLBACK TO op")
            result = error
        self._connection.execute("RELEASE op")
        return result

    def _fail(self, error: sqlite3.Error) -> None:
        self._disk_fault = disk_fault(error)
        self._failure = getattr(error, "sqlite_errorname", type(error).__name__)
        logger.error(
            "the store cannot write", extra={"error": self._failure, "code": str(self._disk_fault or "")}
        )
        with suppress(sqlite3.Error):
            # Lets the write lock go. What the log holds beyond this point, the next start finds out.
            self._connection.execute("ROLLBACK")
        self._hop(self._failed.set)

    def _hop(self, fn: Callable[..., object], *args: object) -> None:
        assert self._token is not None
        # The run may have ended while the disk hung: then nobody is left to tell.
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(fn, *args)

    # --- the Trio thread -----------------------------------------------------------------------------

    def _deliver(self, results: Sequence[tuple[_Posted, Any]]) -> None:
        for posted, result in results:
            try:
                posted.done(result)
            except Exception as error:  # supervision boundary: `run` raises it, Trio itself must live
                self._break(error)

    def _break(self, error: BaseException) -> None:
        self._broken = self._broken or error
        self._broke.set()

    def _fail_of(self, error: sqlite3.Error) -> None:
        """Fail the store, in its writer, of an error that somebody else met."""

        def op(db: sqlite3.Connection) -> None:
            raise error

        self.post(op, lambda result: None)

    def _close_queue(self) -> None:
        with self._arrived:
            self._closing = True
            self._arrived.notify()

    def _refusal(self) -> SwapdError:
        if self._failure is not None:
            why = f"{self._disk_fault}: {self._failure}" if self._disk_fault else self._failure
            return SwapdError(Code.STORE_FAILED, why)
        return SwapdError(Code.STOPPING)
