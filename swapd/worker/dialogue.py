"""What a link and its worker say: commands in order, requests and their answers, the latest credits.

A request is answered by its id; when the worker is gone, every open request ends with `worker lost` at once.
Credits are latest-value: which they are is asked when one is about to be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import trio

from swapd.config import TimerConfig
from swapd.errors import Code, SwapdError
from swapd.messages.envelope import EVENT, Command, encode
from swapd.messages.from_worker import FromWorker, Refused
from swapd.messages.to_worker import Credit, Grant, ToWorker
from swapd.transport.sockets import TrioSocket

SEND_QUEUE: Final = 1024
"""Commands waiting to be written: sessions times the steps of a move; a full queue is a hung worker."""

M = TypeVar("M")


class WorkerLost(SwapdError):
    """The worker ended, was fenced or is not connected; what it was asked has no known outcome."""

    def __init__(self, worker: str) -> None:
        super().__init__(Code.TARGET_LOST, worker)
        self.worker = worker


@dataclass
class _Pending:
    done: trio.Event
    answer: FromWorker | None = None


class Dialogue:
    """One configured worker's, over all its incarnations: open while one of them is connected."""

    def __init__(self, worker: str, generation: int, timers: TimerConfig) -> None:
        self._worker = worker
        self._generation = generation
        self._timers = timers
        self._incarnation = ""
        self._request = EVENT
        self._pending: dict[int, _Pending] = {}
        self._dirty: dict[str, None] = {}
        self._commands: trio.MemorySendChannel[bytes] | None = None
        self._unwritten: trio.MemoryReceiveChannel[bytes] | None = None
        self._wake = trio.Event()

    def open(self, incarnation: str) -> None:
        """Take commands for an incarnation that is connected now. `close` must follow."""
        self._incarnation = incarnation
        self._commands, self._unwritten = trio.open_memory_channel[bytes](SEND_QUEUE)

    def close(self) -> None:
        """The incarnation is gone, and with it what it was asked; what was not written is dropped."""
        if self._commands is not None and self._unwritten is not None:
            self._commands.close()
            self._unwritten.close()
        self._commands = self._unwritten = None
        for pending in self._pending.values():
            pending.done.set()
        self._dirty.clear()

    async def request(self, body: ToWorker, expect: type[M], timeout_s: float | None = None) -> M:
        """Send and wait for the answer of type `expect`, for `rpc_s` unless told otherwise.

        Raises `WorkerLost`, `SwapdError(TIMEOUT)`, or the code of the worker's refusal. Cancelled: the
        command may or may not have its effect (all are idempotent).
        """
        if self._commands is None:
            raise WorkerLost(self._worker)
        self._request += 1
        number = self._request
        pending = _Pending(trio.Event())
        self._pending[number] = pending
        try:
            self._post(body, number)
            with trio.move_on_after(timeout_s if timeout_s is not None else self._timers.rpc_s):
                await pending.done.wait()
        finally:
            del self._pending[number]
        if not pending.done.is_set():
            raise SwapdError(Code.TIMEOUT, f"worker {self._worker}, {type(body).__name__}")
        answer = pending.answer
        if answer is None:
            raise WorkerLost(self._worker)
        if isinstance(answer, Refused):
            raise SwapdError(_code(answer.code), answer.detail)
        if not isinstance(answer, expect):
            raise SwapdError(Code.INTERNAL, f"unexpected answer {type(answer).__name__}")
        return answer

    def answered(self, number: int, body: FromWorker) -> None:
        """The worker has answered a request; who asked may have gone meanwhile."""
        pending = self._pending.get(number)
        if pending is not None:
            pending.answer = body
            pending.done.set()

    def send(self, body: ToWorker) -> None:
        """Send what has no answer. Raises `WorkerLost`, or `timeout` when it does not read its commands."""
        self._post(body, EVENT)

    def credit(self, session: str) -> None:
        """The session's grant changed: one message will carry the latest of all such sessions."""
        self._dirty[session] = None
        self._wake.set()

    def look_up(self) -> None:
        """Time has passed: the worker may be due a sign of life."""
        self._wake.set()

    async def write(self, socket: TrioSocket, grants: Callable[[Iterable[str]], Sequence[Grant]]) -> None:
        """Write commands in order; credits and keep-alives when nothing else waits. To be cancelled."""
        unwritten = self._unwritten
        assert unwritten is not None, "open it first"
        last = trio.current_time()
        while True:
            try:
                frame = unwritten.receive_nowait()
            except trio.WouldBlock:
                if self._dirty:
                    sessions = list(self._dirty)
                    self._dirty.clear()
                    latest = tuple(grants(sessions))
                    if not latest:
                        continue
                    frame = self._frame(Credit(latest), EVENT)
                elif trio.current_time() - last >= self._timers.heartbeat_s:
                    frame = self._frame(Credit(()), EVENT)
                else:
                    self._wake = trio.Event()
                    await self._wake.wait()
                    continue
            await socket.send_multipart([frame])
            last = trio.current_time()

    def _post(self, body: ToWorker, number: int) -> None:
        if self._commands is None:
            raise WorkerLost(self._worker)
        try:
            self._commands.send_nowait(self._frame(body, number))
        except trio.WouldBlock:
            raise SwapdError(Code.TIMEOUT, f"worker {self._worker} does not read its commands") from None
        self._wake.set()

    def _frame(self, body: ToWorker, number: int) -> bytes:
        return encode(Command(self._incarnation, self._generation, number, body))


def _code(text: str) -> Code:
    try:
        return Code(text)
    except ValueError:
        return Code.INTERNAL
