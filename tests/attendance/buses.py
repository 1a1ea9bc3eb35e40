"""Real message buses for the tests: dbus-daemon with a private configuration, python-dbusmock on it.

dbusmock runs under the system's Python, whose packages Debian's python3-dbusmock brings. The tests drive it
over a connection of their own, with blocking calls: it is another process, and answers in a millisecond.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from jeepney import DBusAddress, MatchRule, MessageType, message_bus, new_method_call
from jeepney.io.blocking import DBusConnection, open_dbus_connection

SYSTEM_PYTHON: Final = "/usr/bin/python3"
WAIT_S: Final = 40.0
MOCK: Final = "org.freedesktop.DBus.Mock"
CONFIGURATION: Final = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <servicedir>{services}</servicedir>
  <limit name="service_start_timeout">1000</limit>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""


class PrivateBus:
    """A dbus-daemon of the test's own, that can be killed, stopped and started again at its address."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "bus"
        self.address = f"unix:path={self.socket}"
        self.services = folder / "services"
        self.services.mkdir()
        self.configuration = folder / "bus.conf"
        self.configuration.write_text(CONFIGURATION.format(socket=self.socket, services=self.services))
        self._daemon: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Returns once it accepts connections. What a killed one left of its socket is removed."""
        self.socket.unlink(missing_ok=True)
        self._daemon = subprocess.Popen(
            [
                "dbus-daemon",
                f"--config-file={self.configuration}",
                "--nofork",
                "--nopidfile",
                "--print-address",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._daemon.stdout is not None
        assert self._daemon.stdout.readline().startswith("unix:path=")

    def kill(self) -> None:
        """SIGKILL, which also ends one that is stopped."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.communicate(timeout=WAIT_S)
            self._daemon = None

    def hang(self) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGCONT)


class Mock:
    """One python-dbusmock process and the connection by which the test tells it what to say."""

    def __init__(self, bus: PrivateBus, name: str, *arguments: str) -> None:
        self.name = name
        self.connection: DBusConnection = open_dbus_connection(bus.address)
        rule = MatchRule(type="signal", interface="org.freedesktop.DBus", member="NameOwnerChanged")
        rule.add_arg_condition(0, name)
        self.connection.send_and_get_reply(message_bus.AddMatch(rule), timeout=WAIT_S)
        with self.connection.filter(rule) as owned:
            self._process = subprocess.Popen(
                [SYSTEM_PYTHON, "-m", "dbusmock", *arguments],
                env={
                    "PATH": os.environ["PATH"],
                    "DBUS_SYSTEM_BUS_ADDRESS": bus.address,
                    "DBUS_SESSION_BUS_ADDRESS": bus.address,
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            try:
                self.connection.recv_until_filtered(owned, timeout=WAIT_S)
            except BaseException:
                self.close()
                raise

    def tell(
        self, path: str, interface: str, member: str, signature: str | None = None, *arguments: Any
    ) -> Any:
        target = DBusAddress(path, bus_name=self.name, interface=interface)
        message = new_method_call(target, member, signature, arguments)
        reply = self.connection.send_and_get_reply(message, timeout=WAIT_S)
        assert reply.header.message_type is MessageType.method_return, reply.body
        return reply.body

    def end(self) -> None:
        """SIGKILL: the bus takes its names away. Waited for, so that nothing is left behind."""
        self._process.kill()
        self._process.wait(WAIT_S)

    def close(self) -> None:
        self.end()
        self.connection.close()


class MockLogind(Mock):
    """dbusmock's own logind, with what its template leaves out."""

    MANAGER: Final = "/org/freedesktop/login1"
    SESSION: Final = "org.freedesktop.login1.Session"

    def __init__(self, bus: PrivateBus) -> None:
        super().__init__(bus, "org.freedesktop.login1", "--system", "--template", "logind")

    def path(self, session: str) -> str:
        return f"{self.MANAGER}/session/{session}"

    def add(self, session: str, *, locked: bool = False, type: str = "wayland", **more: Any) -> None:
        """A user's session: graphical unless `type` says otherwise; `more` are further properties."""
        self.tell(self.MANAGER, MOCK, "AddSession", "ssusb", session, "seat0", 1000, "mallory", True)
        properties: dict[str, Any] = {"Type": type, "LockedHint": locked, **more}
        can_lock = properties.pop("CanLock", None)
        if can_lock is not None:
            variant = ("b", can_lock)
            self.tell(self.path(session), MOCK, "AddProperty", "ssv", self.SESSION, "CanLock", variant)
        self.change(session, **properties)
        # The template tells nobody of a new session; logind does.
        self.manager_signal("SessionNew", "so", ("s", session), ("o", self.path(session)))

    def change(self, session: str, **properties: Any) -> None:
        variants = {name: ("b" if isinstance(v, bool) else "s", v) for name, v in properties.items()}
        self.tell(self.path(session), MOCK, "UpdateProperties", "sa{sv}", self.SESSION, variants)

    def lock(self, session: str, locked: bool = True) -> None:
        """As a desktop does it."""
        self.tell(self.path(session), self.SESSION, "SetLockedHint", "b", locked)

    def remove_quietly(self, session: str) -> None:
        """The session ends, and no signal tells of it."""
        self.tell(self.MANAGER, MOCK, "RemoveObject", "s", self.path(session))

    def remove(self, session: str) -> None:
        self.remove_quietly(session)
        self.manager_signal("SessionRemoved", "so", ("s", session), ("o", self.path(session)))

    def manager_signal(self, member: str, signature: str, *arguments: tuple[str, Any]) -> None:
        interface = f"{self.name}.Manager"
        self.tell(self.MANAGER, MOCK, "EmitSignal", "sssav", interface, member, signature, list(arguments))


class MockGameMode(Mock):
    """GameMode as far as it is asked: the number of its clients."""

    NAME: Final = "com.feralinteractive.GameMode"
    PATH: Final = "/com/feralinteractive/GameMode"

    def __init__(self, bus: PrivateBus, clients: int = 0) -> None:
        super().__init__(bus, self.NAME, "--session", self.NAME, self.PATH, self.NAME)
        self.tell(self.PATH, MOCK, "AddProperty", "ssv", self.NAME, "ClientCount", ("i", clients))

    def clients(self, count: int) -> None:
        variants = {"ClientCount": ("i", count)}
        self.tell(self.PATH, MOCK, "UpdateProperties", "sa{sv}", self.NAME, variants)


class ScriptedLogind(Mock):
    """A login manager whose `ListSessions` runs a line of the test's own."""

    def __init__(self, bus: PrivateBus, list_sessions: str) -> None:
        name, path = "org.freedesktop.login1", "/org/freedesktop/login1"
        super().__init__(bus, name, "--system", name, path, f"{name}.Manager")
        self.tell(path, MOCK, "AddMethod", "sssss", "", "ListSessions", "", "a(susso)", list_sessions)


@contextmanager
def private_bus() -> Iterator[PrivateBus]:
    """Its folder is a short one: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="bus") as folder:
        bus = PrivateBus(Path(folder))
        try:
            bus.start()
            yield bus
        finally:
            bus.kill()
