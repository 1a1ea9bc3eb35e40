"""The outcome table of the rules, row by row, and that nothing outside it can be said (H55, H62)."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import pytest
import trio

from swapd.errors import REASONS, Code, SwapdError
from swapd.messages import to_worker as into
from swapd.messages.from_worker import Frozen, FrozenItem
from swapd.migration.drains import DrainBook
from swapd.migration.outcomes import REASONS_OF, within
from swapd.parking.setting_down import set_down
from swapd.store.drains import load_drain
from swapd.views import Caller, NewSession, Outcome, SessionOutcome
from tests.certify.made import certificate
from tests.migration.test_supervisor import by_session, drained
from tests.migration.world import (
    INFO,
    ScriptedLink,
    World,
    loss,
    open_world,
    refusal,
    silence,
)
from tests.parking.kv import KvWorld

Scene = Callable[[World], Awaitable[SessionOutcome]]
RULES: Final = Path(__file__).parents[2] / "docs" / "rules" / "handoff.md"
NONE: Final = "\N{EN DASH}"


def rows() -> list[tuple[str, str]]:
    """Outcome and reason text of each row of the table in the rules."""
    page = RULES.read_text()
    table = page[page.index("**H55**") : page.index("**H56**")]
    found = re.findall(r"^  \| ([a-z_]+) \| (.+?) \| .+ \|$", table, re.MULTILINE)
    return [row for row in found if row[0] != "outcome"]


def words(text: str) -> list[Code | None]:
    """The reasons that a cell names: codes, a code's sentence, and a dash for none."""
    sentences = {reason.sentence: code for code, reason in REASONS.items()}
    if quoted := re.findall(r"`(.+?)`", text):
        return [sentences[each] for each in quoted]
    named = re.findall(r"[a-z]+_[a-z_]+|deadline", text)
    codes: list[Code | None] = [Code(each) for each in named]
    return [*codes, None] if text.startswith(NONE) else codes


def test_the_table_in_the_rules_is_the_table_in_the_code() -> None:
    """H55: each outcome has a row, and each row's reasons are its outcome's."""
    assert {outcome for outcome, _ in rows()} == set(get_args(Outcome)) == set(REASONS_OF)
    for outcome, text in rows():
        for reason in words(text):
            assert reason in REASONS_OF[outcome], (outcome, text)  # type: ignore[index]


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_whatever_is_said_only_the_outcomes_own_reasons_come_out(outcome: Outcome) -> None:
    """H55, H178: a worker's own words, or another outcome's, become `internal` or nothing."""
    for reason in [None, *Code, "no such code", "no_target and more"]:
        book = DrainBook("drn", "a", "operator", 1.0, 60.0)
        book.note(SessionOutcome("s", outcome, reason, "planned"))
        told = book.outcomes["s"].reason
        assert told in REASONS_OF[outcome]
        assert told == reason or (told in (None, Code.INTERNAL) and reason not in REASONS_OF[outcome])
    assert within(SessionOutcome("s", None, "not known yet", "planned")).reason == "not known yet"


def test_a_deadline_says_nothing_else_either() -> None:
    """H55, H58"""
    book = DrainBook("drn", "a", "operator", 1.0, 1.0)
    book.outcomes["s"] = SessionOutcome("s", None, "something of a worker's", "planned")
    assert book.evaluate({"s", "t"}, 10.0)
    assert {name: (each.outcome, each.reason) for name, each in book.outcomes.items()} == {
        "s": ("blocked", Code.INTERNAL),
        "t": ("blocked", Code.DEADLINE),
    }


# One drain for each row ---------------------------------------------------------------------------------


async def ended(world: World, mode: Any = "native") -> SessionOutcome:
    """Drain `a` to its end; what became of `s`."""
    begun = await world.supervisor.start("a", 60, "operator", mode)
    return by_session(await drained(world, begun.id))["s"]


async def blocked(world: World) -> SessionOutcome:
    """Drain `a` beyond its deadline; what stands in the way of `s`."""
    begun = await world.supervisor.start("a", 0, "operator")
    return by_session(await drained(world, begun.id, "blocked"))["s"]


async def moved(world: World) -> SessionOutcome:
    await world.session()
    return await ended(world)


async def moved_though_the_source_died(world: World) -> SessionOutcome:
    async def without_source(link: ScriptedLink, body: object) -> object:
        link.world.a.lose()
        return await link.work(body)

    await world.session()
    world.b.on(into.Prepare, without_source)
    return await ended(world)


async def replayed(world: World) -> SessionOutcome:
    await world.session(allow_replay_fallback=True)
    return await ended(world, "replay")


async def replayed_because_the_source_died(world: World) -> SessionOutcome:
    await world.session(allow_replay_fallback=True)
    world.a.on(into.Export, loss)
    return await ended(world)


async def replayed_because_the_target_failed(world: World) -> SessionOutcome:
    async def neither_has_it(link: ScriptedLink, body: object) -> object:
        link.world.a.lose()
        raise SwapdError(Code.INTERNAL)

    await world.session(allow_replay_fallback=True)
    world.b.always(into.Activate, neither_has_it)
    return await ended(world)


