"""One wave against workers that answer, refuse, fall silent or die at each of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from swapd.errors import Code, SwapdError
from swapd.messages import to_worker as into
from swapd.messages.from_worker import Activated, Frozen, FrozenItem, Prepared, PreparedItem
from swapd.migration.move import Move
from swapd.migration.records import planned
from swapd.migration.wave import Wave
from swapd.sessions.live import LiveSession
from swapd.store.moves import load_move, plan_move
from tests.migration.world import INFO, Deed, ScriptedLink, World, loss, open_world, refusal, silence
from tests.store.failing import CommitFails, CommitFailsStore, GatedConnection, GatedStore, close_gate


async def wave_of(world: World, *sessions: LiveSession) -> Wave:
    """A wave from a to b with everything borrowed and planned, as the supervisor begins it."""
    source, target = world.a, world.b
    assert source.ready is not None
    moves = []
    for session in sessions:
        lease = world.supervisor.loans.lend(session, "b", source.ready.info)
        assert source.owner is not None
        assert target.owner is not None
        move = Move(
            f"mov_{session.id}", session, None, source.owner, target.owner, session.record.epoch, lease
        )
        session.move = move.id
        moves.append(move)
    records = [planned(move, 1.0) for move in moves]

    def plan(db: Any) -> None:
        for record in records:
            plan_move(db, record)

    await world.store.commit(plan)
    link_a: Any = source
    link_b: Any = target
    return Wave(world.config, world.table, link_a, link_b, "bat", moves, permit=lambda: None)


ENDS = (into.Resume, into.Discard, into.Release, into.Cancel)


async def test_a_move_goes_through_its_steps_in_order(tmp_path: Path) -> None:
    """H66, H68, H75, decision 2: release comes after the first durable token under e+1, and last."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        wave = await wave_of(world, session)
        await wave.run()
        assert [f"{name} {type(body).__name__}" for name, body in world.journal] == [
            "b Reserve",
            "a Export",
            "b Import",
            "a Quiesce",
            "b Quiesce",
            "a Freeze",
            "b Prepare",
            "b Activate",
            "a Quiesce",
            "b Quiesce",
            "a Release",
        ]
        (move,) = wave.moves
        result = move.result()
        assert (result.outcome, result.reuse, result.recomputed_tokens) == ("completed_native", 1.0, 0)
        assert world.bodies(into.Release) == [into.Release("s", 1)]
        stored = await world.stored()
        assert (stored.owner, stored.epoch, stored.accepted) == (world.b.owner, 2, 7)
        assert world.bodies(into.Prepare)[0].items[0].outputs == (101, 102, 103, 104, 105, 106)


