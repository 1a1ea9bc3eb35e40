"""The worker's end of the link to its coordinator: one ROUTER socket, one coordinator at a time.

Who may command is decided here and nowhere else. The highest coordinator generation that said `Hello` counts;
frames of lower ones are refused `fenced` and counted, and do not count as a sign of life. A command for
another incarnation is refused the same way (H104). A frame that cannot be read is answered where its request
id can still be made out, else dropped and counted; it never ends anything.

Sending and receiving are separate tasks, and the receiver never waits for the sender: a coordinator that
does not read its answers has its requests refused, and neither keeps its own credits nor its successor's
`Hello` from being read.
"""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

import msgspec
import trio

from swapd.errors import Code, SwapdError
from swapd.messages.envelope import Command, Report, decode_command, encode
from swapd.messages.from_worker import FromWorker, Ready, Refused
from swapd.messages.to_worker import Credit, Hello, Import, Prepare
from swapd.transport.sockets import TrioSocket
from swapd.worker.copier import CopyThread
from swapd.worker.mailbox import (
    CURRENT,
    Inbox,
    Outbox,
    Request,
    Takeover,
    Ticket,
)
from swapd.worker.staging import Staging
from swapd.worker.transfers import Transfers

_log = logging.getLogger("swapd.worker")


class Peer(NamedTuple):
    """The coordinator that counts: its ZeroMQ identity and generation, and its connection's number."""

    identity: bytes
    generation: int
    connection: int


class ControlStatistics(msgspec.Struct, frozen=True):
    """`fenced` and `malformed` are frames refused since start; `silent_s` since the coordinator's last."""

    fenced: int
    malformed: int
    silent_s: float


class CopyDesk(NamedTuple):
    """Where imports go without waiting for a step boundary."""

    staging: Staging
    transfers: Transfers
    precopy: CopyThread
    tails: CopyThread


class Control:
    """Reads commands and sends reports; never looks at the engine."""

    def __init__(self, ready: Ready, inbox: Inbox, outbox: Outbox, desk: CopyDesk) -> None:
        self._ready = ready
        self._inbox = inbox
        self._outbox = outbox
        self._desk = desk
        self._peer: Peer | None = None
        self._sending = trio.CancelScope()
        self._fenced = 0
        self._malformed = 0
        self._heard_s = trio.current_time()

    def statistics(self) -> ControlStatistics:
        silent_s = trio.current_time() - self._heard_s
        return ControlStatistics(self._fenced, self._malformed, silent_s)

    async def receive(self, socket: TrioSocket) -> None:
        """Read and route frames until cancelled; a frame that was read is always routed."""
        while True:
            parts = await socket.recv_multipart()
            self._take(socket, parts)

    async def send(self, socket: TrioSocket) -> None:
        """Send reports in order until cancelled; one that was taken then may be lost (Resend recovers it)."""
        while True:
            ticket, body = await self._outbox.get()
            peer = self._peer
            if peer is None or ticket.connection not in (CURRENT, peer.connection):
                continue
            frame = self._frame(ticket.request, peer.generation, body)
            with trio.CancelScope() as self._sending:
                await socket.send_multipart([peer.identity, frame])

    def _frame(self, request: int, generation: int, body: FromWorker) -> bytes:
        try:
            return encode(Report(self._ready.incarnation, generation, request, body))
        except SwapdError as error:
            refused = Refused(error.code, error.detail)
            return encode(Report(self._ready.incarnation, generation, request, refused))

    def _take(self, socket: TrioSocket, parts: list[bytes]) -> None:
        if len(parts) != 2:
            self._malformed += 1
            return
        identity, frame = parts
        try:
            command = decode_command(frame)
        except SwapdError as error:
            self._refuse_unread(socket, identity, frame, error)
            return
        try:
            peer = self._admit(identity, command)
            self._heard_s = trio.current_time()
            self._route(command, peer)
        except SwapdError as error:
            self._refuse(socket, identity, command.generation, command.request, error)

    def _admit(self, identity: bytes, command: Command) -> Peer:
        """Decide whether the sender may command, and as whom. Raises `fenced`."""
        peer = self._peer
        newest = peer.generation if peer else -1
        hello = command.body if isinstance(command.body, Hello) else None
        if hello is not None:
            wanted = hello.expected_incarnation or command.incarnation
        else:
            wanted = command.incarnation
        # H103: a pinned or remembered incarnation that is not ours means another process.
        other = wanted != self._ready.incarnation and (hello is None or wanted != "")
        if other or command.generation < newest or (hello is None and command.generation != newest):
            self._fenced += 1
            _log.warning("frame fenced", extra={"generation": command.generation})
            raise SwapdError(Code.FENCED)
        if hello is not None:
            if peer is None or peer[:2] != (identity, command.generation):
                # A new connection of the same coordinator, too, has lost what was on the way.
                self._peer = Peer(identity, command.generation, peer.connection + 1 if peer else 0)
                self._inbox.put(Takeover(self._peer.connection))
                # The one before may have stopped reading; what waits for it must not keep this one waiting.
                self._sending.cancel()
        elif peer is not None and identity != peer.identity:
            self._fenced += 1
            raise SwapdError(Code.FENCED, "another connection of this generation has said hello")
        assert self._peer is not None
        return self._peer

    def _route(self, command: Command, peer: Peer) -> None:
        ticket = Ticket(peer.connection, command.request)
        now_s = time.monotonic()
        if self._outbox.full and not isinstance(command.body, Hello | Credit):
            raise SwapdError(Code.NOT_READY, "answers are not being read")
        match command.body:
            case Hello():
                self._outbox.post(ticket, self._ready)
            case Credit(grants=grants):
                self._inbox.put_grants(grants)
            case Import() as message:
                self._desk.staging.touch(message.move, now_s)
                self._desk.precopy.submit(self._desk.transfers.take_in(ticket, message))
            case Prepare() as message:
                for item in message.items:
                    self._desk.staging.touch(item.move, now_s)
                self._desk.tails.submit(self._desk.transfers.take_in_tails(ticket, message))
            case _:
                self._inbox.put(Request(ticket, command.body, now_s))

    def _refuse(
        self, socket: TrioSocket, identity: bytes, generation: int, request: int, error: SwapdError
    ) -> None:
        """Answer past the outbox, to a peer that may not be the coordinator; best effort."""
        frame = self._frame(request, generation, Refused(error.code, error.detail))
        socket.try_send([identity, frame])

    def _refuse_unread(self, socket: TrioSocket, identity: bytes, frame: bytes, error: SwapdError) -> None:
        self._malformed += 1
        _log.warning("frame refused", extra={"code": error.code, "frame_bytes": len(frame)})
        if error.code is Code.FRAME_TOO_LARGE:
            return
        try:
            known = msgspec.msgpack.decode(frame[1:], type=_Salvaged)
        except (msgspec.DecodeError, RecursionError):
            return
        self._refuse(socket, identity, known.generation, known.request, error)


class _Salvaged(msgspec.Struct):
    """What is left of an envelope whose body cannot be read."""

    generation: int
    request: int
