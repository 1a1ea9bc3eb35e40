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

from swapd.certify.views import PlansView, RevocationView
from swapd.device_views import DeviceEvent, DeviceView, SamplePoint, TakeBack
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import StepRecord
from swapd.messages.ops import answers, commands, frames
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

    async def ping(self) -> answers.Pong:
        return await self._call(commands.Ping(), answers.Pong)

    async def status(self) -> answers.StatusAnswer:
        return await self._call(commands.Status(), answers.StatusAnswer)

    async def workers(self) -> tuple[WorkerView, ...]:
        return (await self._call(commands.Workers(), answers.WorkersAnswer)).workers

    async def sessions(self) -> tuple[SessionView, ...]:
        return (await self._call(commands.Sessions(), answers.SessionsAnswer)).sessions

    async def session(self, session: str) -> SessionView:
        return (await self._call(commands.Session(session), answers.SessionAnswer)).session

    async def create_session(self, request: NewSession) -> SessionView:
        return (await self._call(commands.CreateSession(request), answers.SessionAnswer)).session

    async def cancel_session(self, session: str) -> SessionView:
        return (await self._call(commands.CancelSession(session), answers.SessionAnswer)).session

    async def start_drain(
        self,
        worker: str,
        deadline_s: float | None = None,
        mode: DrainMode = "native",
        reason: str | None = None,
    ) -> DrainView:
        request = commands.StartDrain(worker, deadline_s, mode, reason)
        return (await self._call(request, answers.DrainAnswer)).drain

    async def start_drains(
        self,
        workers: Sequence[str],
        deadline_s: float | None = None,
        mode: DrainMode = "native",
        reason: str | None = None,
    ) -> tuple[DrainView, ...]:
        request = commands.StartDrains(tuple(workers), deadline_s, mode, reason)
        return (await self._call(request, answers.DrainsAnswer)).drains

    async def drain(self, drain: str) -> DrainView:
        return (await self._call(commands.Drain(drain), answers.DrainAnswer)).drain

    async def drains(self) -> tuple[DrainView, ...]:
        return (await self._call(commands.Drains(), answers.DrainsAnswer)).drains

    async def cancel_drain(self, drain: str) -> DrainView:
        return (await self._call(commands.CancelDrain(drain), answers.DrainAnswer)).drain

    async def devices(self) -> tuple[DeviceView, ...]:
        return (await self._call(commands.Devices(), answers.DevicesAnswer)).devices

    async def device(self, device: str) -> DeviceView:
        return (await self._call(commands.Device(device), answers.DeviceAnswer)).device

    async def take_back(self, device: str, request: TakeBack | None = None) -> DeviceView:
        """Without a request: until the owner lends it again."""
        command = commands.TakeDeviceBack(device, request or TakeBack())
        return (await self._call(command, answers.DeviceAnswer)).device

    async def lend(self, device: str) -> DeviceView:
        return (await self._call(commands.Lend(device), answers.DeviceAnswer)).device

    async def samples(self, device: str, since: float = 0.0) -> tuple[SamplePoint, ...]:
        return (await self._call(commands.Samples(device, since), answers.SamplesAnswer)).samples

    async def device_events(self, device: str) -> tuple[DeviceEvent, ...]:
        return (await self._call(commands.DeviceEvents(device), answers.DeviceEventsAnswer)).events

    async def switches(self) -> SwitchesView:
        return (await self._call(commands.Switches(), answers.SwitchesAnswer)).switches

    async def turn_switch(self, switch: Switch, *, on: bool) -> SwitchesView:
        return (await self._call(commands.TurnSwitch(switch, on), answers.SwitchesAnswer)).switches

    async def clear_quarantine(self, worker: str) -> WorkerView:
        return (await self._call(commands.ClearQuarantine(worker), answers.WorkerAnswer)).worker

    async def console_link(
        self, role: Role = "owner", *, new_tokens: bool = False
    ) -> answers.ConsoleLinkAnswer:
        return await self._call(commands.ConsoleLink(role, new_tokens), answers.ConsoleLinkAnswer)

    async def reconciliation(self) -> ReconciliationView:
        return (await self._call(commands.Reconciliation(), answers.ReconciliationAnswer)).report

    async def plans(self) -> PlansView:
        return (await self._call(commands.Plans(), answers.PlansAnswer)).plans

    async def revoke(self, certificate: str) -> RevocationView:
        return (await self._call(commands.Revoke(certificate), answers.RevocationAnswer)).revocation

    async def metrics(self) -> str:
        return (await self._call(commands.Metrics(), answers.MetricsAnswer)).text

    async def export_diagnostics(self) -> answers.DiagnosticsAnswer:
        return await self._call(commands.ExportDiagnostics(), answers.DiagnosticsAnswer)

    async def log_decisions(self, for_s: float) -> DebugView:
        return (await self._call(commands.LogDecisions(for_s), answers.DebugAnswer)).debug

    async def schedule(self, worker: str) -> tuple[StepRecord, ...]:
        """Take the worker's oldest recorded steps; if cancelled they may be lost."""
        return (await self._call(commands.Schedule(worker), answers.ScheduleAnswer)).steps

    async def events(
        self,
        session: str,
        after: int | None = None,
        *,
        max_events: int = commands.MAX_EVENTS,
        wait_s: float = 10.0,
    ) -> answers.EventsAnswer:
        """One poll: events strictly after the cursor, perhaps none; pass `cursor` to the next."""
        return await self._call(commands.Events(session, after, max_events, wait_s), answers.EventsAnswer)

    async def _call(self, command: commands.OpsCommand, expected: type[A]) -> A:
        async with self._turn:
            self._request += 1
            frame = frames.encode_request(self._request, command)
            with trio.move_on_after(self._timeout_s):
                await self._socket.send_multipart([frame])
                answer = await self._receive()
                if isinstance(answer, answers.Error):
                    raise _raised(answer)
                if not isinstance(answer, expected):
                    raise SwapdError(Code.FRAME_MALFORMED, f"answered with {type(answer).__name__}")
                return answer
            raise SwapdError(
                Code.TIMEOUT, f"{self._where} after {self._timeout_s:g} s; is `swapd serve` alive?"
            )

    async def _receive(self) -> answers.OpsAnswer:
        while True:
            reply = frames.decode_reply((await self._socket.recv_multipart())[-1])
            # Id 0 answers a frame that the service could not read; only ours can be meant.
            if reply.id in (self._request, 0):
                return reply.body