async def test_text_that_is_held_back_over_a_move_is_that_of_a_session_that_stayed(tmp_path: Path) -> None:
    """H89, H30, H17: detokeniser and stop buffers are made from the transcript; the stop spans the move."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6, stop=("106 506 ",))
        stayed = await world.session("t", "b", tokens=6, stop=("106 506 ",))
        assert msgspec.json.decode(session.events(-1, 10)[-1].data)["text"] == ""  # it may begin the stop
        wave = await wave_of(world, session)
        await wave.run()
        assert wave.moves[0].outcome == "completed_native"
        world.b.speak("t", 506)
        await world.until(lambda: session.ended and stayed.ended)
        assert (session.record.state, session.record.finish_reason) == ("completed", "stop")
        moved, still = (
            [(event.id, event.name, event.data) for event in one.events(0, 100)] for one in (session, stayed)
        )
        assert moved == still
        (listed,) = world.bodies(into.Prepare)[0].items[0].manifest.state[4:5]
        assert listed.name == "detokeniser"


async def test_reuse_is_measured_by_what_the_manifests_carried(tmp_path: Path) -> None:
    """H75: positions loaded of those computed; one that did not come would show, and count as recomputed."""

    async def one_position_short(link: ScriptedLink, body: into.Freeze) -> object:
        frozen = await link.work(body)
        assert isinstance(frozen, Frozen)
        (item,) = frozen.items
        assert item.manifest is not None
        *full, tail = item.manifest.blocks
        short = msgspec.structs.replace(tail, valid=tail.valid - 1)
        manifest = msgspec.structs.replace(item.manifest, blocks=(*full, short))
        return msgspec.structs.replace(frozen, items=(msgspec.structs.replace(item, manifest=manifest),))

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=8)
        world.a.on(into.Freeze, one_position_short)
        wave = await wave_of(world, session)
        await wave.run()
        (move,) = wave.moves
        result = move.result()
        # 3 of the prompt and 8 outputs, of which the last has no KV yet.
        assert (result.reuse, result.recomputed_tokens) == (pytest.approx(9 / 10), 1)


STEPS = [
    # step, who is asked, whether the source must resume, whether the target must discard
    (into.Reserve, "b", False, False),
    (into.Export, "a", False, True),
    (into.Import, "b", False, True),
    (into.Quiesce, "b", False, True),
    (into.Quiesce, "a", False, True),
    (into.Freeze, "a", True, True),
    (into.Prepare, "b", True, True),
]
STEP_NAMES = [f"{asked}-{step.__name__}" for step, asked, _, _ in STEPS]


@pytest.mark.parametrize(("step", "asked", "resume", "discard"), STEPS, ids=STEP_NAMES)
@pytest.mark.parametrize("fault", ["refused", "silent", "lost"])
async def test_a_step_that_fails_before_the_commit_is_undone_where_it_had_an_effect(
    tmp_path: Path, step: type, asked: str, resume: bool, discard: bool, fault: str
) -> None:
    """H67, H88, x1, AB0 and AB1: Resume and Discard exactly when owed; the store still names the source."""
    deed: Deed = {"refused": refusal(Code.INTERNAL), "silent": silence, "lost": loss}[fault]
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        wave = await wave_of(world, session)
        world.link(asked).on(step, deed)
        await wave.run()
        if fault == "silent" and step is into.Reserve:
            discard = True  # whether it reserved is unknown
        if fault == "lost":  # the dead are told nothing
            resume, discard = resume and asked != "a", discard and asked != "b"
        expected = ["a Resume"] * resume + ["b Discard"] * discard
        assert world.told(*ENDS) == expected
        assert world.bodies(into.Resume) == [into.Resume("s", 1)] * resume
        (move,) = wave.moves
        assert move.over
        owner_lost = fault == "lost" and asked == "a"
        assert move.outcome == ("failed" if owner_lost else "aborted_source_resumed")
        assert (
            move.reason
            == {
                "refused": Code.INTERNAL,
                "silent": Code.TIMEOUT,
                "lost": Code.SOURCE_LOST if asked == "a" else Code.TARGET_LOST,
            }[fault]
        )
        stored = await world.stored()
        assert stored.owner is not None
        assert (stored.owner.worker, stored.epoch, stored.accepted) == ("a", 1, 6)
        assert not world.told(into.Activate)


async def test_a_source_resumes_before_any_target_is_waited_for(tmp_path: Path) -> None:
    """H67, AB1: a hung target holds up no session, neither the first nor the last."""
    async with open_world(tmp_path) as world:
        sessions = [await world.session(f"s{i}", tokens=6) for i in range(3)]
        wave = await wave_of(world, *sessions)
        world.b.on(into.Prepare, silence)
        world.b.always(into.Discard, silence)
        await wave.run()
        assert world.told(*ENDS) == ["a Resume"] * 3 + ["b Discard"] * 3


async def test_one_session_that_cannot_be_prepared_holds_up_no_other(tmp_path: Path) -> None:
    """H78, B21: a checksum that fails ends one move; the others commit, and only then is it discarded."""

    async def all_but_one(link: ScriptedLink, body: into.Prepare) -> Prepared:
        return Prepared(
            body.batch,
            tuple(
                PreparedItem(i.move, i.session != "s0", Code.CHECKSUM_MISMATCH if i.session == "s0" else None)
                for i in body.items
            ),
            0.0,
        )

    async with open_world(tmp_path) as world:
        sessions = [await world.session(f"s{i}", tokens=6) for i in range(3)]
        wave = await wave_of(world, *sessions)
        world.b.on(into.Prepare, all_but_one)
        await wave.run()
        outcomes = [(move.outcome, move.reason) for move in wave.moves]
        assert outcomes[0] == ("aborted_source_resumed", Code.CHECKSUM_MISMATCH)
        assert [outcome for outcome, _ in outcomes[1:]] == ["completed_native"] * 2
        told = world.told(into.Resume, into.Discard, into.Activate)
        assert told == ["a Resume", "b Activate", "b Discard"]


async def test_the_commit_checks_the_frozen_position(tmp_path: Path) -> None:
    """H37, H66: a freeze that names another frontier than was accepted ends in an abort."""

    async def one_too_many(link: ScriptedLink, body: into.Freeze) -> Frozen:
        answer = await link.work(body)
        assert isinstance(answer, Frozen)
        item = answer.items[0]
        # The token that the freeze counts comes, but the store will not have it.
        live = link.world.table.get("s")
        assert live is not None
        live.received.append(999)
        return Frozen(
            body.batch,
            (FrozenItem(item.move, "frozen", item.position + 1, item.computed + 1, item.manifest),),
            0.0,
            0.0,
        )

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        wave = await wave_of(world, session)
        world.a.on(into.Freeze, one_too_many)
        await wave.run()
        (move,) = wave.moves
        assert (move.outcome, str(move.failed_in)) == ("aborted_source_resumed", "prepared")
        assert world.told(*ENDS) == ["a Resume", "b Discard"]
        assert (await world.stored()).epoch == 1


@pytest.mark.parametrize("fault", ["no manifest", "other position"])
async def test_a_freeze_that_does_not_fit_the_transcript_is_undone(tmp_path: Path, fault: str) -> None:
    """H37, H82"""

    async def unfit(link: ScriptedLink, body: into.Freeze) -> Frozen:
        answer = await link.work(body)
        assert isinstance(answer, Frozen)
        item = answer.items[0]
        if fault == "no manifest":
            item = FrozenItem(item.move, "frozen", item.position, item.computed, None)
        else:
            item = FrozenItem(item.move, "frozen", item.position + 1, item.computed, item.manifest)
        return Frozen(body.batch, (item,), 0.0, 0.0)

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        wave = await wave_of(world, session)
        world.a.on(into.Freeze, unfit)
        await wave.run()
        assert wave.moves[0].reason == Code.MANIFEST_MISMATCH
        assert world.told(*ENDS, into.Prepare) == ["a Resume", "b Discard"]


@pytest.mark.parametrize("step", [into.Export, into.Import, into.Freeze, into.Prepare])
async def test_a_session_cancelled_before_the_commit_is_dropped_on_both_sides(
    tmp_path: Path, step: type
) -> None:
    """x1, x2, x3: cancel wins, no COMMIT follows, nobody resumes; the worker's copy goes with the Cancel."""

    async def cancel(link: ScriptedLink, body: object) -> object:
        await link.world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        if step is into.Export:
            raise SwapdError(Code.SESSION_UNKNOWN)  # as the worker, which has just dropped it
        return await link.work(body)

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        wave = await wave_of(world, session)
        world.link("a" if step in (into.Export, into.Freeze) else "b").on(step, cancel)
        await wave.run()
        (move,) = wave.moves
        assert (move.outcome, move.reason) == ("cancelled", Code.SESSION_CANCELLED)
        assert world.told(*ENDS, into.Activate) == ["a Cancel", "b Discard"]
        stored = await world.stored()
        assert (stored.state, stored.epoch) == ("cancelled", 1)


