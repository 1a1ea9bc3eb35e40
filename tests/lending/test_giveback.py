"""From the owner's need to a free device and back: real store, table, drains; scripted workers."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from swapd.device_views import TakeBack
from swapd.errors import Code, SwapdError
from swapd.lending.verdict import Quiet
from swapd.store.drains import open_drains
from tests.lending.world import OWNER, Clock, lending
from tests.migration.world import World


def owner(**changes: Any) -> Any:
    return msgspec.structs.replace(OWNER, **changes)


async def test_pressure_moves_what_runs_stops_the_worker_and_gives_the_device_back(tmp_path: Path) -> None:
    """B17, R5: engaged, closed, drained, stopped, free; released and rested, started, admitted."""
    async with lending(tmp_path) as lent:
        world = lent.world
        session = await world.session(worker="a")
        lent.feed_for(10, a=50.0)
        assert (lent.a.state, lent.b.state) == ("lent", "lent")
        lent.feed_for(5, a=50.0)
        assert lent.a.state == "vacating"
        assert (world.admission.admitting("a"), world.admission.admitting("b")) == (False, True)
        await lent.until_state(lent.a, "free")
        assert session.record.owner is not None
        assert session.record.owner.worker == "b"
        assert world.a.at_rest
        view = lent.a.give_back
        assert view is not None
        assert (view.why, len(view.drains), view.memory_back) == ("pressure", 1, None)
        assert view.free_in_s is not None
        assert view.closed_in_ms is not None
        assert await lent.stored_give_back(lent.a) == view
        drain = await world.supervisor.view(view.drains[0])
        assert (drain.state, drain.origin) == ("drained", "owner_pressure")
        assert drain.reason is not None
        assert drain.reason.startswith("device of_a: ")
        assert [s.outcome for s in drain.sessions] == ["completed_native"]
        lent.feed_for(35)
        assert lent.a.verdict is not None
        assert lent.a.verdict.reasons == ("resuming",)
        assert world.a.at_rest
        lent.feed_for(65)
        await lent.until_state(lent.a, "lent")
        await lent.until(lambda: world.admission.admitting("a"))
        kinds = await lent.kinds(lent.a)
        assert [k for k in kinds if k not in ("refused", "lent")] == [
            "vacating",
            "engaged",
            "free",
            "released",
            "returning",
        ]
        await world.check_baseline()


async def test_the_owner_who_comes_back_meanwhile_is_given_way_at_every_moment(tmp_path: Path) -> None:
    """Whatever the device was about to be, it ends where the latest word says."""
    async with lending(tmp_path) as lent:
        world = lent.world
        world.a.stops_by_itself = False
        await lent.desk.take_back("of_a", TakeBack())
        await lent.until(lambda: world.a.state == "stopped")
        await lent.desk.lend("of_a")
        assert lent.a.state == "returning"
        await lent.desk.take_back("of_a", TakeBack())
        assert lent.a.state == "vacating"
        world.a.end()
        await lent.until_state(lent.a, "free")
        world.a.starts_by_itself = False
        await lent.desk.lend("of_a")
        await lent.until(lambda: world.a.state == "starting")
        assert (lent.a.state, world.admission.admitting("a")) == ("returning", False)
        await lent.desk.take_back("of_a", TakeBack())
        world.a.end()
        await lent.until_state(lent.a, "free")
        world.a.starts_by_itself = True
        await lent.desk.lend("of_a")
        await lent.until_state(lent.a, "lent")


async def test_a_drains_end_does_not_open_a_device_nor_the_device_a_drain(tmp_path: Path) -> None:
    """H44, H61: each closes for itself; a worker admits when neither does."""
    async with lending(tmp_path, owner(release="keep")) as lent:
        world = lent.world
        world.b.emits = False
        await world.session(worker="a", tokens=0)
        drain = await world.supervisor.start("a", 60.0, "operator")
        await lent.desk.take_back("of_a", TakeBack())
        await world.supervisor.cancel(drain.id)
        assert not world.admission.admitting("a")
        await lent.until_state(lent.a, "free")
        again = await world.supervisor.start("a", 60.0, "operator")
        await lent.desk.lend("of_a")
        await lent.until(lambda: "device" not in world.admission.closed.get("a", ""))
        await lent.until(lambda: world.supervisor.draining("a") is None)
        assert again.worker == "a"
        await lent.until(lambda: world.admission.admitting("a"))


async def test_a_take_back_joins_the_drain_that_is_there(tmp_path: Path) -> None:
    """H77: an operator, the owner and another request for the same session make one drain and one move."""
    async with lending(tmp_path, owner(release="keep")) as lent:
        world = lent.world
        world.b.emits = False
        session = await world.session(worker="a")
        drain = await world.supervisor.start("a", 60.0, "operator")
        await lent.until(lambda: session.move is not None and session.record.epoch == 2)
        await lent.desk.take_back("of_a", TakeBack())
        with pytest.raises(SwapdError, match=drain.id):
            await world.supervisor.start("a", 60.0, "operator")
        world.b.speak("s", 777)
        await lent.until_state(lent.a, "free")
        assert lent.a.give_back is not None
        assert lent.a.give_back.drains == (drain.id,)
        await lent.until(lambda: session.move is None)
        await world.store.commit(lambda db: None)  # what was posted before is durable then
        assert await world.rows("SELECT outcome FROM moves") == [("completed_native",)]
        await world.check_baseline()


async def test_a_drain_that_a_take_back_joins_says_so_and_goes_on_without_it(tmp_path: Path) -> None:
    """B16: the owner's wish ends, the operator's does not."""
    async with lending(tmp_path, owner(release="keep")) as lent:
        world = lent.world
        await world.session(worker="a", tokens=0)
        world.b.state = "starting"  # nowhere to begin anew
        drain = await world.supervisor.start("a", 60.0, "operator", reason="a new driver")
        await lent.desk.take_back("of_a", TakeBack())
        book = await lent_drain(lent, "a")
        await lent.until(lambda: book.origin == "take_back_now")
        assert [each.origin for each in book.askers] == ["operator", "take_back_now"]
        await lent.desk.lend("of_a")
        await lent.until(lambda: book.origin == "operator")
        assert book.askers[1].until is not None
        view = await world.supervisor.view(drain.id)
        assert (view.state, view.origin, view.reason) == ("running", "operator", "a new driver")
        await lent.until(lambda: lent.a.state in ("refused", "lent"))
        assert not world.admission.admitting("a"), "the operator still wants it empty"


async def test_pressure_that_becomes_a_take_back_changes_the_drains_origin(tmp_path: Path) -> None:
    """B16: by the owner, once; and it is cancelled when the owner wants nothing any more."""
    async with lending(tmp_path, owner(release="keep")) as lent:
        world = lent.world
        await world.session(worker="a", tokens=0)
        world.b.state = "starting"
        lent.feed_for(15, a=50.0)
        book = await lent_drain(lent, "a")
        assert book.origin == "owner_pressure"
        await lent.desk.take_back("of_a", TakeBack())
        await lent.until(lambda: book.origin == "take_back_now")
        assert [(each.origin, each.until is None) for each in book.askers] == [
            ("owner_pressure", False),
            ("take_back_now", True),
        ]


async def test_workers_of_one_device_are_drained_together(tmp_path: Path) -> None:
    """B16: one device's take-back with several workers moves nobody from one of them to another."""
    async with lending(tmp_path, workers={"c": "of_a"}) as lent:
        world = lent.world
        sessions = [await world.session(f"s{worker}", worker) for worker in ("a", "c")]
        await lent.desk.take_back("of_a", TakeBack())
        await lent.until_state(lent.a, "free")
        assert {session.record.owner.worker for session in sessions if session.record.owner} == {"b"}
        assert [session.record.epoch for session in sessions] == [2, 2]
        assert lent.a.give_back is not None
        assert len(lent.a.give_back.drains) == 2


