"""A game that GameMode knows of is seen at once; without GameMode there is none; asking starts nothing."""

from __future__ import annotations

from jeepney import message_bus
from jeepney.io.blocking import open_dbus_connection

from tests.attendance.buses import MockGameMode, MockLogind, PrivateBus
from tests.attendance.conftest import IMPATIENT, LIMIT_S, ONLY_GAMES, ONLY_LOGINS, watching


async def test_a_game_that_comes_and_goes_is_seen(bus: PrivateBus, gamemode: MockGameMode) -> None:
    async with watching(None, bus, ONLY_GAMES) as witness:
        await witness.until_counted("reads", 1)
        assert witness.games == []
        gamemode.clients(1)
        await witness.until_game(True)
        gamemode.clients(2)
        gamemode.clients(0)
        await witness.until_game(False)
    assert witness.games == [True, False]


async def test_a_game_that_runs_already_is_seen(bus: PrivateBus) -> None:
    gamemode = MockGameMode(bus, clients=1)
    try:
        async with watching(None, bus, ONLY_GAMES) as witness:
            await witness.until_game(True)
    finally:
        gamemode.close()


async def test_gamemode_may_come_later_and_when_it_ends_so_does_the_game(bus: PrivateBus) -> None:
    async with watching(None, bus, ONLY_GAMES) as witness:
        await witness.until_counted("reads", 1)
        gamemode = MockGameMode(bus)
        try:
            gamemode.clients(1)
            await witness.until_game(True)
            gamemode.end()
            await witness.until_game(False)
        finally:
            gamemode.close()


async def test_asking_never_starts_gamemode(bus: PrivateBus) -> None:
    started = bus.services / "started"
    service = bus.services / f"{MockGameMode.NAME}.service"
    service.write_text(f"[D-BUS Service]\nName={MockGameMode.NAME}\nExec=/usr/bin/touch {started}\n")
    bus.kill()
    bus.start()
    async with watching(None, bus, ONLY_GAMES, IMPATIENT._replace(call_s=LIMIT_S)) as witness:
        await witness.until_counted("reads", 3)
        assert witness.watch.game is False
        assert witness.watch.statistics().losses == 0
    assert not started.exists()
    # The bus would have: else this test showed nothing.
    with open_dbus_connection(bus.address) as connection:
        connection.send_and_get_reply(message_bus.StartServiceByName(MockGameMode.NAME), timeout=LIMIT_S)
    assert started.exists()


async def test_the_game_is_over_when_the_bus_is(bus: PrivateBus, gamemode: MockGameMode) -> None:
    gamemode.clients(1)
    async with watching(None, bus, ONLY_GAMES) as witness:
        await witness.until_game(True)
        bus.kill()
        await witness.until_game(False)


async def test_a_bus_that_hangs_ends_no_game(bus: PrivateBus, gamemode: MockGameMode) -> None:
    gamemode.clients(1)
    async with watching(None, bus, ONLY_GAMES, IMPATIENT) as witness:
        await witness.until_game(True)
        bus.hang()
        await witness.until_counted("losses", 2)
        assert witness.games == [True]
        bus.resume()
        gamemode.clients(0)
        await witness.until_game(False)


async def test_without_the_setting_nobody_asks_for_games(
    bus: PrivateBus, logind: MockLogind, gamemode: MockGameMode
) -> None:
    gamemode.clients(1)
    logind.add("c1")
    async with watching(bus, bus, ONLY_LOGINS) as witness:
        await witness.until("unlocked")
        logind.lock("c1")
        await witness.until("locked")
        assert witness.watch.statistics().reads == 2
    assert witness.games == []