@pytest.mark.parametrize("answered", ["finished", "refused"])
async def test_a_session_that_finishes_on_the_way_is_not_a_failure(tmp_path: Path, answered: str) -> None:
    """H86, H55, A21"""

    async def finish(link: ScriptedLink, body: Any) -> object:
        if answered == "refused":
            raise SwapdError(Code.ALREADY_FINISHED)
        link.speak("s", 7, finish="length")
        return Frozen(body.batch, (FrozenItem(body.items[0].move, "finished"),), 0.0, 0.0)

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        wave = await wave_of(world, session)
        world.a.on(into.Export if answered == "refused" else into.Freeze, finish)
        await wave.run()
        (move,) = wave.moves
        assert (move.outcome, move.reason) == ("cancelled", Code.ALREADY_FINISHED)
        assert world.told(*ENDS) == ["b Discard"]


async def test_a_session_that_is_not_ready_takes_part_in_the_next_batch(tmp_path: Path) -> None:
    """B20: it goes on decoding meanwhile; the others cross without it."""

    async def not_yet(link: ScriptedLink, body: into.Freeze) -> Frozen:
        answer = await link.work(body)
        assert isinstance(answer, Frozen)
        late = FrozenItem(answer.items[0].move, "not_ready")
        return Frozen(body.batch, (late, *answer.items[1:]), 0.0, 0.0)

    async with open_world(tmp_path) as world:
        sessions = [await world.session(f"s{i}", tokens=6) for i in range(2)]
        wave = await wave_of(world, *sessions)
        world.a.on(into.Freeze, not_yet)
        await wave.run()
        assert [[i.session for i in p.items] for p in world.bodies(into.Prepare)] == [["s1"], ["s0"]]
        assert [move.outcome for move in wave.moves] == ["completed_native"] * 2