async def test_an_owner_who_comes_home_closes_all_devices_before_anybody_moves(tmp_path: Path) -> None:
    """B16: nobody flees from one device to the other that is wanted, too."""
    async with lending(tmp_path, owner(presence="auto", lend_when="locked"), lent=False) as lent:
        world = lent.world
        lent.desk.attendance_changed("locked", None)
        lent.feed_for(5)
        await lent.until_state(lent.a, "lent")
        sessions = [await world.session(f"s{worker}", worker) for worker in ("a", "b")]
        lent.desk.attendance_changed("unlocked", None)
        for worker in ("a", "b"):
            await lent_drain(lent, worker)
        for worker in ("a", "b"):
            book = await lent_drain(lent, worker)
            await lent.until(lambda: f"s{worker}" in book.outcomes)  # noqa: B023
            assert book.outcomes[f"s{worker}"].reason == Code.NO_TARGET
        assert [session.record.epoch for session in sessions] == [1, 1]


async def test_a_drain_for_an_owner_is_clear_when_the_devices_memory_is_back(tmp_path: Path) -> None:
    """B17: not when the engine has let go of the blocks, whose memory its process still has."""
    clock = Clock()
    async with lending(tmp_path, clock=clock, wall=clock) as lent:
        world, gib = lent.world, 1 << 30
        await world.session(worker="a")
        world.a.stops_by_itself = False
        lent.feed(lent.a, 5.0, memory_used_bytes=9 * gib, lender_memory_bytes=8 * gib)
        await lent.desk.take_back("of_a", TakeBack())
        await lent.until(lambda: world.a.state == "stopped")
        assert lent.a.give_back is not None
        (drain,) = lent.a.give_back.drains
        for _ in range(10):  # time enough to ask the engine, which holds nothing
            await world.table.wait_activity(0.02)
        view = await world.supervisor.view(drain)
        assert (view.state, view.time_to_clear_s) == ("drained", None)
        clock.now += 2.0
        world.a.end()
        await lent.until(lambda: world.a.at_rest)
        clock.now += 0.5
        lent.feed(lent.a, 5.0, memory_used_bytes=gib, lender_memory_bytes=0)
        await lent.until_state(lent.a, "free")
        assert (await world.supervisor.view(drain)).time_to_clear_s == 2.5
        assert lent.a.give_back.free_in_s == 2.5


