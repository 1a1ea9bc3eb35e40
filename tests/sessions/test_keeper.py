"""The clocks of sessions, to the second (H13, H14, H15)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from swapd.config import LimitConfig
from swapd.errors import Code
from swapd.messages import to_worker as into
from swapd.sessions.keeper import Keeper, verdict
from swapd.sessions.record import Terminal
from tests.migration.world import open_world
from tests.sessions.test_live import live
from tests.store.failing import CommitFails, CommitFailsStore


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [
        (599.0, None),
        (599.999, None),
        (600.0, ("failed", Code.LIFETIME_EXCEEDED)),
        (601.0, ("failed", Code.LIFETIME_EXCEEDED)),
    ],
)
def test_a_session_ends_at_its_lifetime(age_s: float, expected: tuple[str, Code] | None) -> None:
    """H13, H174: 600 s as asked for; at 599 s it is untouched."""
    session = live(max_lifetime_s=600.0)
    session.readers, session.unread_since = 1, None
    assert verdict(session, wall=1000.0 + age_s, now=5.0, grace_s=30.0) == expected


@pytest.mark.parametrize(
    ("unread_s", "expected"),
    [(29.0, None), (29.999, None), (30.0, ("cancelled", Code.DISCONNECT_GRACE_EXPIRED))],
)
def test_a_session_without_a_reader_ends_after_its_grace(
    unread_s: float, expected: tuple[str, Code] | None
) -> None:
    """H14, H175: counted from its creation if nobody ever read it (A2)."""
    session = live(on_disconnect="cancel")
    assert verdict(session, wall=1000.0, now=5.0 + unread_s, grace_s=30.0) == expected


@pytest.mark.parametrize("choice", ["pause", "continue"])
def test_a_session_that_asked_to_outlive_its_readers_does(choice: str) -> None:
    """H14, decision 9: only its lifetime ends it."""
    session = live(on_disconnect=choice)
    assert verdict(session, wall=1000.0, now=1e9, grace_s=30.0) is None
    assert verdict(session, wall=1600.0, now=1e9, grace_s=30.0) == ("failed", Code.LIFETIME_EXCEEDED)


def test_a_reader_that_came_back_stops_the_grace() -> None:
    """H14: re-subscribed at 29 s, it continues."""
    session = live(on_disconnect="cancel")
    session.readers, session.unread_since = 1, None
    assert verdict(session, wall=1000.0, now=1e9, grace_s=30.0) is None


def test_a_session_that_is_over_is_left_alone() -> None:
    """H3, H16"""
    session = live(on_disconnect="cancel")
    session.ending = Terminal("completed", "eos", None, 1.0)
    assert verdict(session, wall=1e9, now=1e9, grace_s=30.0) is None


async def test_what_is_due_ends_and_what_was_kept_long_enough_is_deleted(tmp_path: Path) -> None:
    """H13, H15: explicitly, at the worker, in the store; retention counts from the end."""
    limits = LimitConfig(retention_s=3600.0)
    created, ahead_s = 1000.0, 599.0

    def wall() -> float:
        return created + ahead_s

    async with open_world(tmp_path, limits=limits, wall=wall) as world, trio.open_nursery() as nursery:
        session = await world.session(max_lifetime_s=600.0, created_at=created)
        young = await world.session("young", max_lifetime_s=1e9, created_at=created)
        keeper = Keeper(world.config, world.table, wall)
        await nursery.start(keeper.run)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert not session.over
        ahead_s = 600.0
        await world.until(lambda: session.ended)
        assert (session.record.state, session.record.code) == ("failed", Code.LIFETIME_EXCEEDED)
        assert world.bodies(into.Cancel) == [into.Cancel("s", 1)]
        assert world.table.get("s") is session
        ahead_s = 600.0 + 3599.9
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert await world.transcript() == [101, 102, 103, 104, 105, 106]
        ahead_s = 600.0 + 3600.0
        await world.until(lambda: world.table.get("s") is None)
        assert await world.transcript() == []
        assert world.table.get("young") is young
        nursery.cancel_scope.cancel()


async def test_a_store_that_fails_does_not_end_the_service_by_its_keeper(tmp_path: Path) -> None:
    """H160: no crash; what is due ends after the restart."""
    try:
        async with (
            open_world(tmp_path, store_class=CommitFailsStore) as world,
            trio.open_nursery() as nursery,
        ):
            await world.session(max_lifetime_s=0.0)
            CommitFails.armed = True
            await nursery.start(Keeper(world.config, world.table).run)
            await world.store.wait_failed()
    finally:
        CommitFails.armed = False