async def test_the_next_batch_does_not_wait_for_the_end_of_the_one_before(tmp_path: Path) -> None:
    """B13: who was not ready is frozen while those before it are still on their way."""
    second = trio.Event()

    async def not_yet(link: ScriptedLink, body: into.Freeze) -> Frozen:
        late = FrozenItem(body.items[0].move, "not_ready")
        answer = await link.work(into.Freeze(body.batch, body.items[1:]))
        assert isinstance(answer, Frozen)
        return Frozen(body.batch, (late, *answer.items), 0.0, 0.0)

    async def in_time(link: ScriptedLink, body: into.Freeze) -> object:
        second.set()
        return await link.work(body)

    async def after_it(link: ScriptedLink, body: into.Prepare) -> object:
        with trio.fail_after(world.config.timers.prepare_s / 2):
            await second.wait()
        return await link.work(body)

    async with open_world(tmp_path) as world:
        sessions = [await world.session(f"s{i}", tokens=6) for i in range(3)]
        wave = await wave_of(world, *sessions)
        world.a.on(into.Freeze, not_yet, in_time)
        world.b.on(into.Prepare, after_it)
        await wave.run()
        assert [len(freeze.items) for freeze in world.bodies(into.Freeze)] == [3, 1]
        assert [move.outcome for move in wave.moves] == ["completed_native"] * 3
        quiet = {name: [q.on for q in world.bodies(into.Quiesce, name)] for name in ("a", "b")}
        assert quiet == {"a": [True, False], "b": [True, False]}, "once for both batches"