async def test_what_can_go_nowhere_may_finish_and_then_ends_retryably(tmp_path: Path) -> None:
    """`finish`: it runs on where it is until `finish_s`, then it fails with `device_taken_back`."""
    async with lending(tmp_path, owner(finish_s=120.0)) as lent:
        world = lent.world
        await lent.desk.take_back("of_b", TakeBack())
        await lent.until_state(lent.b, "free")
        stays, ends = await world.session("stays"), await world.session("ends")
        await lent.desk.take_back("of_a", TakeBack())
        book = await lent_drain(lent, "a")
        await lent.until(lambda: "stays" in book.outcomes)
        assert book.outcomes["stays"].reason == "no_target"
        assert lent.a.state == "vacating"
        world.a.speak("stays", 7, finish="length")
        await lent.until(lambda: stays.ended)
        assert not ends.over
        lent.clock.now += 121
        await lent.until_state(lent.a, "free")
        assert (stays.record.state, ends.record.state) == ("completed", "failed")
        assert ends.record.code == Code.DEVICE_TAKEN_BACK
        assert SwapdError(Code.DEVICE_TAKEN_BACK).retryable


async def lent_drain(lent: Any, worker: str) -> Any:
    await lent.until(lambda: lent.world.supervisor.draining(worker) is not None)
    return lent.world.supervisor.draining(worker)


async def test_with_cancel_what_can_go_nowhere_ends_at_once(tmp_path: Path) -> None:
    """`cancel`: the last free device is not waited for."""
    async with lending(tmp_path, owner(when_full="cancel")) as lent:
        world = lent.world
        await lent.desk.take_back("of_b", TakeBack())
        session = await world.session()
        await lent.desk.take_back("of_a", TakeBack())
        await lent.until_state(lent.a, "free")
        assert (session.record.state, session.record.code) == ("failed", Code.DEVICE_TAKEN_BACK)