async def begun_anew(world: World) -> SessionOutcome:
    await world.session(tokens=0)
    return await ended(world)


async def parked(world: World) -> SessionOutcome:
    world.full("b")
    await world.session(reading=False)
    return await ended(world, "park")


async def set_down_for_want_of_room(world: World) -> SessionOutcome:
    world.full("b")
    session = await world.session(allow_replay_fallback=True, reading=False)
    begun = await world.supervisor.start("a", 60, "operator")
    await world.until(lambda: "s" in world.supervisor.open_drains()[0].refused)
    await set_down(world.table, session)
    return by_session(await drained(world, begun.id))["s"]


async def resumed(world: World) -> SessionOutcome:
    await world.session()
    world.b.always(into.Import, refusal(Code.CHECKSUM_MISMATCH))
    begun = await world.supervisor.start("a", 60, "operator")
    while True:
        found = by_session(await world.supervisor.view(begun.id)).get("s")
        if found is not None and found.outcome is not None:
            assert found.phase == "precopying"
            return found
        await world.table.wait_activity(0.02)


async def rehomed(world: World) -> SessionOutcome:
    world.a.emits = False
    await world.session(tokens=0)
    world.b.always(into.Start, refusal(Code.CAPACITY))
    begun = await world.supervisor.start("a", 60, "operator")
    while True:
        found = by_session(await world.supervisor.view(begun.id)).get("s")
        if found is not None and found.outcome is not None:
            return found
        await world.table.wait_activity(0.02)


async def finished_before_the_freeze(world: World) -> SessionOutcome:
    async def too_late(link: ScriptedLink, body: into.Freeze) -> object:
        link.speak("s", 7, finish="length")
        return Frozen(body.batch, tuple(FrozenItem(i.move, "finished", 0, 0) for i in body.items), 0.0, 0.0)

    await world.session()
    world.a.always(into.Freeze, too_late)
    return await ended(world)


async def cancelled_by_its_client(world: World) -> SessionOutcome:
    async def cancel(link: ScriptedLink, body: object) -> object:
        session = link.world.table.get("s")
        assert session is not None
        await link.world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        return await link.work(body)

    await world.session()
    world.a.on(into.Export, cancel)
    return await ended(world)


async def here_when_the_drain_was_cancelled(world: World) -> SessionOutcome:
    world.full("b")
    await world.session()
    begun = await world.supervisor.start("a", 60, "operator")
    return by_session(await world.supervisor.cancel(begun.id))["s"]


async def not_begun(world: World) -> SessionOutcome:
    world.full("b")
    await world.session(tokens=0)
    return await blocked(world)


async def no_seat(world: World) -> SessionOutcome:
    world.full("b")
    await world.session()
    return await blocked(world)


async def another_model(world: World) -> SessionOutcome:
    ready = world.b.ready
    assert ready is not None
    world.b.ready = msgspec.structs.replace(ready, info=msgspec.structs.replace(INFO, fingerprint="other"))
    await world.session()
    return await blocked(world)


async def moves_off(world: World) -> SessionOutcome:
    world.supervisor.migration_off = lambda: "by a test"
    await world.session()
    return await blocked(world)


async def still_on_its_way(world: World) -> SessionOutcome:
    gate = trio.Event()

    async def slowly(link: ScriptedLink, body: object) -> object:
        await gate.wait()
        return await link.work(body)

    await world.session()
    world.a.on(into.Export, slowly)
    begun = await world.supervisor.start("a", 0, "operator")
    while True:
        stored = await world.store.read(lambda db: load_drain(db, begun.id))
        if stored is not None and stored.state == "blocked":
            gate.set()
            [found] = stored.sessions
            assert by_session(await drained(world, begun.id))["s"].outcome == "completed_native"
            return found
        await world.table.wait_activity(0.02)


async def lapsed(world: World) -> SessionOutcome:
    await world.session()
    return await blocked(world)


async def revoked(world: World) -> SessionOutcome:
    [known] = world.certificates.views()
    await world.certificates.revoke(known.id)
    await world.session()
    return await blocked(world)


async def closed_target(world: World) -> SessionOutcome:
    world.admission.close("b", "device", "its owner has it")
    await world.session()
    return await blocked(world)


async def owner_lost(world: World) -> SessionOutcome:
    await world.session()
    world.a.on(into.Export, loss)
    return await ended(world)