async def test_what_a_session_fills_while_others_copy_is_copied_before_the_freeze(tmp_path: Path) -> None:
    """B13, B20: nobody misses the freeze because somebody else's copy took long, or the quiesce."""

    async def meanwhile(link: ScriptedLink, body: into.ToWorker) -> object:
        answer = await link.work(body)
        world.a.speak("s0", *range(200, 200 + 2 * INFO.block_tokens))
        return answer

    async def others_are_done(link: ScriptedLink, body: into.Import) -> object:
        if body.move == "mov_s1":
            await world.until(lambda: wave.moves[0].copy_ended_at is not None)
            return await meanwhile(link, body)
        return await link.work(body)

    async with open_world(tmp_path) as world:
        sessions = [await world.session(f"s{i}", tokens=8, max_new_tokens=200) for i in range(2)]
        wave = await wave_of(world, *sessions)
        world.b.always(into.Import, others_are_done)
        world.a.on(into.Quiesce, meanwhile)
        await wave.run()
        assert [len(freeze.items) for freeze in world.bodies(into.Freeze)] == [2]
        assert [move.outcome for move in wave.moves] == ["completed_native"] * 2
        assert all(move.frozen_bytes <= INFO.block_bytes for move in wave.moves)
        # Only what came while prefill was set aside is copied while it is.
        steps = world.told(into.Export, into.Quiesce, worker="a")
        assert steps == ["a Export"] * 3 + ["a Quiesce", "a Export", "a Quiesce"]


async def test_a_copy_that_does_not_catch_up_ends_without_a_pause(tmp_path: Path) -> None:
    """B20, decision 16: after 8 rounds; the source was never frozen."""

    async def ever_more(link: ScriptedLink, body: into.Export) -> object:
        answer = await link.work(body)
        link.speak("s", *range(200, 208))
        return answer

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=8, max_new_tokens=200)
        wave = await wave_of(world, session)
        world.a.always(into.Export, ever_more)
        await wave.run()
        assert wave.moves[0].reason == Code.PRECOPY_DIVERGED
        assert len(world.bodies(into.Export)) == 8
        assert world.told(*ENDS, into.Freeze) == ["b Discard"]


async def test_a_source_that_exports_nothing_is_given_up(tmp_path: Path) -> None:
    """H67: no wait without an end."""

    async def nothing(link: ScriptedLink, body: into.Export) -> object:
        answer: Any = await link.work(body)
        manifest = type(answer.manifest)("s", 2, 0, 1, "fp", ())
        return type(answer)(body.move, manifest, body.from_block, 0.0)

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=8)
        wave = await wave_of(world, session)
        world.a.always(into.Export, nothing)
        await wave.run()
        assert wave.moves[0].reason == Code.STEP_TIMEOUT


# After the commit ------------------------------------------------------------------------------------


async def test_the_source_keeps_its_copy_until_a_token_under_the_new_epoch_is_durable(tmp_path: Path) -> None:
    """H68, decision 2: an acknowledged activation is not enough for a session that is read."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        world.b.emits = False
        wave = await wave_of(world, session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wave.run)
            await world.until(lambda: str(wave.moves[0].phase) == "activated")
            world.b.beat()
            world.b.beat()
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert not world.told(into.Release)
            world.b.speak("s", 7)
        assert world.told(into.Release) == ["a Release"]
        assert await world.transcript() == [101, 102, 103, 104, 105, 106, 7]


async def test_a_paused_session_is_released_by_a_heartbeat_after_its_activation(tmp_path: Path) -> None:
    """Decision 2: it produces nothing that could be waited for."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        world.table.reader_left(session)
        wave = await wave_of(world, session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wave.run)
            await world.until(lambda: str(wave.moves[0].phase) == "activated")
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert not world.told(into.Release)
            world.b.beat()
        assert world.told(into.Release) == ["a Release"]
        # Its limit at the target is where it stands: it may not decode while nobody reads (H32).
        assert world.bodies(into.Prepare)[0].items[0].limit == 6