async def test_a_session_of_which_nothing_came_begins_again_elsewhere(tmp_path: Path) -> None:
    """B18: it needs no permission for that, and no reader; nothing was delivered."""
    async with lending(tmp_path) as lent:
        session = await lent.world.session(tokens=0, reading=False)
        await lent.desk.take_back("of_a", TakeBack())
        await lent.until_state(lent.a, "free")
        owner_now = session.record.owner
        assert owner_now is not None
        assert (owner_now.worker, session.record.epoch, session.durable) == ("b", 2, 0)
        await lent.world.check_baseline()


async def test_a_session_of_which_nothing_came_does_not_hold_the_device(tmp_path: Path) -> None:
    """With no room elsewhere and no reader it would wait for ever: it ends, retryably."""
    async with lending(tmp_path) as lent:
        await lent.desk.take_back("of_b", TakeBack())
        session = await lent.world.session(tokens=0, reading=False)
        await lent.desk.take_back("of_a", TakeBack())
        await lent.until_state(lent.a, "free")
        assert (session.record.state, session.record.code) == ("failed", Code.DEVICE_TAKEN_BACK)


async def test_where_no_native_move_is_possible_a_permitted_replay_is_made(tmp_path: Path) -> None:
    """H71: the drain's own fallback; without permission the session stays until it finishes."""
    async with lending(tmp_path, migration_enabled=False) as lent:
        world = lent.world
        may = await world.session("may", allow_replay_fallback=True)
        must = await world.session("must")
        await lent.desk.take_back("of_a", TakeBack())
        await lent.until(lambda: may.record.owner is not None and may.record.owner.worker == "b")
        assert (lent.a.state, must.record.owner and must.record.owner.worker) == ("vacating", "a")
        world.a.speak("must", 7, finish="length")
        await lent.until_state(lent.a, "free")


async def test_keep_leaves_the_workers_and_frees_an_empty_device(tmp_path: Path) -> None:
    """`release = "keep"`: free means empty."""
    async with lending(tmp_path, owner(release="keep")) as lent:
        session = await lent.world.session()
        await lent.desk.take_back("of_a", TakeBack())
        await lent.until_state(lent.a, "free")
        assert (lent.world.a.state, lent.world.a.at_rest) == ("ready", False)
        assert session.record.owner is not None
        assert session.record.owner.worker == "b"
        await lent.desk.lend("of_a")
        await lent.until_state(lent.a, "lent")


@pytest.fixture
def process() -> Iterator[int]:
    """The pid of a process that waits."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as made:
        yield made.pid


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is only one core")
async def test_a_worker_leaves_the_cores_that_are_wanted_back_and_returns_to_them(
    tmp_path: Path, process: int
) -> None:
    """B17: on its owner's busy core it would hand its sessions over far too slowly."""
    async with lending(tmp_path, owner(release="keep")) as lent:
        before = os.sched_getaffinity(process)
        lent.world.a.pid = process
        await lent.desk.take_back("of_a", TakeBack())
        await lent.until_state(lent.a, "free")
        assert os.sched_getaffinity(process) == before - set(lent.a.config.cores)
        await lent.desk.lend("of_a")
        await lent.until_state(lent.a, "lent")
        assert os.sched_getaffinity(process) == before


async def test_free_waits_for_the_devices_memory(tmp_path: Path) -> None:
    """B17: a tolerance is allowed, and only a measurement after the end of the process counts."""
    async with lending(tmp_path) as lent:
        gib = 1 << 30
        lent.feed(lent.a, 5.0, memory_used_bytes=9 * gib, lender_memory_bytes=8 * gib)
        await lent.desk.take_back("of_a", TakeBack())
        await lent.until(lambda: lent.world.a.at_rest)
        lent.clock.now += 0.5
        lent.feed(lent.a, 5.0, memory_used_bytes=9 * gib, lender_memory_bytes=0)
        assert lent.a.state == "vacating"
        lent.clock.now += 0.5
        lent.feed(lent.a, 5.0, memory_used_bytes=gib + (1 << 20), lender_memory_bytes=0)
        await lent.until_state(lent.a, "free")
        assert lent.a.give_back is not None
        assert (lent.a.give_back.memory_back, lent.a.give_back.free_in_s) == (True, 1.0)


