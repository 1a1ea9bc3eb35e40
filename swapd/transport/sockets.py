"""One ZeroMQ socket on Trio.

`ZMQ_FD` is readable while the socket's mailbox holds a signal that nobody has consumed. *Any* send, receive
or look at EVENTS consumes it, whoever it was meant for. So a reader that waits for the descriptor sleeps
through its message when our own send runs between the arrival and Trio's poll. Hence:

- one task, the pump, owns the descriptor and always consumes the signal;
- readers and writers wait in parking lots, never on the descriptor;
- *every* operation looks at EVENTS afterwards if anyone is parked, and wakes whom it concerns.

A woken task tries again and passes the wake-up on, so one wake-up at a time is enough. A message is taken
from the socket only where no cancellation can come between it and the caller.

ZeroMQ has no readiness for one peer of a ROUTER: POLLOUT says that *some* peer has room. A writer whose own
peer is full is `stuck`: it tries again at every signal and by the clock, and nobody else's operation wakes
it, or two such writers would wake each other for ever.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import trio
import zmq

from swapd.errors import Code, SwapdError
from swapd.transport.paths import FileIdentity, file_identity, ipc_path, private_umask, unlink_if_ours

Context = zmq.Context[zmq.Socket[bytes]]

HANDSHAKE_MS: Final = 3000
"""A peer that connects and says nothing is dropped after this."""
RETRY_MIN_S: Final = 0.001
RETRY_MAX_S: Final = 0.032
KINDS: Final = frozenset({zmq.DEALER, zmq.ROUTER, zmq.PUB, zmq.SUB, zmq.PUSH, zmq.PULL, zmq.PAIR})
"""REQ and REP are out: a cancelled exchange leaves them stuck."""


class SocketStatistics(msgspec.Struct, frozen=True):
    """Messages since the socket was opened, and tasks parked now."""

    sent: int
    received: int
    unroutable: int
    """Messages for a peer that a ROUTER does not know (any more); they are dropped."""
    would_block: int
    """`try_send` calls that found the high-water mark."""
    parked_readers: int
    parked_writers: int
    wakeups: int
    """Signals that the pump consumed."""


class TrioSocket:
    """A socket that one or more tasks of one Trio thread use. Made by `open_socket`."""

    def __init__(self, raw: zmq.Socket[bytes]) -> None:
        self._raw = raw
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()
        self._stuck = trio.lowlevel.ParkingLot()
        self._closed = False
        self._sent = self._received = self._unroutable = self._would_block = self._wakeups = 0

    async def recv_multipart(self) -> list[bytes]:
        """Receive one message. If cancelled, none was taken."""
        return (await self.recv_batch(1))[0]

    async def recv_batch(self, limit: int = 256) -> list[list[bytes]]:
        """Receive what has arrived, one message at least, `limit` at most. If cancelled, none was taken."""
        await trio.lowlevel.checkpoint_if_cancelled()
        delay_s = 0.0
        while True:
            self._check_open()
            batch = self._take(limit)
            self._kick()
            if batch:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return batch
            delay_s = await self._park(self._readers, zmq.POLLIN, delay_s)

    async def send_multipart(self, parts: Sequence[bytes]) -> None:
        """Send one message, waiting while the high-water mark is reached. If cancelled, it was not sent.

        A message for a peer that a ROUTER does not know is dropped and counted in `unroutable`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        delay_s = 0.0
        while True:
            self._check_open()
            done = self._put(parts)
            self._kick()
            if done is not None:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return
            delay_s = await self._park(self._writers, zmq.POLLOUT, delay_s)

    def try_send(self, parts: Sequence[bytes]) -> bool:
        """Send one message now. False: it was not sent, for the high-water mark or an unknown peer."""
        self._check_open()
        done = self._put(parts)
        self._kick()
        if done is None:
            self._would_block += 1
        return done is True

    def statistics(self) -> SocketStatistics:
        return SocketStatistics(
            sent=self._sent,
            received=self._received,
            unroutable=self._unroutable,
            would_block=self._would_block,
            parked_readers=len(self._readers),
            parked_writers=len(self._writers) + len(self._stuck),
            wakeups=self._wakeups,
        )

    # What follows never awaits, except the pump and `_park`.

    def _take(self, limit: int) -> list[list[bytes]]:
        batch: list[list[bytes]] = []
        try:
            while len(batch) < limit:
                batch.append(self._raw.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            pass
        self._received += len(batch)
        return batch

    def _put(self, parts: Sequence[bytes]) -> bool | None:
        """True: sent. False: nobody to send it to. None: would block."""
        try:
            self._raw.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._unroutable += 1
            return False
        self._sent += 1
        return True

    def _kick(self) -> int:
        """Look at EVENTS for the parked; the operation before may have consumed their signal."""
        if not (self._readers or self._writers):
            return 0
        return self._wake()

    def _wake(self) -> int:
        events = self._raw.getsockopt(zmq.EVENTS)
        assert isinstance(events, int)
        if events & zmq.POLLIN:
            self._readers.unpark()
        if events & zmq.POLLOUT:
            self._writers.unpark()
        return events

    async def _park(self, lot: trio.lowlevel.ParkingLot, wanted: int, delay_s: float) -> float:
        """Wait until the operation may succeed. Returns the delay to pass in if it does not.

        The operation has just failed. If EVENTS now says that it can be done, the first time is believed:
        commands arrived in between. The second time in a row it is a ROUTER whose one peer is full.
        """
        if not self._wake() & wanted:
            await lot.park()
            return 0.0
        if delay_s == 0.0:
            return RETRY_MIN_S
        with trio.move_on_after(delay_s):
            await self._stuck.park()
        return min(delay_s * 2, RETRY_MAX_S)

    async def _pump(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        descriptor = self._raw.getsockopt(zmq.FD)
        assert isinstance(descriptor, int)
        task_status.started()
        while True:
            # Also with nobody parked: an unconsumed signal would make `wait_readable` spin.
            self._wake()
            self._stuck.unpark_all()
            await trio.lowlevel.wait_readable(descriptor)
            self._wakeups += 1

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this ZeroMQ socket was closed")

    def _close(self) -> None:
        self._closed = True
        self._readers.unpark_all()
        self._writers.unpark_all()
        self._stuck.unpark_all()
        # Does not block: the context's threads flush for LINGER milliseconds at most.
        self._raw.close()


@asynccontextmanager
async def open_socket(
    context: Context,
    kind: int,
    *,
    bind: str | None = None,
    connect: str | None = None,
    identity: bytes | None = None,
    send_hwm: int = 1000,
    recv_hwm: int = 1000,
    max_message_bytes: int = 1 << 20,
    linger_ms: int = 200,
    subscribe: bytes | None = None,
) -> AsyncIterator[TrioSocket]:
    """Open one socket with its pump and bind or connect it to an endpoint.

    The caller holds a `FileLock` before it binds an `ipc://` path (H106). A bound socket file has mode 0600
    (H107) and is removed on exit. A frame over `max_message_bytes` ends only its sender's connection; it is
    not enforced on `inproc://`. On exit unsent messages have `linger_ms`, waited for by `context.term()`.
    Raises `socket_path_too_long`, and `config_invalid` for an endpoint that cannot be bound or reached.
    """
    if kind not in KINDS or (bind is None) == (connect is None):
        raise ValueError("one of the supported kinds, and either bind or connect")
    path = ipc_path(bind or connect or "")
    raw = context.socket(kind)
    socket = TrioSocket(raw)
    bound: FileIdentity | None = None
    try:
        _configure(raw, kind, send_hwm, recv_hwm, max_message_bytes, linger_ms)
        if identity is not None:
            raw.setsockopt(zmq.IDENTITY, identity)
        if subscribe is not None:
            raw.setsockopt(zmq.SUBSCRIBE, subscribe)
        _attach(raw, bind, connect)
        bound = file_identity(path) if path and bind else None
        async with _running(socket):
            yield socket
    finally:
        socket._close()
        if path:
            unlink_if_ours(path, bound)


def _configure(
    raw: zmq.Socket[bytes], kind: int, send_hwm: int, recv_hwm: int, max_message_bytes: int, linger_ms: int
) -> None:
    raw.setsockopt(zmq.SNDHWM, send_hwm)
    raw.setsockopt(zmq.RCVHWM, recv_hwm)
    raw.setsockopt(zmq.MAXMSGSIZE, max_message_bytes)
    raw.setsockopt(zmq.LINGER, linger_ms)
    raw.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    if kind == zmq.ROUTER:
        raw.setsockopt(zmq.ROUTER_MANDATORY, 1)


def _attach(raw: zmq.Socket[bytes], bind: str | None, connect: str | None) -> None:
    try:
        if bind is not None:
            with private_umask():
                raw.bind(bind)
        elif connect is not None:
            raw.connect(connect)
    except zmq.ZMQError as error:
        raise SwapdError(Code.CONFIG_INVALID, f"{bind or connect}: {error.strerror}") from None


@asynccontextmanager
async def _running(socket: TrioSocket) -> AsyncIterator[None]:
    """Run the pump beside the body, whose own exception comes out as it is, not in the nursery's group."""
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(socket._pump)
            try:
                yield
            except BaseException as error:
                failure = error
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        _, others = group.split(trio.Cancelled)
        if failure is None or others is not None:
            raise group from failure
    if failure is not None:
        raise failure