async def test_a_source_that_hangs_is_asked_to_release_until_it_has_or_is_gone(tmp_path: Path) -> None:
    """GO at L, note 3: the session lives elsewhere, but its old worker is not empty before that."""
    for lost in (False, True):
        async with open_world(tmp_path / str(lost)) as world:
            session = await world.session(tokens=6)
            wave = await wave_of(world, session)
            world.a.always(into.Release, silence)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wave.run)
                await world.until(lambda: len(world.bodies(into.Release)) >= 3)
                assert wave.moves[0].outcome == "completed_native"
                assert nursery.child_tasks  # the wave is still there, and so is its drain
                if lost:
                    world.lose("a")
                else:
                    world.a.always(into.Release, ScriptedLink.work)
            assert wave.moves[0].reason == (Code.SOURCE_LOST if lost else None)
            assert set(world.bodies(into.Release)) == {into.Release("s", 1)}


async def test_a_target_lost_before_its_first_token_gives_the_session_back(tmp_path: Path) -> None:
    """B22, RH: a new durable transfer under e+2, decided before the source is told; nothing recomputed."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        world.b.emits = False
        wave = await wave_of(world, session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wave.run)
            await world.until(lambda: str(wave.moves[0].phase) == "activated")
            world.b.lose()
        (move,) = wave.moves
        assert (move.outcome, move.reason) == ("rehomed_source", Code.TARGET_LOST)
        assert world.bodies(into.Resume) == [into.Resume("s", 1, 3)]
        assert not world.told(into.Release)
        stored = await world.stored()
        assert (stored.owner, stored.epoch, stored.accepted) == (world.a.owner, 3, 6)
        assert (session.record.owner, session.record.epoch) == (world.a.owner, 3)
        world.a.speak("s", 7)
        await world.until(lambda: session.durable == 7)


async def test_a_target_that_dies_of_the_activation_gives_the_session_back(tmp_path: Path) -> None:
    """B22: activation unknown, target gone."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        wave = await wave_of(world, session)
        world.b.on(into.Activate, loss)
        await wave.run()
        assert wave.moves[0].outcome == "rehomed_source"
        assert world.told(*ENDS) == ["a Resume"]


async def test_a_lost_acknowledgement_is_the_success_that_it_was(tmp_path: Path) -> None:
    """H72: the target runs it; no replay, no token twice, nobody takes it back."""

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        wave = await wave_of(world, session)

        async def fault(link: ScriptedLink, body: into.Activate) -> object:
            await link.work(body)
            raise SwapdError(Code.TIMEOUT)

        world.b.on(into.Activate, fault)
        await wave.run()
        assert wave.moves[0].outcome == "completed_native"
        assert world.told(*ENDS) == ["a Release"]
        assert await world.transcript() == [101, 102, 103, 104, 105, 106, 506]
        assert session.durable == 7


async def test_an_activation_that_got_lost_is_sent_again(tmp_path: Path) -> None:
    """H70, H72: activation is idempotent, and nobody waits for ever."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        wave = await wave_of(world, session)
        world.b.on(into.Activate, silence, refusal(Code.INTERNAL))
        await wave.run()
        assert wave.moves[0].outcome == "completed_native"
        assert len(world.bodies(into.Activate)) == 3
        assert session.record.owner == world.b.owner


async def test_a_target_that_answers_no_activation_gives_the_session_back_in_time(tmp_path: Path) -> None:
    """H70, B22: after `decide_s`; the target is told to drop what it may hold."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        wave = await wave_of(world, session)
        world.b.always(into.Activate, silence)
        await wave.run()
        assert wave.moves[0].outcome == "rehomed_source"
        assert world.told(*ENDS) == ["b Cancel", "a Resume"]
        assert world.bodies(into.Cancel) == [into.Cancel("s", 2)]
        assert session.record.epoch == 3


async def test_a_target_that_does_not_have_the_session_gives_it_back_at_once(tmp_path: Path) -> None:
    """H70, B22: it lost its prepared import."""

    async def unknown(link: ScriptedLink, body: into.Activate) -> Activated:
        return Activated(("s",))

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        wave = await wave_of(world, session)
        world.b.on(into.Activate, unknown)
        await wave.run()
        assert wave.moves[0].outcome == "rehomed_source"
        assert len(world.bodies(into.Activate)) == 1
        assert session.record.epoch == 3