def _raised(answer: answers.Error) -> SwapdError:
    try:
        code = Code(answer.code)
    except ValueError:
        return SwapdError(Code.INTERNAL, f"{answer.code}: {answer.message}")
    return SwapdError(code, answer.detail, retry_after_s=answer.retry_after_s)


@asynccontextmanager
async def open_ops(socket_dir: str | Path, timeout_s: float = ANSWER_TIMEOUT_S) -> AsyncIterator[OpsClient]:
    """Connect to the service whose sockets are in `socket_dir`. Raises `not_ready` where there is none."""
    _require(socket_dir, frames.OPS_SOCKET)
    context = zmq.Context[zmq.Socket[bytes]]()
    try:
        async with open_socket(
            context,
            zmq.DEALER,
            connect=ipc_endpoint(socket_dir, frames.OPS_SOCKET),
            max_message_bytes=frames.MAX_ANSWER_BYTES + 1,
        ) as socket:
            yield OpsClient(socket, str(socket_dir), timeout_s)
    finally:
        context.term()


@asynccontextmanager
async def open_state_events(
    socket_dir: str | Path, kind: str = ""
) -> AsyncIterator[Callable[[], Awaitable[frames.StateEvent]]]:
    """Subscribe to state events whose kind begins with `kind`; call the value for the next one."""
    _require(socket_dir, frames.EVENTS_SOCKET)
    context = zmq.Context[zmq.Socket[bytes]]()
    try:
        async with open_socket(
            context,
            zmq.SUB,
            connect=ipc_endpoint(socket_dir, frames.EVENTS_SOCKET),
            subscribe=kind.encode(),
        ) as socket:

            async def receive() -> frames.StateEvent:
                return frames.decode_state_event((await socket.recv_multipart())[-1])

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