async def test_memory_that_does_not_come_back_is_told_and_not_waited_for(tmp_path: Path) -> None:
    """B17: ten seconds."""
    async with lending(tmp_path) as lent:
        gib = 1 << 30
        lent.feed(lent.a, 5.0, memory_used_bytes=9 * gib, lender_memory_bytes=8 * gib)
        await lent.desk.take_back("of_a", TakeBack())
        await lent.until(lambda: lent.world.a.at_rest)
        await trio.lowlevel.checkpoint()
        lent.clock.now += 11
        lent.feed(lent.a, 5.0, memory_used_bytes=9 * gib)
        await lent.until_state(lent.a, "free")
        assert lent.a.give_back is not None
        assert lent.a.give_back.memory_back is False
        for drain in lent.a.give_back.drains:
            assert (await lent.world.supervisor.view(drain)).time_to_clear_s is None


async def test_a_restart_takes_a_give_back_up_and_starts_no_worker(tmp_path: Path) -> None:
    """H65, B16: the take-back, its drain and its record are the same ones; what was found leaves first."""
    clock = Clock()
    async with lending(tmp_path, clock=clock) as lent:
        await lent.world.session(tokens=0)
        lent.world.b.state = "starting"
        await lent.desk.take_back("of_a", TakeBack(for_s=3600.0))
        await lent.until(lambda: lent.a.give_back is not None and bool(lent.a.give_back.drains))
        began = lent.a.give_back
    assert began is not None
    clock.now += 2
    async with lending(tmp_path, lent=False, clock=clock) as lent:
        assert (lent.a.state, lent.a.taken_back is not None) == ("vacating", True)
        assert not lent.world.a.wanted
        await lent.until_state(lent.a, "free")
        assert lent.a.give_back is not None
        assert (lent.a.give_back.began_at, lent.a.give_back.why) == (began.began_at, "taken_back")
        assert lent.a.give_back.free_in_s == pytest.approx(2.0)
    async with lending(tmp_path, lent=False, clock=clock) as lent:
        await lent.until_state(lent.a, "free")
        assert (await lent.kinds(lent.a)).count("vacating") == 1
        clock.now += 3600
        await lent.until(lambda: lent.a.taken_back is None)


async def test_a_drain_for_a_wish_that_ended_while_the_service_was_down_is_over(tmp_path: Path) -> None:
    """B16: it is taken up, nobody asks for it any more, and its worker is open again."""
    clock = Clock()
    async with lending(tmp_path, clock=clock, migration_enabled=False) as lent:
        await lent.world.session()
        lent.quiet = Quiet(active=True)
        book = await lent_drain(lent, "a")
        assert book.origin == "owner_pressure"

    def resume(world: World) -> None:
        with closing(sqlite3.connect(world.config.database_path)) as db:
            for record in open_drains(db):
                world.supervisor.resume(record)

    async with lending(
        tmp_path,
        lent=False,
        clock=clock,
        prepare=resume,
        stored=["s"],
        attach=False,  # whether it still has the session is not known yet
        migration_enabled=False,
    ) as lent:
        await lent.until(lambda: lent.world.supervisor.draining("a") is None)
        view = await lent.world.supervisor.view(book.id)
        assert view.state == "cancelled"
        session = lent.world.table.get("s")
        assert session is not None
        assert not session.over


async def test_a_device_that_its_owner_had_rests_after_a_restart(tmp_path: Path) -> None:
    """Pressure is not known after a restart: the worker waits until its absence is."""
    clock = Clock()
    async with lending(tmp_path, clock=clock) as lent:
        lent.feed_for(15, a=50.0)
        await lent.until_state(lent.a, "free")
    async with lending(tmp_path, lent=False, clock=clock) as lent:
        assert lent.a.verdict is not None
        assert "resuming" in lent.a.verdict.reasons
        assert not lent.world.a.wanted
        assert lent.world.b.wanted