async def test_no_session_comes_home_after_a_token_of_its_new_owner(tmp_path: Path) -> None:
    """B22, L: the token was on its way to the store when the target died, so the move is complete."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        world.b.emits = False
        wave = await wave_of(world, session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wave.run)
            await world.until(lambda: str(wave.moves[0].phase) == "activated")
            world.b.speak("s", 7)
            world.b.lose()
        assert wave.moves[0].outcome == "completed_native"
        assert world.told(*ENDS) == ["a Release"]
        assert (await world.stored()).epoch == 2


async def test_both_workers_lost_after_the_commit_is_a_failed_move(tmp_path: Path) -> None:
    """H70: no copy is left; recovery decides about the session."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        world.b.emits = False
        wave = await wave_of(world, session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wave.run)
            await world.until(lambda: str(wave.moves[0].phase) == "activated")
            world.a.lose()
            world.b.lose()
        assert (wave.moves[0].outcome, wave.moves[0].reason) == ("failed", Code.TARGET_LOST)


async def test_a_source_that_dies_after_the_freeze_is_not_needed_any_more(tmp_path: Path) -> None:
    """B23, RF: once the tail is out, the commit goes on without it."""

    async def without_source(link: ScriptedLink, body: into.Prepare) -> object:
        link.world.a.lose()
        return await link.work(body)

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        wave = await wave_of(world, session)
        world.b.on(into.Prepare, without_source)
        await wave.run()
        assert (wave.moves[0].outcome, wave.moves[0].reason) == ("completed_native", Code.SOURCE_LOST)
        assert session.record.owner == world.b.owner


async def test_a_session_cancelled_while_its_commit_is_written_never_runs_at_its_target(
    tmp_path: Path,
) -> None:
    """x3, x4: the store has the commit first, then the end, in one group; both copies are freed."""

    async def stall(link: ScriptedLink, body: into.Prepare) -> object:
        await close_gate(world.store)
        return await link.work(body)

    try:
        async with open_world(tmp_path, store_class=GatedStore) as world, trio.open_nursery() as nursery:
            session = await world.session(tokens=6)
            wave = await wave_of(world, session)
            world.b.on(into.Prepare, stall)
            nursery.start_soon(wave.run)
            # The phase that rides along, and the commit.
            await world.until(lambda: world.store.statistics().queue == 2)
            nursery.start_soon(world.table.finish, session, "cancelled", Code.SESSION_CANCELLED)
            await world.until(lambda: world.store.statistics().queue == 3)
            GatedConnection.gate.set()
            await world.until(lambda: wave.moves[0].over and session.ended)
            assert (wave.moves[0].outcome, wave.moves[0].reason) == ("cancelled", Code.SESSION_CANCELLED)
            assert not world.told(into.Activate, into.Resume)
            assert into.Cancel("s", 2) in world.bodies(into.Cancel, "b")
            assert world.bodies(into.Release, "a") == [into.Release("s", 1)]
            stored = await world.stored()
            assert (stored.state, stored.epoch) == ("cancelled", 2)
    finally:
        GatedConnection.gate.set()


