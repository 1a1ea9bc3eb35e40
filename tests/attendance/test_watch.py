"""Whatever becomes of a bus, attendance is never guessed, and neither the watch nor the service ends."""

from __future__ import annotations

import logging
import tempfile
from contextlib import suppress
from typing import Final

import pytest
import trio
import trio.testing

from swapd.attendance import gamemode as game_reader
from swapd.attendance import logind as reader
from swapd.attendance.bus import Bus, BusPlaces, bus_places
from swapd.attendance.rules import Seen
from swapd.attendance.watch import AttendanceWatch
from swapd.config import OwnerConfig
from tests.attendance.buses import MockGameMode, MockLogind, PrivateBus
from tests.attendance.conftest import BY_SIGNALS, IMPATIENT, LIMIT_S, ONLY_LOGINS, Witness, watching
from tests.descriptors import none_left_open, open_files

DAMAGED_REPLY: Final = b"l\x02\x01\x01" + bytes(4) + b"\1\0\0\0\5\0\0\0" + b"\1\2\3\4\5\0\0\0"


async def test_a_bus_that_dies_makes_attendance_unknown_at_once_and_its_return_known(
    bus: PrivateBus, logind: MockLogind
) -> None:
    logind.add("c1")
    # No timer and no deadline of a call can have told: only the broken connection.
    async with watching(bus) as witness:
        await witness.until("unlocked")
        bus.kill()
        await witness.until("unknown")
        assert ("unknown", "the connection to the system bus is lost") in witness.seen
        await witness.until("unknown", "the system bus is not there")
        bus.start()
        again = MockLogind(bus)
        try:
            again.add("c1", locked=True)
            await witness.until("locked")
        finally:
            again.close()
        assert witness.watch.statistics().losses >= 1


async def test_a_bus_that_hangs_makes_attendance_unknown_after_the_deadline(
    bus: PrivateBus, logind: MockLogind
) -> None:
    logind.add("c1")
    async with watching(bus, timings=IMPATIENT) as witness:
        await witness.until("unlocked")
        bus.hang()
        await witness.until("unknown", "the login manager does not answer")
        # New connections are taken by the kernel and never answered: still nobody is kept waiting.
        await witness.until_counted("losses", 2)
        assert witness.watch.attendance == "unknown"
        bus.resume()
        await witness.until("unlocked")


async def test_a_service_starts_while_the_bus_hangs(bus: PrivateBus) -> None:
    bus.hang()
    async with watching(bus, timings=IMPATIENT) as witness:
        assert witness.watch.attendance == "unknown"
        await witness.until("unknown", "the login manager does not answer")


async def test_a_machine_without_a_bus_is_unknown_and_that_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "swapd.attendance")
    async with watching(None, timings=IMPATIENT) as witness:
        await witness.until("unknown", "the system bus is not there")
        await witness.until_counted("losses", 3)
    assert [record.message for record in caplog.records] == ["bus is not available"]


