"""What logind says is what swapd knows: over a real message bus, with python-dbusmock's logind on it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from swapd.attendance import logind as reader
from swapd.attendance.bus import Bus
from swapd.attendance.rules import Seen
from tests.attendance.buses import MockLogind, PrivateBus, ScriptedLogind
from tests.attendance.conftest import BY_SIGNALS, IMPATIENT, watching


async def test_locking_and_unlocking_is_seen(bus: PrivateBus, logind: MockLogind) -> None:
    logind.add("c1")
    async with watching(bus) as witness:
        await witness.until("unlocked", "1 session, 1 unlocked")
        logind.lock("c1")
        await witness.until("locked", "1 session, locked")
        logind.lock("c1", False)
        await witness.until("unlocked")
    assert [attendance for attendance, _ in witness.seen] == ["unlocked", "locked", "unlocked"]


async def test_the_machine_is_locked_only_when_every_session_is(bus: PrivateBus, logind: MockLogind) -> None:
    logind.add("c1", locked=True)
    async with watching(bus) as witness:
        await witness.until("locked")
        logind.add("c2", type="x11", State="online")
        await witness.until("unlocked", "2 sessions, 1 unlocked")
        logind.lock("c2")
        await witness.until("locked", "2 sessions, all locked")
        logind.add("c3")
        await witness.until("unlocked")
        logind.remove("c3")
        await witness.until("locked", "2 sessions, all locked")


async def test_a_remote_desktop_is_attendance_too(bus: PrivateBus, logind: MockLogind) -> None:
    logind.add("c1", locked=True)
    async with watching(bus) as witness:
        await witness.until("locked")
        logind.add("c2", Remote=True)
        await witness.until("unlocked", "2 sessions (1 remote), 1 unlocked")


async def test_a_login_over_ssh_is_not_at_the_machine(bus: PrivateBus, logind: MockLogind) -> None:
    logind.add("c1", locked=True)
    logind.add("c2", type="tty", Remote=True)
    async with watching(bus) as witness:
        await witness.until("locked", "1 session, locked")


async def test_a_session_that_cannot_lock_leaves_attendance_unknown(
    bus: PrivateBus, logind: MockLogind
) -> None:
    logind.add("c1", CanLock=False)
    async with watching(bus) as witness:
        await witness.until("unknown", "1 session, 1 without a known lock")
        logind.change("c1", CanLock=True)
        await witness.until("unlocked")


async def test_a_machine_without_graphical_sessions_is_unknown(bus: PrivateBus, logind: MockLogind) -> None:
    logind.add("c1", type="tty")
    logind.add("c2", Class="greeter")
    async with watching(bus) as witness:
        await witness.until("unknown", "no graphical session")


async def test_a_request_to_lock_is_not_a_lock(bus: PrivateBus, logind: MockLogind) -> None:
    logind.add("c1")
    async with watching(bus) as witness:
        await witness.until("unlocked")
        # Both are answered in order: were the request taken for the state, "locked" would be told first.
        logind.tell(logind.path("c1"), logind.SESSION, "Lock")
        logind.add("c2")
        await witness.until("unlocked", "2 sessions, 2 unlocked")
    assert all(attendance == "unlocked" for attendance, _ in witness.seen)


async def test_waking_up_reads_again(bus: PrivateBus, logind: MockLogind) -> None:
    logind.add("c1")
    async with watching(bus) as witness:
        await witness.until("unlocked")
        logind.remove_quietly("c1")
        logind.manager_signal("PrepareForSleep", "b", ("b", False))
        await witness.until("unknown", "no graphical session")


async def test_a_change_without_a_signal_is_found_by_the_timer(bus: PrivateBus, logind: MockLogind) -> None:
    logind.add("c1")
    async with watching(bus, timings=IMPATIENT) as witness:
        await witness.until("unlocked")
        logind.remove_quietly("c1")
        await witness.until("unknown", "no graphical session")


async def test_a_flood_of_changes_ends_in_the_truth_and_in_few_reads(
    bus: PrivateBus, logind: MockLogind
) -> None:
    logind.add("c1")
    async with watching(bus, timings=BY_SIGNALS._replace(coalesce_s=0.2)) as witness:
        await witness.until("unlocked")
        for locked in [True, False] * 50 + [True]:
            logind.lock("c1", locked)
            # The watch gets its turn: it could read after each.
            await trio.testing.wait_all_tasks_blocked(0.001)
        await witness.until("locked")
        statistics = witness.watch.statistics()
    assert statistics.signals > 10
    assert statistics.reads < statistics.signals / 2


async def test_a_login_manager_that_goes_away_leaves_attendance_unknown_until_it_is_back(
    bus: PrivateBus, logind: MockLogind
) -> None:
    logind.add("c1")
    async with watching(bus) as witness:
        await witness.until("unlocked")
        logind.end()
        await witness.until("unknown", "no login manager runs on this machine")
        again = MockLogind(bus)
        try:
            again.add("c1", locked=True)
            await witness.until("locked")
        finally:
            again.close()
        assert witness.watch.statistics().losses == 0


async def test_a_session_that_ends_while_it_is_read_is_left_out(bus: PrivateBus) -> None:
    ghost = 'ret = [("c9", 1000, "mallory", "seat0", dbus.ObjectPath("/org/freedesktop/login1/session/c9"))]'
    mock = ScriptedLogind(bus, ghost)
    try:
        async with watching(bus) as witness:
            await witness.until("unknown", "no graphical session")
    finally:
        mock.close()


async def test_a_login_manager_that_refuses_is_unknown_and_not_asked_in_a_loop(bus: PrivateBus) -> None:
    refusal = 'raise dbus.exceptions.DBusException("", name="org.freedesktop.DBus.Error.AccessDenied")'
    mock = ScriptedLogind(bus, refusal)
    try:
        async with watching(bus) as witness:
            await witness.until("unknown", "the login manager refuses to answer")
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert witness.watch.statistics().reads == 1
    finally:
        mock.close()


async def test_what_changes_during_a_read_is_not_missed(
    bus: PrivateBus, logind: MockLogind, monkeypatch: pytest.MonkeyPatch
) -> None:
    logind.add("c1")
    real = reader.read_attendance
    reads = 0

    async def read_then_lock(connection: Bus) -> Seen:
        nonlocal reads
        seen = await real(connection)
        reads += 1
        if reads == 1:
            # Its signal arrives before this read is told.
            logind.lock("c1")
            await connection.properties(reader.MANAGER)
        return seen

    monkeypatch.setattr(reader, "read_attendance", read_then_lock)
    async with watching(bus) as witness:
        await witness.until("locked")


async def test_no_name_of_a_person_is_told(bus: PrivateBus, logind: MockLogind) -> None:
    logind.add("c1", RemoteHost="evil.example", Remote=True)
    async with watching(bus) as witness:
        await witness.until("unlocked")
    assert "mallory" not in repr(witness.seen) + repr(witness.watch.statistics())
    assert "evil" not in repr(witness.seen) + repr(witness.watch.statistics())