async def test_a_session_cancelled_after_its_activation_was_moved(tmp_path: Path) -> None:
    """x5: the cancel goes to the target, the source releases, the move stays completed."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        world.b.emits = False
        wave = await wave_of(world, session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wave.run)
            await world.until(lambda: str(wave.moves[0].phase) == "activated")
            await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        assert wave.moves[0].outcome == "completed_native"
        assert world.told(*ENDS) == ["b Cancel", "a Release"]
        assert (await world.stored()).epoch == 2


# Drain cancelled, service stopped --------------------------------------------------------------------


@pytest.mark.parametrize(("step", "asked", "resume", "discard"), STEPS, ids=STEP_NAMES)
async def test_a_wave_that_is_cancelled_before_its_commit_ends_clean(
    tmp_path: Path, step: type, asked: str, resume: bool, discard: bool
) -> None:
    """d1, d2, H61: whatever is under way is undone; nothing stays frozen."""

    async def cancelled(link: ScriptedLink, body: object) -> object:
        wave.withdraw(Code.DRAIN_CANCELLED)
        return await link.work(body)

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=10)
        wave = await wave_of(world, session)
        world.link(asked).on(step, cancelled)
        await wave.run()
        (move,) = wave.moves
        assert (move.outcome, move.reason) == ("aborted_source_resumed", Code.DRAIN_CANCELLED)
        assert "a Resume" in world.told(into.Resume) if resume else not world.told(into.Release)
        assert world.told(into.Discard) == ["b Discard"]
        assert (await world.stored()).epoch == 1


async def test_a_tail_that_could_not_be_exported_is_reported_with_the_source_s_reason(tmp_path: Path) -> None:
    """H54: the drain's reason is what went wrong, not what was missing because of it."""

    async def fails(link: ScriptedLink, body: object) -> object:
        answer = await link.work(body)
        assert isinstance(answer, Frozen)
        items = tuple(msgspec.structs.replace(i, manifest=None, code="arena_exhausted") for i in answer.items)
        return msgspec.structs.replace(answer, items=items)

    async with open_world(tmp_path) as world:
        session = await world.session(tokens=10)
        wave = await wave_of(world, session)
        world.a.on(into.Freeze, fails)
        await wave.run()
        (move,) = wave.moves
        assert (move.outcome, move.reason) == ("aborted_source_resumed", "arena_exhausted")
        assert str(move.failed_in) == "frozen"
        assert world.told(into.Resume) == ["a Resume"]


@pytest.mark.parametrize(("step", "asked", "resume", "discard"), STEPS, ids=STEP_NAMES)
async def test_a_service_that_stops_undoes_what_is_surely_not_committed(
    tmp_path: Path, step: type, asked: str, resume: bool, discard: bool
) -> None:
    """H67: cancellation at every step; what was asked may have had its effect."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        wave = await wave_of(world, session)
        waiting = trio.Event()

        async def hang(link: ScriptedLink, body: object) -> object:
            waiting.set()
            return await trio.sleep_forever()

        world.link(asked).on(step, hang)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wave.run)
            await waiting.wait()
            nursery.cancel_scope.cancel()
        expected = ["a Resume"] * resume + ["b Discard"]
        assert world.told(*ENDS) == expected


async def test_a_service_that_stops_after_the_commit_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    """H69, RY: nobody is told anything, and the record stays open."""
    async with open_world(tmp_path) as world:
        session = await world.session(tokens=6)
        wave = await wave_of(world, session)
        waiting = trio.Event()

        async def hang(link: ScriptedLink, body: object) -> object:
            waiting.set()
            return await trio.sleep_forever()

        world.b.on(into.Activate, hang)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wave.run)
            await waiting.wait()
            nursery.cancel_scope.cancel()
        assert world.told(*ENDS) == []
        assert wave.moves[0].outcome is None
        row = await world.store.read(lambda db: load_move(db, "mov_s"))
        assert row is not None
        assert row.state == "committed"


async def test_a_store_that_fails_at_the_commit_has_the_last_word(tmp_path: Path) -> None:
    """SF, H160: the owner is unknown, so nobody is told anything before a restart."""

    async def then_fail(link: ScriptedLink, body: object) -> object:
        CommitFails.armed = True
        return await link.work(body)

    try:
        async with open_world(tmp_path, store_class=CommitFailsStore) as world:
            session = await world.session(tokens=6)
            wave = await wave_of(world, session)
            world.b.on(into.Prepare, then_fail)
            failed = pytest.RaisesExc(SwapdError, check=lambda error: error.code is Code.STORE_FAILED)
            with pytest.RaisesGroup(failed):
                await wave.run()
            assert world.told(*ENDS, into.Activate) == []
    finally:
        CommitFails.armed = False
