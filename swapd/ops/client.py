"""The one client of the ops socket, for the CLI and for scripts under `ops/`.

In Trio: `async with open_ops(socket_dir) as ops: await ops.status()`. Elsewhere: `ask(socket_dir,
lambda ops: ops.status())`. Refusals arrive as the `SwapdError` that the service raised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import trio
import zmq

from swapd.device_views import DeviceEvent, DeviceView, SamplePoint, TakeBack
from swapd.errors import Code, SwapdError
from swapd.messages import ops
from swapd.messages.from_worker import StepRecord
from swapd.transport.paths import ipc_endpoint
from swapd.transport.sockets import TrioSocket, open_socket
from swapd.views import (
    DebugView,
    DrainMode,
    DrainView,
    NewSession,
    ReconciliationView,
    Role,
    SessionView,
    Switch,
    SwitchesView,
    WorkerView,
)

ANSWER_TIMEOUT_S: Final = 35.0
"""Longer than the service's own deadline of a command, so that its answer names the cause."""

A = TypeVar("A")
T = TypeVar("T")


class OpsClient:
    """Commands, one at a time. If a call is cancelled its late answer is dropped by the next one."""

    def __init__(self, socket: TrioSocket, where: str, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._socket = socket
        self._where = where
        self._timeout_s = timeout_s
        self._request = 0
        self._turn = trio.Lock()

    async def ping(self) -> ops.Pong:
        return await self._call(ops.Ping(), ops.Pong)

    async def status(self) -> ops.StatusAnswer:
        return await self._call(ops.Status(), ops.StatusAnswer)

    async def workers(self) -> tuple[WorkerView, ...]:
        return (await self._call(ops.Workers(), ops.WorkersAnswer)).workers

    async def sessions(self) -> tuple[SessionView, ...]:
        return (await self._call(ops.Sessions(), ops.SessionsAnswer)).sessions

    async def session(self, session: str) -> SessionView:
        return (await self._call(ops.Session(session), ops.SessionAnswer)).session

    async def create_session(self, request: NewSession) -> SessionView:
        return (await self._call(ops.CreateSession(request), ops.SessionAnswer)).session

    async def cancel_session(self, session: str) -> SessionView:
        return (await self._call(ops.CancelSession(session), ops.SessionAnswer)).session

    async def start_drain(
        self,
        worker: str,
        deadline_s: float | None = None,
        mode: DrainMode = "native",
        reason: str | None = None,
    ) -> DrainView:
        return (await self._call(ops.StartDrain(worker, deadline_s, mode, reason), ops.DrainAnswer)).drain

    async def start_drains(
        self,
        workers: Sequence[str],
        deadline_s: float | None = None,
        mode: DrainMode = "native",
        reason: str | None = None,
    ) -> tuple[DrainView, ...]:
        request = ops.StartDrains(tuple(workers), deadline_s, mode, reason)
        return (await self._call(request, ops.DrainsAnswer)).drains

    async def drain(self, drain: str) -> DrainView:
        return (await self._call(ops.Drain(drain), ops.DrainAnswer)).drain

    async def drains(self) -> tuple[DrainView, ...]:
        return (await self._call(ops.Drains(), ops.DrainsAnswer)).drains

    async def cancel_drain(self, drain: str) -> DrainView:
        return (await self._call(ops.CancelDrain(drain), ops.DrainAnswer)).drain

    async def devices(self) -> tuple[DeviceView, ...]:
        return (await self._call(ops.Devices(), ops.DevicesAnswer)).devices

    async def device(self, device: str) -> DeviceView:
        return (await self._call(ops.Device(device), ops.DeviceAnswer)).device

    async def take_back(self, device: str, request: TakeBack | None = None) -> DeviceView:
        """Without a request: until the owner lends it again."""
        command = ops.TakeDeviceBack(device, request or TakeBack())
        return (await self._call(command, ops.DeviceAnswer)).device

    async def lend(self, device: str) -> DeviceView:
        return (await self._call(ops.Lend(device), ops.DeviceAnswer)).device

    async def samples(self, device: str, since: float = 0.0) -> tuple[SamplePoint, ...]:
        return (await self._call(ops.Samples(device, since), ops.SamplesAnswer)).samples

    async def device_events(self, device: str) -> tuple[DeviceEvent, ...]:
        return (await self._call(ops.DeviceEvents(device), ops.DeviceEventsAnswer)).events

    async def switches(self) -> SwitchesView:
        return (await self._call(ops.Switches(), ops.SwitchesAnswer)).switches

    async def turn_switch(self, switch: Switch, *, on: bool) -> SwitchesView:
        return (await self._call(ops.TurnSwitch(switch, on), ops.SwitchesAnswer)).switches

    async def clear_quarantine(self, worker: str) -> WorkerView:
        return (await self._call(ops.ClearQuarantine(worker), ops.WorkerAnswer)).worker

    async def console_link(self, role: Role = "owner", *, new_tokens: bool = False) -> ops.ConsoleLinkAnswer:
        return await self._call(ops.ConsoleLink(role, new_tokens), ops.ConsoleLinkAnswer)

    async def reconciliation(self) -> ReconciliationView:
        return (await self._call(ops.Reconciliation(), ops.ReconciliationAnswer)).report

    async def metrics(self) -> str:
        return (await self._call(ops.Metrics(), ops.MetricsAnswer)).text

    async def export_diagnostics(self) -> ops.DiagnosticsAnswer:
        return await self._call(ops.ExportDiagnostics(), ops.DiagnosticsAnswer)

    async def log_decisions(self, for_s: float) -> DebugView:
        return (await self._call(ops.LogDecisions(for_s), ops.DebugAnswer)).debug

    async def schedule(self, worker: str) -> tuple[StepRecord, ...]:
        """Take the worker's oldest recorded steps; if cancelled they may be lost."""
        return (await self._call(ops.Schedule(worker), ops.ScheduleAnswer)).steps

    async def events(
        self,
        session: str,
        after: int | None = None,
        *,
        max_events: int = ops.MAX_EVENTS,
        wait_s: float = 10.0,
    ) -> ops.EventsAnswer:
        """One poll: events strictly after the cursor, perhaps none; pass `cursor` to the next."""
        return await self._call(ops.Events(session, after, max_events, wait_s), ops.EventsAnswer)

    async def _call(self, command: ops.OpsCommand, expected: type[A]) -> A:
        async with self._turn:
            self._request += 1
            frame = ops.encode_request(self._request, command)
            with trio.move_on_after(self._timeout_s):
                await self._socket.send_multipart([frame])
                answer = await self._receive()
                if isinstance(answer, ops.Error):
                    raise _raised(answer)
                if not isinstance(answer, expected):
                    raise SwapdError(Code.FRAME_MALFORMED, f"answered with {type(answer).__name__}")
                return answer
            raise SwapdError(
                Code.TIMEOUT, f"{self._where} after {self._timeout_s:g} s; is `swapd serve` alive?"
            )

    async def _receive(self) -> ops.OpsAnswer:
        while True:
            reply = ops.decode_reply((await self._socket.recv_multipart())[-1])
            # Id 0 answers a frame that the service could not read; only ours can be meant.
            if reply.id in (self._request, 0):
                return reply.body


def _raised(answer: ops.Error) -> SwapdError:
    try:
        code = Code(answer.code)
    except ValueError:
        return SwapdError(Code.INTERNAL, f"{answer.code}: {answer.message}")
    return SwapdError(code, answer.detail, retry_after_s=answer.retry_after_s)


@asynccontextmanager
async def open_ops(socket_dir: str | Path, timeout_s: float = ANSWER_TIMEOUT_S) -> AsyncIterator[OpsClient]:
    """Connect to the service whose sockets are in `socket_dir`. Raises `not_ready` where there is none."""
    _require(socket_dir, ops.OPS_SOCKET)
    context = zmq.Context[zmq.Socket[bytes]]()
    try:
        async with open_socket(
            context,
            zmq.DEALER,
            connect=ipc_endpoint(socket_dir, ops.OPS_SOCKET),
            max_message_bytes=ops.MAX_ANSWER_BYTES + 1,
        ) as socket:
            yield OpsClient(socket, str(socket_dir), timeout_s)
    finally:
        context.term()


@asynccontextmanager
async def open_state_events(
    socket_dir: str | Path, kind: str = ""
) -> AsyncIterator[Callable[[], Awaitable[ops.StateEvent]]]:
    """Subscribe to state events whose kind begins with `kind`; call the value for the next one."""
    _require(socket_dir, ops.EVENTS_SOCKET)
    context = zmq.Context[zmq.Socket[bytes]]()
    try:
        async with open_socket(
            context,
            zmq.SUB,
            connect=ipc_endpoint(socket_dir, ops.EVENTS_SOCKET),
            subscribe=kind.encode(),
        ) as socket:

            async def receive() -> ops.StateEvent:
                return ops.decode_state_event((await socket.recv_multipart())[-1])

            yield receive
    finally:
        context.term()


def ask(socket_dir: str | Path, question: Callable[[OpsClient], Awaitable[T]]) -> T:
    """Open, ask and close from a plain script."""

    async def main() -> T:
        async with open_ops(socket_dir) as client:
            return await question(client)

    return trio.run(main)


def _require(socket_dir: str | Path, name: str) -> None:
    # ZeroMQ would wait in silence for a socket to appear.
    if not (Path(socket_dir) / name).is_socket():
        raise SwapdError(
            Code.NOT_READY, f"no service in {socket_dir}; start it with `swapd serve` or `swapd quickstart`"
        )
