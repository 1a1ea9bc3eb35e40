"""Answers the operator's commands on `ipc://<socket_dir>/ops.sock` and publishes state events beside it.

Who can reach the socket is an operator: the directory belongs to the service's user alone (H107). A frame
that cannot be read is answered with its code and counted, and nothing a client sends ends the service.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
import trio
import zmq

import swapd
from swapd.api import Service
from swapd.errors import Code, SwapdError
from swapd.messages.ops import answers, commands, frames
from swapd.ops.bus import EventBus
from swapd.ops.readers import EventReaders
from swapd.transport.paths import ensure_private_dir, ipc_endpoint
from swapd.transport.sockets import Context, TrioSocket, open_socket
from swapd.views import Caller, Readiness

MAX_IN_FLIGHT: Final = 128
"""Commands answered at once, long polls included; more are refused with `capacity`."""
COMMAND_TIMEOUT_S: Final = 30.0
SEND_TIMEOUT_S: Final = 5.0
BETWEEN_POLLS_S: Final = 0.2
"""A client that polls is back within this, and hears then that the service stops."""
MAX_ARCHIVE_BYTES: Final = frames.MAX_ANSWER_BYTES * 11 // 16
"""In base64 it must fit into an answer."""
SOCKET_MAX_BYTES: Final = 8 << 20
"""Above the size that is answered with `frame_too_large`; beyond this the connection is closed (H95)."""
OPERATOR: Final = Caller("operators", is_operator=True)

logger = logging.getLogger("swapd.ops")


class OpsStatistics(msgspec.Struct, frozen=True):
    """Counts since start; `refused` holds answers with a code, by code."""

    commands: int
    in_flight: int
    readers: int
    unanswered: int
    events_published: int
    events_dropped: int
    refused: dict[str, int]


class OpsServer:
    """One ROUTER socket; each command runs in a task of its own, so that none waits for another."""

    def __init__(self, service: Service, bus: EventBus, caller: Caller = OPERATOR) -> None:
        self._service = service
        self._bus = bus
        self._caller = caller
        self._commands = 0
        self._in_flight = 0
        self._idle = trio.Event()
        self._unanswered = 0
        self._refused: Counter[str] = Counter()
        self._readers: EventReaders | None = None

    def statistics(self) -> OpsStatistics:
        bus = self._bus.statistics()
        return OpsStatistics(
            commands=self._commands,
            in_flight=self._in_flight,
            readers=self._readers.open_readers if self._readers else 0,
            unanswered=self._unanswered,
            events_published=bus.published,
            events_dropped=bus.dropped,
            refused=dict(self._refused),
        )

    async def serve(self, socket: TrioSocket) -> None:
        """Answer commands until the service stops and the last one that was taken has its answer."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_with_service, nursery.cancel_scope)
            self._readers = EventReaders(self._service, self._caller, nursery)
            while True:
                parts = await socket.recv_multipart()
                self._commands += 1
                # A REQ-like client sends an empty delimiter; it gets it back.
                if len(parts) not in (2, 3) or (len(parts) == 3 and parts[1]):
                    error = SwapdError(Code.FRAME_MALFORMED, f"{len(parts) - 1} frames, expected 1")
                    await self._answer(socket, parts[:1], 0, self._refuse(error))
                elif self._in_flight >= MAX_IN_FLIGHT:
                    error = SwapdError(Code.CAPACITY, f"{MAX_IN_FLIGHT} commands are being answered")
                    await self._answer(socket, parts[:-1], _request_id(parts[-1]), self._refuse(error))
                else:
                    self._in_flight += 1
                    nursery.start_soon(self._handle, socket, parts[:-1], parts[-1])

    async def _handle(self, socket: TrioSocket, envelope: list[bytes], frame: bytes) -> None:
        try:
            request, answer = await self._execute(envelope[0], frame)
            await self._answer(socket, envelope, request, answer)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def _end_with_service(self, scope: trio.CancelScope) -> None:
        await self._service.wait_stopping()
        await trio.sleep(BETWEEN_POLLS_S)
        while self._in_flight:
            self._idle = trio.Event()
            await self._idle.wait()
        scope.cancel()

    async def _execute(self, client: bytes, frame: bytes) -> tuple[int, answers.OpsAnswer]:
        try:
            request = frames.decode_request(frame)
        except frames.RequestRefused as refused:
            return refused.request, self._refuse(refused.error)
        try:
            with trio.fail_after(COMMAND_TIMEOUT_S):
                return request.id, await self._run(client, request.body)
        except SwapdError as error:
            return request.id, self._refuse(error)
        except trio.TooSlowError:
            return request.id, self._refuse(SwapdError(Code.TIMEOUT))
        except Exception as error:
            # The supervision boundary of a command: a bug in one is answered and ends nothing else.
            logger.error("internal error in a command", extra={"error_type": type(error).__name__})
            return request.id, self._refuse(SwapdError(Code.INTERNAL))

    async def _run(self, client: bytes, command: commands.OpsCommand) -> answers.OpsAnswer:
        service, caller = self._service, self._caller
        match command:
            case commands.Ping():
                return answers.Pong(swapd.__version__, os.getpid())
            case commands.Status():
                return await self._status()
            case commands.Workers():
                return answers.WorkersAnswer(tuple(await service.workers(caller)))
            case commands.Sessions():
                return answers.SessionsAnswer(tuple(await service.sessions(caller)))
            case commands.Session(session):
                return answers.SessionAnswer(await service.session(caller, session))
            case commands.CreateSession(request):
                return answers.SessionAnswer(await service.create_session(caller, request))
            case commands.CancelSession(session):
                return answers.SessionAnswer(await service.cancel_session(caller, session))
            case commands.Events():
                return await self._events(client, command)
            case commands.StartDrain(worker, deadline_s, mode, reason):
                return answers.DrainAnswer(
                    await service.start_drain(caller, worker, deadline_s, mode=mode, reason=reason)
                )
            case commands.StartDrains(workers, deadline_s, mode, reason):
                views = await service.start_drains(caller, workers, deadline_s, mode=mode, reason=reason)
                return answers.DrainsAnswer(tuple(views))
            case commands.Drain(drain):
                return answers.DrainAnswer(await service.drain(caller, drain))
            case commands.Drains():
                return answers.DrainsAnswer(tuple(await service.drains(caller)))
            case commands.CancelDrain(drain):
                return answers.DrainAnswer(await service.cancel_drain(caller, drain))
            case commands.Devices():
                return answers.DevicesAnswer(tuple(await service.devices(caller)))
            case commands.Device(device):
                return answers.DeviceAnswer(await service.device(caller, device))
            case commands.TakeDeviceBack(device, request):
                return answers.DeviceAnswer(await service.take_back(caller, device, request))
            case commands.Lend(device):
                return answers.DeviceAnswer(await service.lend(caller, device))
            case commands.Samples(device, since):
                return answers.SamplesAnswer(tuple(await service.samples(caller, device, since)))
            case commands.DeviceEvents(device):
                return answers.DeviceEventsAnswer(tuple(await service.device_events(caller, device)))
            case commands.Switches():
                return answers.SwitchesAnswer(await service.switches(caller))
            case commands.TurnSwitch(switch, on):
                return answers.SwitchesAnswer(await service.turn_switch(caller, switch, on=on))
            case commands.ClearQuarantine(worker):
                return answers.WorkerAnswer(await service.clear_quarantine(caller, worker))
            case commands.Reconciliation():
                return answers.ReconciliationAnswer(await service.reconciliation(caller))
            case commands.Plans():
                return answers.PlansAnswer(await service.plans.view(caller))
            case commands.Revoke(certificate):
                return answers.RevocationAnswer(await service.plans.revoke(caller, certificate))
            case commands.ConsoleLink(role, new_tokens):
                if new_tokens:
                    await service.door.new_tokens(caller)
                link = service.door.link(caller, role)
                return answers.ConsoleLinkAnswer(link.url, link.role, link.valid_s)
            case commands.Metrics():
                return answers.MetricsAnswer(service.metrics(caller).decode())
            case commands.ExportDiagnostics():
                return await self._export()
            case commands.LogDecisions(for_s):
                return answers.DebugAnswer(await service.log_decisions(caller, for_s))
            case commands.Schedule(worker):
                return answers.ScheduleAnswer((await service.schedule(caller, worker)).steps)

    async def _export(self) -> answers.OpsAnswer:
        archive = await self._service.export_diagnostics(self._caller)
        with archive.file as file:
            if archive.size_bytes > MAX_ARCHIVE_BYTES:
                told = (
                    f"the archive has {archive.size_bytes} bytes; fetch it from GET /v1/diagnostics/archive"
                )
                raise SwapdError(Code.FRAME_TOO_LARGE, told)
            data: bytes = await trio.to_thread.run_sync(file.read)
        return answers.DiagnosticsAnswer(archive.name, data)

    async def _events(self, client: bytes, command: commands.Events) -> answers.OpsAnswer:
        if (
            not 1 <= command.max_events <= commands.MAX_EVENTS
            or not 0 <= command.wait_s <= commands.MAX_WAIT_S
        ):
            limits = f"max_events 1 to {commands.MAX_EVENTS}, wait_s 0 to {commands.MAX_WAIT_S:g}"
            raise SwapdError(Code.INVALID_REQUEST, limits)
        if command.after is not None and command.after < 0:
            raise SwapdError(Code.CURSOR_INVALID)
        assert self._readers is not None
        events, ended = await self._readers.poll(
            client, command.session, command.after, command.max_events, command.wait_s
        )
        wire = tuple(answers.WireEvent(event.id, event.name, msgspec.Raw(event.data)) for event in events)
        return answers.EventsAnswer(wire, wire[-1].id if wire else command.after, ended)

    async def _status(self) -> answers.OpsAnswer:
        view = await self._service.status(self._caller)
        own = self.statistics()
        return answers.StatusAnswer(
            version=view.version,
            pid=os.getpid(),
            readiness=Readiness(view.ready, view.reasons),
            stopping=self._service.stopping,
            workers=view.workers,
            sessions=view.sessions,
            drains=view.drains,
            ready=view.ready,
            reasons=view.reasons,
            consent=view.consent,
            devices=view.devices,
            switches=view.switches,
            ops={
                "commands": own.commands,
                "refused": sum(own.refused.values()),
                "readers": own.readers,
                "unanswered": own.unanswered,
                "events_dropped": own.events_dropped,
            },
        )

    def _refuse(self, error: SwapdError) -> answers.OpsAnswer:
        self._refused[error.code] += 1
        return answers.refusal(error)

    async def _answer(
        self, socket: TrioSocket, envelope: list[bytes], request: int, answer: answers.OpsAnswer
    ) -> None:
        """Send an answer; a client that does not read loses it and may ask again."""
        with trio.move_on_after(SEND_TIMEOUT_S) as sending:
            await socket.send_multipart([*envelope, frames.encode_reply(request, answer)])
        if sending.cancelled_caught:
            self._unanswered += 1


