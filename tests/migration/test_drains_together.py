"""Who asks for a drain, and several workers that are drained together (B16)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from swapd.errors import Code, SwapdError
from swapd.messages import to_worker as into
from swapd.migration.askers import OWNERS
from swapd.store.drains import load_drain, open_drains
from swapd.views import DrainView
from tests.migration.world import ScriptedLink, World, open_world
from tests.store.failing import CommitFails, CommitFailsStore

THREE = ("a", "b", "c")


async def over(world: World, drain: str) -> DrainView:
    """The drain once its record says that it is over and its worker is open again."""
    while (view := await world.supervisor.view(drain)).finished_at is None:
        await world.table.wait_activity(0.02)
    await world.until(lambda: view.worker not in world.admission.closed)
    return view


def reserved_at(world: World) -> set[str]:
    return {name for name, body in world.journal if isinstance(body, into.Reserve)}


# Together ---------------------------------------------------------------------------------------------


async def test_workers_drained_together_are_closed_first_and_nobody_moves_twice(tmp_path: Path) -> None:
    """B16: no session goes to a worker of the same set; each moves once."""
    async with open_world(tmp_path, workers=THREE) as world:
        world.ledger.set_worker("c", 170, 8, 4)  # room for all; b, as long as it is open, has more
        sessions = [await world.session(f"{worker}{n}", worker) for worker in "ab" for n in range(3)]
        views = await world.supervisor.start_all(["a", "b"], 60, "operator")
        assert [view.worker for view in views] == ["a", "b"]
        for view in views:
            told = await over(world, view.id)
            assert {(each.outcome, each.target) for each in told.sessions} == {("completed_native", "c")}
        assert reserved_at(world) == {"c"}
        assert {session.record.epoch for session in sessions} == {2}
        await world.check_baseline()


async def test_drains_that_begin_one_after_the_other_find_the_others_closed(tmp_path: Path) -> None:
    """B16: two calls at the same time are as good as one, for whoever has not been committed."""
    async with open_world(tmp_path, workers=THREE) as world:
        world.ledger.set_worker("c", 200, 8, 4)  # b is the emptiest: a's session would go there
        session = await world.session(worker="a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.supervisor.start, "a", 60, "operator")
            nursery.start_soon(world.supervisor.start, "b", 60, "operator")
        await world.until(lambda: session.record.owner == world.link("c").owner and session.move is None)
        assert session.record.epoch == 2
        assert into.Prepare not in {type(body) for name, body in world.journal if name == "b"}


async def test_with_nowhere_else_to_go_sessions_stay_and_do_not_change_places(tmp_path: Path) -> None:
    """B16, A24: blocked, not ping-pong."""
    async with open_world(tmp_path) as world:
        sessions = [await world.session("s1", "a"), await world.session("s2", "b")]
        views = await world.supervisor.start_all(["a", "b"], 0.01, "operator")
        for view in views:
            while (told := await world.supervisor.view(view.id)).state != "blocked":
                await world.table.wait_activity(0.02)
            assert [each.reason for each in told.sessions] == [Code.NO_TARGET]
        assert reserved_at(world) == set()
        assert [session.record.epoch for session in sessions] == [1, 1]


@pytest.mark.parametrize(
    ("workers", "code"),
    [(["a", "nobody"], Code.WORKER_UNKNOWN), (["a", "b"], Code.DRAIN_EXISTS)],
)
async def test_all_or_none_of_them_begin(tmp_path: Path, workers: list[str], code: Code) -> None:
    """B16"""
    async with open_world(tmp_path, migration_enabled=False) as world:
        await world.session("s", "b")
        await world.supervisor.start("b", 60, "operator")
        with pytest.raises(SwapdError) as refused:
            await world.supervisor.start_all(workers, 60, "operator")
        assert refused.value.code == code
        assert world.admission.admitting("a")
        assert len(world.supervisor.open_drains()) == 1


async def test_workers_whose_drains_cannot_be_written_are_open_again(tmp_path: Path) -> None:
    """B16: all of them."""
    try:
        async with open_world(tmp_path, store_class=CommitFailsStore) as world:
            CommitFails.armed = True
            with pytest.raises(SwapdError) as refused:
                await world.supervisor.start_all(["a", "b"], 60, "operator")
            assert refused.value.code == Code.STORE_FAILED
            assert world.admission.closed == {}
            assert world.supervisor.open_drains() == []
    finally:
        CommitFails.armed = False


# Askers -----------------------------------------------------------------------------------------------


async def test_what_was_said_of_a_drain_is_kept_with_it(tmp_path: Path) -> None:
    """B16"""
    async with open_world(tmp_path, migration_enabled=False) as world:
        await world.session()
        view = await world.supervisor.start("a", 60, "operator", reason="a new driver")
        assert (view.origin, view.reason) == ("operator", "a new driver")
        record = await world.store.read(lambda db: load_drain(db, view.id))
        assert record is not None
        assert record.askers == view.askers
        assert [each.reason for each in record.askers] == ["a new driver"]


async def test_an_owner_who_joins_is_told_of_and_leaves_the_drain_to_the_operator(tmp_path: Path) -> None:
    """B16: durably, each time; and the events tell the origin."""
    async with open_world(tmp_path, migration_enabled=False) as world:
        await world.session()
        told: list[str] = []
        world.supervisor.on_drain = lambda view: told.append(view.origin)
        drain = (await world.supervisor.start("a", 60, "operator", reason="a new driver")).id
        await world.supervisor.join(drain, "take_back_now", "its owner has it")
        for _ in range(2):
            view = await world.supervisor.view(drain)
            assert (view.origin, view.reason) == ("take_back_now", "a new driver")
            assert [each.reason for each in view.askers] == ["a new driver", "its owner has it"]
            await world.supervisor.join(drain, "take_back_now", "again")  # asks already
        record = await world.store.read(lambda db: load_drain(db, drain))
        assert record is not None
        assert record.origin == "take_back_now"
        await world.supervisor.leave(drain, OWNERS)
        view = await world.supervisor.view(drain)
        assert (view.state, view.origin) == ("running", "operator")
        assert view.askers[1].until is not None
        assert told == ["operator", "take_back_now", "operator"]
        assert not world.admission.admitting("a")


async def test_a_drain_that_nobody_asks_for_any_more_is_cancelled(tmp_path: Path) -> None:
    """B16, H61"""
    async with open_world(tmp_path, migration_enabled=False) as world:
        await world.session()
        drain = (await world.supervisor.start("a", 60, "owner_pressure")).id
        await world.supervisor.leave(drain, OWNERS)
        view = await world.supervisor.view(drain)
        assert (view.state, view.origin) == ("cancelled", "owner_pressure")
        assert world.admission.admitting("a")
        await world.supervisor.leave(drain, OWNERS)  # over already
        await world.supervisor.join(drain, "take_back_now", None)
        assert (await world.supervisor.view(drain)).origin == "owner_pressure"


async def test_who_asked_and_why_survive_a_restart(tmp_path: Path) -> None:
    """B16, H65: the drain is taken up again with its askers and its words."""
    async with open_world(tmp_path, migration_enabled=False) as world:
        await world.session()
        drain = (await world.supervisor.start("a", 3600, "operator", reason="a new driver")).id
        await world.supervisor.join(drain, "owner_pressure", "its owner's work came back")
        before = await world.supervisor.view(drain)
    async with open_world(tmp_path, migration_enabled=False, stored=["s"]) as world:
        for record in await world.store.read(open_drains):
            world.supervisor.resume(record)
        after = await world.supervisor.view(drain)
        assert after.askers == before.askers
        assert (after.state, after.origin, after.reason) == ("running", "owner_pressure", "a new driver")
        assert not world.admission.admitting("a")


# Turns ------------------------------------------------------------------------------------------------


async def test_a_short_session_has_left_while_a_long_one_is_still_copied(tmp_path: Path) -> None:
    """B13: with a deadline ahead, as many as possible are away at any moment."""

    async def hold(link: ScriptedLink, body: into.Export) -> object:
        if body.session == "long":
            await trio.sleep_forever()
        return await link.work(body)

    prompt = tuple(range(1, 1 + 2000))
    async with open_world(tmp_path, arena_bytes=64 << 20) as world:
        for link in world.links.values():
            world.ledger.set_worker(link.name, 4096, 8, 4)
        await world.session("long", prompt=prompt)
        short = await world.session("short")
        world.a.always(into.Export, hold)
        drain = await world.supervisor.start("a", 60, "operator")
        await world.until(lambda: short.record.owner == world.b.owner and short.move is None)
        told = {each.session: each for each in (await world.supervisor.view(drain.id)).sessions}
        assert told["short"].outcome == "completed_native"
        assert (told["long"].outcome, told["long"].phase) == (None, "precopying")


async def test_the_shortest_copy_has_the_only_place(tmp_path: Path) -> None:
    """B13, H76"""
    async with open_world(tmp_path, max_concurrent_migrations=1) as world:
        for name, tokens in (("s1", 30), ("s2", 6), ("s3", 18)):
            await world.session(name, tokens=tokens)
        drain = await world.supervisor.start("a", 60, "operator")
        await over(world, drain.id)
        assert [body.spec.session for body in world.bodies(into.Reserve)] == ["s2", "s3", "s1"]