ROWS: Final[list[tuple[Scene, Outcome, Code | None]]] = [
    (moved, "completed_native", None),
    (moved_though_the_source_died, "completed_native", Code.SOURCE_LOST),
    (replayed, "completed_replay", None),
    (replayed_because_the_source_died, "completed_replay", Code.SOURCE_LOST),
    (replayed_because_the_target_failed, "completed_replay", Code.TARGET_FAILED),
    (begun_anew, "completed_redispatch", None),
    (rehomed, "rehomed_source", Code.CAPACITY),
    (parked, "parked", None),
    (set_down_for_want_of_room, "parked", Code.PARK_FULL),
    (resumed, "aborted_source_resumed", Code.CHECKSUM_MISMATCH),
    (finished_before_the_freeze, "cancelled", Code.ALREADY_FINISHED),
    (cancelled_by_its_client, "cancelled", Code.SESSION_CANCELLED),
    (here_when_the_drain_was_cancelled, "cancelled", Code.DRAIN_CANCELLED),
    (not_begun, "blocked", Code.NOT_ELIGIBLE),
    (no_seat, "blocked", Code.TARGET_FULL),
    (another_model, "blocked", Code.NO_EDGE),
    (moves_off, "blocked", Code.MIGRATION_DISABLED),
    (lapsed, "blocked", Code.CERTIFICATE_EXPIRED),
    (revoked, "blocked", Code.CERTIFICATE_REVOKED),
    (still_on_its_way, "blocked", Code.DEADLINE),
    (closed_target, "blocked", Code.NO_TARGET),
    (owner_lost, "failed", Code.RECOVERY_UNAVAILABLE),
]


CERTIFIED: Final = {lapsed: 0, revoked: int(time.time())}
"""Scenes in which moves need a certificate, and when that was issued."""


@pytest.mark.parametrize(("scene", "outcome", "reason"), ROWS, ids=[row[0].__name__ for row in ROWS])
async def test_each_row_of_the_table_is_what_a_drain_says(
    tmp_path: Path, scene: Scene, outcome: Outcome, reason: Code | None
) -> None:
    """H55: real drains, one for each row."""
    changes: dict[str, Any] = {}
    if (issued_at := CERTIFIED.get(scene)) is not None:
        changes = {"self_certify": False, "certificates": (certificate("fp", issued_at=issued_at),)}
    async with open_world(tmp_path, park_bytes=1 << 20, world_class=KvWorld, **changes) as world:
        found = await scene(world)
        assert (found.outcome, found.reason) == (outcome, reason)
        assert (str(outcome), reason) in {(row, word) for row, text in rows() for word in words(text)} or (
            outcome in ("rehomed_source", "aborted_source_resumed")
        )


# Moves switched off -------------------------------------------------------------------------------------


@pytest.mark.parametrize("off_by", ["configuration", "operator"])
async def test_while_migration_is_off_a_drain_blocks_and_serving_goes_on(tmp_path: Path, off_by: str) -> None:
    """H62: sessions `blocked`, the drain `blocked` at its deadline, and nobody's tokens wait for it."""
    async with open_world(tmp_path, migration_enabled=off_by != "configuration") as world:
        if off_by == "operator":
            world.supervisor.migration_off = lambda: "by the operator"
        one, two = await world.session("one"), await world.session("two")
        begun = await world.supervisor.start("a", 0, "operator")
        view = await drained(world, begun.id, "blocked")
        assert {(each.outcome, each.reason) for each in view.sessions} == {
            ("blocked", Code.MIGRATION_DISABLED)
        }
        assert not world.told(into.Reserve, into.Start)
        for session in (one, two):
            world.a.speak(session.id, 7)
            await world.until(lambda session=session: session.durable == 7)  # type: ignore[misc]
        new = await world.admission.admit(Caller("tenant"), NewSession(prompt=[1], max_new_tokens=4))
        assert new.record.owner == world.b.owner
        world.supervisor.migration_off = lambda: None
        world.table.notify()
        assert {each.outcome for each in (await drained(world, begun.id)).sessions} == {"completed_native"}


async def test_a_hanging_target_is_in_the_table_too(tmp_path: Path) -> None:
    """H55, H79: `timeout` is a step's code."""
    async with open_world(tmp_path) as world:
        await world.session()
        world.b.always(into.Reserve, silence)
        begun = await world.supervisor.start("a", 60, "operator")
        while True:
            found = by_session(await world.supervisor.view(begun.id)).get("s")
            if found is not None and found.outcome is not None:
                break
            await world.table.wait_activity(0.02)
        assert (found.outcome, found.reason) == ("aborted_source_resumed", Code.TIMEOUT)


async def test_the_words_of_a_worker_reach_no_row(tmp_path: Path) -> None:
    """H55: what it calls its own trouble is `internal` in the drain, the row and its figures."""

    async def odd(link: ScriptedLink, body: into.Freeze) -> object:
        items = tuple(FrozenItem(i.move, "frozen", 0, 0, code="of its own") for i in body.items)
        return Frozen(body.batch, items, 0.0, 0.0)

    async with open_world(tmp_path) as world:
        await world.session()
        world.a.on(into.Freeze, odd)
        begun = await world.supervisor.start("a", 60, "operator")
        await drained(world, begun.id)
        [first, *_] = await world.rows("SELECT outcome, reason, stats FROM moves ORDER BY key")
        assert first[:2] == ("aborted_source_resumed", Code.INTERNAL)
        assert "of its own" not in first[2]