def _request_id(frame: bytes) -> int:
    """The id of a request that is refused unread, if it has one."""
    try:
        return frames.decode_request(frame).id
    except frames.RequestRefused as refused:
        return refused.request


async def _publish(socket: TrioSocket, bus: EventBus) -> None:
    while True:
        for event in await bus.take():
            # A PUB socket drops for slow readers itself and never blocks.
            socket.try_send([event.kind.encode(), frames.encode_state_event(event)])


async def run_ops(
    service: Service,
    bus: EventBus,
    *,
    socket_dir: str | Path,
    context: Context,
    caller: Caller = OPERATOR,
    task_status: trio.TaskStatus[OpsServer] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the ops socket and the event stream until the service stops; started once both accept.

    The coordinator's lock must be held: ZeroMQ would take over a live path silently (H106). Raises
    `socket_path_too_long`, `config_invalid`.
    """
    ensure_private_dir(socket_dir)
    server = OpsServer(service, bus, caller)
    async with (
        open_socket(
            context,
            zmq.ROUTER,
            bind=ipc_endpoint(socket_dir, frames.OPS_SOCKET),
            max_message_bytes=SOCKET_MAX_BYTES,
        ) as socket,
        open_socket(context, zmq.PUB, bind=ipc_endpoint(socket_dir, frames.EVENTS_SOCKET)) as events,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_publish, events, bus)
        task_status.started(server)
        await server.serve(socket)
        nursery.cancel_scope.cancel()