async def test_an_uncalibrated_devices_workers_start_and_admit_nothing(tmp_path: Path) -> None:
    """R60, R61, R8: lending waits, the process does not; the other device serves."""
    learning = msgspec.structs.replace(
        OWNER.gpu_pressure, mode="calibrated", threshold_pct=0.0, warmup_samples=3
    )
    async with lending(tmp_path, owner(gpu_pressure=learning), lent=False) as lent:
        desk, world = lent.desk, lent.world
        assert world.a.wanted
        desk.attendance_changed("unlocked", None)
        lent.feed_for(5)
        assert lent.a.state == "refused"
        found = desk.refusal()
        assert found is not None
        code, reason, retry_s = found
        assert (code, retry_s) == (Code.DEVICE_CALIBRATING, 10.0)
        assert "1 of 3" in reason
        assert desk.unready() == ["calibrating:of_a", "calibrating:of_b"]
        for _ in range(2):
            lent.clock.now += 5
            lent.feed(lent.a, 5.0)
        assert (lent.a.state, lent.b.state) == ("lent", "refused")
        await lent.until(lambda: world.admission.admitting("a"))
        assert desk.refusal() is None
        assert desk.unready() == ["calibrating:of_b"]


async def test_stale_readings_close_and_do_not_empty(tmp_path: Path) -> None:
    """R59: newest valid reading older than the gap limit; what runs stays."""
    async with lending(tmp_path) as lent:
        session = await lent.world.session()
        lent.clock.now += 20.5
        lent.feed(lent.a, "failed")
        assert (lent.a.state, lent.world.admission.admitting("a")) == ("refused", False)
        assert lent.world.a.wanted
        assert session.record.owner is not None
        assert session.record.owner.worker == "a"
        lent.feed(lent.a, 5.0)
        assert lent.a.state == "lent"


async def test_quiet_hours_empty_the_device_ahead_of_time(tmp_path: Path) -> None:
    """The lead is counted in: what is active is given back."""
    async with lending(tmp_path) as lent:
        lent.quiet = Quiet(True, 50.0, lent.clock.now + 3600)
        await lent.until_state(lent.a, "free")
        assert lent.a.verdict is not None
        assert (lent.a.verdict.sentence, lent.a.verdict.retry_after_s) == (
            "quiet hours begin in 50 s",
            3600.0,
        )
        lent.quiet = Quiet()
        await lent.until_state(lent.a, "lent")


async def test_a_take_back_until_unlock_ends_with_the_next_unlock(tmp_path: Path) -> None:
    """D40: not with the unlocked screen that it was asked at."""
    there = owner(presence="auto")
    async with lending(tmp_path, there) as lent:
        await lent.desk.take_back("of_a", TakeBack(until="unlock"))
        lent.desk.attendance_changed("unlocked", "still here")
        lent.desk.attendance_changed("unknown", None)
        assert lent.a.taken_back is not None
        lent.desk.attendance_changed("locked", None)
        lent.desk.attendance_changed("unknown", None)
        assert lent.a.taken_back is not None
        lent.desk.attendance_changed("unlocked", None)
        assert lent.a.taken_back is None


async def test_take_backs_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """`unlock` on a headless machine; a device that is not there."""
    async with lending(tmp_path) as lent:
        with pytest.raises(SwapdError) as caught:
            await lent.desk.take_back("of_a", TakeBack(until="unlock"))
        assert (caught.value.code, "headless" in caught.value.sentence) == (Code.INVALID_REQUEST, True)
        with pytest.raises(SwapdError) as caught:
            await lent.desk.take_back("of_c", TakeBack())
        assert caught.value.code is Code.DEVICE_UNKNOWN
        assert lent.a.state == "lent"


async def test_nothing_is_lent_without_consent(tmp_path: Path) -> None:
    """D40: no worker is started, and it is said why."""
    async with lending(tmp_path, owner(consent=False), lent=False) as lent:
        await lent.until_state(lent.a, "free")
        found = lent.desk.refusal()
        assert found is not None
        assert found[0] is Code.DEVICE_NOT_LENT
        assert "consent" in found[1]


async def test_without_devices_nothing_is_judged(tmp_path: Path) -> None:
    """The workers' devices belong to the service."""
    async with lending(tmp_path, devices=(), lent=False) as lent:
        assert lent.desk.refusal() is None
        assert lent.desk.unready() == []
        assert lent.world.admission.admitting("a")
