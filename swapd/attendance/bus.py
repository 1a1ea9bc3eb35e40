"""One connection to a D-Bus message bus, on Trio. The only place that knows `jeepney`, which has no types.

jeepney makes and reads the messages and moves them over the socket. Its router is not used: a reply that
never comes because the bus is gone ends there in a `KeyError`, and its filters drop what they cannot hold.
Here a signal carries nothing: it only says that something may have changed, and the properties are read
again. So signals need no queue, and a flood of them costs no memory.
"""

from __future__ import annotations

import os
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import trio
from jeepney import DBusAddress, HeaderFields, MessageFlag, MessageType, new_method_call
from jeepney.auth import BEGIN, AuthenticationError, Authenticator
from jeepney.bus import get_connectable_addresses
from jeepney.io.trio import DBusConnection

DAMAGED: Final = (ValueError, KeyError, IndexError, TypeError, AssertionError, struct.error)
"""jeepney's parser has no error of its own: these are what damaged bytes end in."""
NOBODY_OWNS_IT: Final = frozenset(
    {"org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner"}
)
GONE: Final = frozenset(
    {
        "org.freedesktop.DBus.Error.UnknownObject",
        "org.freedesktop.DBus.Error.UnknownMethod",
        "org.freedesktop.DBus.Error.UnknownInterface",
        "org.freedesktop.login1.NoSuchSession",
    }
)
"""What is answered about an object that ended meanwhile; which of them depends on who serves it."""


class BusLost(Exception):
    """The bus cannot be used any more. `silent`: it is there but does not answer."""

    def __init__(self, reason: str, silent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.silent = silent


class BusRefused(Exception):
    """The answer to a call was an error; `name` is the D-Bus name of it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class BusPlaces(NamedTuple):
    """D-Bus addresses of the machine's bus and of the bus of the service's own user."""

    system: str
    session: str


def bus_places(environ: Mapping[str, str], uid: int) -> BusPlaces:
    """Where the buses are by D-Bus convention. The one thing that `serve` takes from the environment."""
    return BusPlaces(
        environ.get("DBUS_SYSTEM_BUS_ADDRESS") or "unix:path=/run/dbus/system_bus_socket",
        environ.get("DBUS_SESSION_BUS_ADDRESS") or f"unix:path=/run/user/{uid}/bus",
    )


class Target(NamedTuple):
    """The object and interface that a call goes to."""

    name: str
    path: str
    interface: str


THE_BUS: Final = Target("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
PROPERTIES: Final = "org.freedesktop.DBus.Properties"


class Bus:
    """Calls with a deadline over one connection, and a nudge for every signal that matched."""

    def __init__(self, connection: DBusConnection, on_signal: Callable[[], None], call_s: float) -> None:
        self._connection = connection
        self._on_signal = on_signal
        self._call_s = call_s
        self._waiting: dict[int, trio.Event] = {}
        self._answers: dict[int, tuple[object, ...] | BusRefused] = {}

    async def call(
        self, target: Target, member: str, signature: str | None = None, *arguments: object
    ) -> tuple[object, ...]:
        """Call and return the reply's values. It starts no service that is not running.

        Raises `BusRefused` for an error reply, `BusLost` when there is no reply in time: the connection is
        of no use then. Cancelled: the call may or may not have its effect.
        """
        address = DBusAddress(target.path, bus_name=target.name, interface=target.interface)
        message = new_method_call(address, member, signature, arguments)
        message.header.flags |= MessageFlag.no_auto_start
        serial = next(self._connection.outgoing_serial)
        answered = self._waiting[serial] = trio.Event()
        try:
            with trio.move_on_after(self._call_s):
                await self._send(message, serial)
                await answered.wait()
            answer = self._answers.pop(serial, None)
        finally:
            del self._waiting[serial]
            self._answers.pop(serial, None)
        if answer is None:
            raise BusLost("no answer in time", silent=True)
        if isinstance(answer, BusRefused):
            raise answer
        return answer

    async def watch(self, rule: str) -> None:
        """Let signals that fit the match rule come to this connection."""
        await self.call(THE_BUS, "AddMatch", "s", rule)

    async def properties(self, target: Target) -> dict[str, object]:
        """Read all properties of the target's interface. Raises as `call` does."""
        answer = await self.call(target._replace(interface=PROPERTIES), "GetAll", "s", target.interface)
        found = answer[0] if answer else None
        if not isinstance(found, dict):
            raise BusLost("an answer is not what D-Bus promises")
        # A variant is a pair: its type, its value.
        return {name: variant[1] for name, variant in found.items() if isinstance(variant, tuple)}

    async def _send(self, message: object, serial: int) -> None:
        try:
            await self._connection.send(message, serial=serial)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise BusLost("the connection broke") from None

    async def receive(self) -> None:
        """Take in what the bus sends until it is lost. Raises `BusLost`."""
        while True:
            try:
                message = await self._connection.receive()
            except (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
                raise BusLost("the connection broke") from None
            except DAMAGED:
                raise BusLost("what came is not D-Bus") from None
            header = message.header
            if header.message_type is MessageType.signal:
                self._on_signal()
            elif header.message_type in (MessageType.method_return, MessageType.error):
                serial = header.fields.get(HeaderFields.reply_serial)
                answered = self._waiting.get(serial)
                if answered is not None:
                    if header.message_type is MessageType.error:
                        name = str(header.fields.get(HeaderFields.error_name, ""))
                        self._answers[serial] = BusRefused(name)
                    else:
                        self._answers[serial] = tuple(message.body)
                    answered.set()


@asynccontextmanager
async def open_bus(address: str, on_signal: Callable[[], None], call_s: float) -> AsyncIterator[Bus]:
    """Connect and say hello. Raises `BusLost`, alone or in an exception group, then or in the body."""
    connection = await _connect(address, call_s)
    try:
        bus = Bus(connection, on_signal, call_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bus.receive)
            await bus.call(THE_BUS, "Hello")
            yield bus
            nursery.cancel_scope.cancel()
    finally:
        # Closing is a plain close(2) behind an async name: it cannot block.
        connection.socket.close()


async def _connect(address: str, within_s: float) -> DBusConnection:
    try:
        path = next(get_connectable_addresses(address))
    except (ValueError, RuntimeError):
        raise BusLost("the address of the bus is not one that can be used") from None
    socket = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    try:
        with trio.fail_after(within_s):
            await socket.connect(os.fspath(path))
            await _authenticate(trio.SocketStream(socket))
    except trio.TooSlowError:
        socket.close()
        raise BusLost("the bus does not answer", silent=True) from None
    except (OSError, trio.BrokenResourceError):
        socket.close()
        raise BusLost("the bus is not there") from None
    except AuthenticationError:
        socket.close()
        raise BusLost("the bus refuses this user") from None
    except BaseException:
        socket.close()
        raise
    return DBusConnection(socket)


async def _authenticate(stream: trio.SocketStream) -> None:
    """Say who we are (the kernel vouches for it). Raises `BusLost`, `AuthenticationError`."""
    authenticator = Authenticator(inc_null_byte=False)
    await stream.send_all(b"\0")
    for line in authenticator:
        if line:
            await stream.send_all(line)
        data = await stream.receive_some()
        # jeepney would go on asking an empty stream; too long a line it refuses itself.
        if not data:
            raise BusLost("the bus is not there")
        authenticator.feed(bytes(data))
    await stream.send_all(BEGIN)