@pytest.mark.parametrize(
    "address", ["", "nonsense", "tcp:host=localhost,port=1", "unix:path", "unix:dir=/tmp"]
)
async def test_an_address_that_cannot_be_used_is_a_bus_that_is_not_there(address: str) -> None:
    witness = Witness(ONLY_LOGINS, BusPlaces(address, address), IMPATIENT)
    async with trio.open_nursery() as nursery:
        await nursery.start(witness.watch.run)
        await witness.until("unknown", "the system bus is not there")
        assert witness.watch.statistics().crashes == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "script",
    [
        b"",
        b"REJECTED EXTERNAL\r\n",
        b"x" * 10000 + b"|",
        b"OK 1234\r\nmore",
        b"OK 1234\r\n|" + b"\xff" * 64,
        b"OK 1234\r\n|" + DAMAGED_REPLY,
        b"OK 1234\r\n|",
    ],
)
async def test_what_does_not_speak_d_bus_is_a_bus_that_is_lost(script: bytes) -> None:
    """Each `|` waits for the client's next words, so that the answer is taken for what it claims to be."""
    with tempfile.TemporaryDirectory(prefix="bus") as folder:
        path = f"{folder}/bus"
        listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        with listener:
            await listener.bind(path)
            listener.listen(5)

            async def serve() -> None:
                while True:
                    connection, _ = await listener.accept()
                    with connection, suppress(OSError):
                        asked = b""
                        while not asked.endswith(b"\r\n"):
                            asked += await connection.recv(4096)
                        for number, part in enumerate(script.split(b"|")):
                            if number:
                                await connection.recv(4096)
                            await connection.send(part)

            witness = Witness(
                ONLY_LOGINS, BusPlaces(f"unix:path={path}", "unix:path=/nonexistent"), IMPATIENT
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                await nursery.start(witness.watch.run)
                await witness.until("unknown", "the system bus is not there")
                assert witness.watch.statistics().crashes == 0
                nursery.cancel_scope.cancel()


async def test_a_crash_makes_attendance_unknown_and_watching_begins_anew(
    bus: PrivateBus, logind: MockLogind, monkeypatch: pytest.MonkeyPatch
) -> None:
    logind.add("c1")
    real = reader.read_attendance
    broken = False

    async def sometimes(connection: Bus) -> Seen:
        if broken:
            raise RuntimeError("a bug")
        return await real(connection)

    monkeypatch.setattr(reader, "read_attendance", sometimes)
    async with watching(bus) as witness:
        await witness.until("unlocked")
        broken = True
        logind.lock("c1")
        await witness.until("unknown", "watching the login manager failed and is tried again")
        broken = False
        await witness.until("locked")
        assert witness.watch.statistics().crashes >= 1


async def test_a_crash_of_one_part_does_not_touch_the_other(
    bus: PrivateBus, logind: MockLogind, gamemode: MockGameMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    logind.add("c1")

    async def broken(connection: Bus) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(game_reader, "read_game", broken)
    async with watching(bus, bus, OwnerConfig()) as witness:
        await witness.until("unlocked")
        await witness.until_counted("crashes", 2)
        logind.lock("c1")
        await witness.until("locked")
        assert witness.watch.game is False
    assert [attendance for attendance, _ in witness.seen] == ["unlocked", "locked"]


async def test_a_listener_that_fails_does_not_end_the_watching(
    bus: PrivateBus, logind: MockLogind, caplog: pytest.LogCaptureFixture
) -> None:
    logind.add("c1")
    told = trio.Event()

    def fails(attendance: str, detail: str) -> None:
        if attendance == "locked":
            told.set()
        raise RuntimeError("a bug of the listener")

    places = BusPlaces(bus.address, bus.address)
    watch = AttendanceWatch(ONLY_LOGINS, fails, lambda game: None, places, BY_SIGNALS)
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.run)
        logind.lock("c1")
        with trio.fail_after(LIMIT_S):
            await told.wait()
        assert watch.attendance == "locked"
        assert watch.statistics().crashes == 0
        nursery.cancel_scope.cancel()
    assert "listener of attendance failed" in caplog.text


async def test_a_headless_machine_has_one_profile_and_is_never_unknown(
    bus: PrivateBus, logind: MockLogind
) -> None:
    """D34."""
    logind.add("c1", locked=True)
    owner = OwnerConfig(presence="headless")
    async with watching(bus, bus, owner, IMPATIENT) as witness:
        assert witness.watch.attendance == "unlocked"
        assert witness.seen == [("unlocked", "headless by configuration")]
        bus.kill()
        await witness.until_counted("losses", 2)
    assert witness.seen == [("unlocked", "headless by configuration")]


def test_presence_is_watched_unless_the_configuration_says_headless() -> None:
    """D34."""
    assert OwnerConfig().presence == "auto"
    watch = AttendanceWatch(OwnerConfig(), lambda attendance, detail: None, lambda game: None)
    assert (watch.attendance, watch.detail) == ("unknown", "the login sessions have not been read yet")


def test_the_buses_are_where_d_bus_puts_them_unless_the_environment_says_otherwise() -> None:
    assert bus_places({}, 1000) == BusPlaces(
        "unix:path=/run/dbus/system_bus_socket", "unix:path=/run/user/1000/bus"
    )
    environ = {"DBUS_SYSTEM_BUS_ADDRESS": "unix:path=/a", "DBUS_SESSION_BUS_ADDRESS": "unix:path=/b"}
    assert bus_places(environ, 1000) == BusPlaces("unix:path=/a", "unix:path=/b")
    assert bus_places(dict.fromkeys(environ, ""), 7) == bus_places({}, 7)


async def test_cancelling_leaves_nothing_behind(bus: PrivateBus, logind: MockLogind) -> None:
    """At whatever point of connecting, saying hello or reading the cancellation comes."""
    logind.add("c1")
    with none_left_open():
        for steps in range(30):
            witness = Witness(ONLY_LOGINS, BusPlaces(bus.address, bus.address), IMPATIENT)
            async with trio.open_nursery() as nursery:
                await nursery.start(witness.watch.run)
                for _ in range(steps):
                    await trio.sleep(0.0005)
                nursery.cancel_scope.cancel()


async def test_cancelling_while_a_bus_hangs_leaves_nothing_behind(bus: PrivateBus) -> None:
    bus.hang()
    witness = Witness(ONLY_LOGINS, BusPlaces(bus.address, bus.address), BY_SIGNALS)
    with none_left_open():
        before = open_files()
        async with trio.open_nursery() as nursery:
            await nursery.start(witness.watch.run)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert open_files() - before
            nursery.cancel_scope.cancel()
