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

import msgspec
import trio

from swapd.distribution import Distribution, Spread
from swapd.errors import Code, SwapdError
from swapd.store.checkpoint import CHECKPOINT_EVERY_S, Checkpointer
from swapd.store.database import create_file, is_storage_error, open_writer
from swapd.store.reader import Readers
from swapd.store.schema import migrate
from swapd.transport.lock import FileLock

T = TypeVar("T")

LOCK_NAME: Final = "coordinator.lock"
GROUP_LIMIT: Final = 1024
"""Operations in one COMMIT: bounds how long the first of them waits for the last."""
STOP_S: Final = 5.0
"""How long a stop waits for what was posted before it."""
_TIMINGS: Final = 512
COMMIT_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

logger = logging.getLogger("swapd.store")


class StoreStatistics(msgspec.Struct, frozen=True):
    """Counts since open; percentiles of the last 512 COMMITs, `commit_s` of all."""

    commits: int
    ops: int
    largest_group: int
    failed: str | None
    commit_ms_p50: float
    commit_ms_p95: float
    queue: int
    commit_s: Spread


class _Posted(NamedTuple):
    """An operation on its way. Its result's type is known only to the one who posted it."""

    op: Callable[[sqlite3.Connection], Any]
    done: Callable[[Any], None]


class Store:
    """The durable record of one coordinator. All methods are called on the Trio thread."""

    connection_class: ClassVar[type[sqlite3.Connection]] = sqlite3.Connection
    """The writer's connection: a subclass of the store may name one that fails on purpose."""

    def __init__(self, path: Path, lock: FileLock, connection: sqlite3.Connection) -> None:
        self._lock = lock
        self._connection = connection
        self._readers = Readers(path)
        self._checkpointer = Checkpointer(path)
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
        self._commits = 0
        self._ops = 0
        self._largest_group = 0
        self._commit_ms: deque[float] = deque(maxlen=_TIMINGS)
        self._commit_s = Distribution(COMMIT_BOUNDS_S)

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """Take the lock, then make or migrate the database.

        Raises `coordinator_lock_held` at once (H122), before anything is touched, `schema_newer`, and
        `store_failed` with the path and why for a file that is no store of ours or cannot be one.
        """
        try:
            return cls._open(Path(path))
        except (OSError, ValueError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise SwapdError(Code.STORE_FAILED, f"{path}: {reason}") from error

    @classmethod
    def _open(cls, path: Path) -> Store:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLock.acquire(path.parent / LOCK_NAME, Code.COORDINATOR_LOCK_HELD)
        try:
            create_file(path)
            connection = open_writer(path, cls.connection_class)
            try:
                migrate(connection)
                return cls(path, lock, connection)
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
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._checkpoint)
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

    async def wait_failed(self) -> None:
        """Return when the store has failed."""
        await self._failed.wait()

    def statistics(self) -> StoreStatistics:
        times = sorted(self._commit_ms)
        return StoreStatistics(
            commits=self._commits,
            ops=self._ops,
            largest_group=self._largest_group,
            failed=self._failure,
            commit_ms_p50=times[len(times) // 2] if times else 0.0,
            commit_ms_p95=times[len(times) * 95 // 100] if times else 0.0,
            queue=len(self._queue),
            commit_s=self._commit_s.spread(),
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
        self._checkpointer.close()
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
                self._hop(self._deliver, self._commit_group(group))
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
            self._connection.execute("BEGIN IMMEDIATE")
            results = [(posted, self._apply(posted)) for posted in group]
            begun = time.perf_counter()
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._fail(error)
            return [(posted, self._refusal()) for posted in group]
        took_s = time.perf_counter() - begun
        self._commit_ms.append(took_s * 1e3)
        self._commit_s.add(took_s)
        self._commits += 1
        self._ops += len(group)
        self._largest_group = max(self._largest_group, len(group))
        return results

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
        self._failure = getattr(error, "sqlite_errorname", type(error).__name__)
        logger.error("the store cannot write", extra={"error": self._failure})
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

    async def _checkpoint(self) -> None:
        while True:
            await trio.sleep(CHECKPOINT_EVERY_S)
            ops = self._ops
            if self._failure is None and self._checkpointer.due(ops):
                await trio.to_thread.run_sync(self._checkpointer.checkpoint, ops)

    def _close_queue(self) -> None:
        with self._arrived:
            self._closing = True
            self._arrived.notify()

    def _refusal(self) -> SwapdError:
        if self._failure is not None:
            return SwapdError(Code.STORE_FAILED, self._failure)
        return SwapdError(Code.STOPPING)
