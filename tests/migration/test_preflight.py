"""What a pre-flight says is what the drain does: both look through the same rules."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio.testing

from swapd.errors import Code, SwapdError
from swapd.messages import to_worker as into
from swapd.messages.generation import PARK
from swapd.migration.planner import Refusal, Traveller
from swapd.migration.preflight import DRAINS_MEASURED, Fate, Pace, Way, foresee, pace
from swapd.views import DrainMode, DrainView, Foreseen, Leave, PreflightView, SessionOutcome
from tests.migration.world import BLOCK_BYTES, INFO, World, open_world, silence
from tests.parking.kv import KvWorld

LEASE_BYTES = 26 * BLOCK_BYTES
"""Of a session as the world makes them: 3 tokens of prompt and 100 of budget."""


SCENES = 9


def by_session(view: PreflightView) -> dict[str, Foreseen]:
    return {each.session: each for each in view.sessions}


# The whole: real books, scripted workers --------------------------------------------------------------


async def did(world: World, drain: str, session: str) -> tuple[str, str | None, str | None]:
    """What became of a session in a drain, in the words of a pre-flight, once the drain is at rest."""
    found = {each.session: each for each in (await world.supervisor.view(drain)).sessions}[session]
    live = world.table.get(session)
    assert live is not None
    owner = live.record.owner
    assert owner is not None
    match found.outcome:
        case "completed_native":
            return "move", found.target, None
        case "completed_replay":
            return "replay", owner.worker, None
        case "parked":
            return "park", None, None
        case _:
            return "stay", None, found.reason


async def at_rest(world: World) -> None:
    """Nothing is on its way, and the drain has looked since and sent nobody off."""

    def still() -> bool:
        busy = any(session.move is not None or session.recovering for session in world.table)
        return not busy and (world.leases is None or world.leases.active == 0)

    while True:
        while not still():
            for link in world.links.values():
                link.beat()  # a worker that is heard of has what nobody reads
            await world.table.wait_activity(0.02)
        world.table.notify()
        await trio.testing.wait_all_tasks_blocked()
        if still():
            return


Scene = tuple[dict[str, Any], list[dict[str, Any]], list[tuple[int, int]]]


def scene(mode: DrainMode, seed: int) -> Scene:
    """A drain to try: configuration, the sessions of `a`, the room of the other workers."""
    rng = random.Random(f"{mode} {seed}")
    arenas = [LEASE_BYTES, 3 * LEASE_BYTES, 1 << 22]
    changes: dict[str, Any] = {
        "arena_bytes": rng.choice([*arenas, *arenas] if mode == "park" else [None, *arenas, *arenas]),
        "park_bytes": rng.choice([4 * BLOCK_BYTES, 1 << 20]) if mode == "park" else 0,
        "max_concurrent_migrations": rng.choice([None, None, 1, 2]),
        "self_certify": rng.random() < 0.9,
        "migration_enabled": rng.random() < 0.9,
    }
    sessions = [
        {
            "tokens": rng.choice([1, 5, 9]),
            # Nobody reads them: else one that was parked could come back, and take a room from another.
            "reading": False,
            "max_new_tokens": rng.choice([40, 100, 100, 160]),
            "allow_replay_fallback": rng.random() < 0.7,
        }
        for _ in range(rng.randint(1, 6))
    ]
    rooms = [(rng.choice([30, 60, 256]), rng.choice([1, 2, 8])) for _ in range(rng.choice([0, 1, 2, 2]))]
    return changes, sessions, rooms


@pytest.mark.parametrize(
    ("mode", "fates"),
    [
        ("native", {"move", "wait", "stay"}),
        ("park", {"move", "park", "wait", "stay"}),
        ("replay", {"replay", "stay"}),
    ],
)
async def test_a_drain_does_what_its_preflight_said(tmp_path: Path, mode: DrainMode, fates: set[str]) -> None:
    """H50, H55: whatever room, arena, park, switches and permissions there are."""
    seen: set[str] = set()
    for seed in range(SCENES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        seen |= await tried(folder, mode, seed)
    assert seen == fates, "scenes in which nothing happens would show nothing"


async def tried(folder: Path, mode: DrainMode, seed: int) -> set[str]:
    """Look ahead, drain, compare; returns what was foreseen."""
    changes, sessions, rooms = scene(mode, seed)
    async with open_world(folder, workers=("a",), world_class=KvWorld, **changes) as world:
        for name, (blocks, seats) in zip("bc", rooms, strict=False):
            world.add_worker(name, msgspec.structs.replace(INFO, usable_blocks=blocks, max_num_seqs=seats))
        world.ledger.set_worker("a", 10_000, 100, INFO.block_tokens)
        for number, fields in enumerate(sessions):
            await world.session(f"s{number}", **fields)
        told = await world.supervisor.preflight("a", mode)
        assert not world.told(into.Reserve), "nothing is asked for it"
        await world.check_baseline()
        begun = await world.supervisor.start("a", 600, "operator", mode)
        await at_rest(world)
        for session, said in by_session(told).items():
            how, where, why = await did(world, begun.id, session)
            if said.would == "wait":
                # For its turn, in the arena or the park: it goes as foreseen, if not in the order foreseen.
                assert said.reason in (Code.ARENA_EXHAUSTED, Code.PARK_FULL), seed
                assert how == said.then, seed
                if len(rooms) < 2:
                    assert where == said.target, seed
            else:
                assert (how, where, why) == (said.would, said.target, said.reason), (seed, told)
        return {said.would for said in told.sessions}


async def test_a_preflight_shows_sizes_and_reserves_nothing(tmp_path: Path) -> None:
    """H46: what would be copied is what is computed, in whole blocks."""
    async with open_world(tmp_path) as world:
        await world.session("s", tokens=6)
        view = await world.supervisor.preflight("a")
        told = by_session(view)["s"]
        assert (told.would, told.target, told.state) == ("move", "b", "running")
        assert (told.accepted, told.max_new_tokens) == (6, 100)
        assert (told.kv_blocks, told.kv_bytes) == (2, 2 * BLOCK_BYTES)
        assert (view.copy_bytes, view.copy_s, view.drains_measured) == (2 * BLOCK_BYTES, None, 0)
        assert world.admission.admitting("a")
        await world.check_baseline()


async def test_a_preflight_after_a_drain_knows_how_long_it_takes(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        await world.session("s")
        begun = await world.supervisor.start("a", 60, "operator")
        await world.until(lambda: world.admission.admitting("a"))
        done = await world.supervisor.view(begun.id)
        view = await world.supervisor.preflight("b")
        assert view.drains_measured == 1
        assert view.longest_pause_ms == done.sessions[0].frozen_ms
        assert view.copy_s is not None
        assert view.copy_s > 0


async def test_what_is_not_ready_yet_waits_and_then_goes(tmp_path: Path) -> None:
    """H56, H85"""
    async with open_world(tmp_path) as world:
        prefilled = await world.session("prefill", tokens=0)
        prefilled.received.append(7)  # else it would begin anew at once (B18)
        moving = await world.session("moving")
        moving.move = "mov"
        told = by_session(await world.supervisor.preflight("a"))
        prefill = told["prefill"]
        assert (prefill.would, prefill.then, prefill.target) == ("wait", "move", "b")
        assert (prefill.reason, prefill.detail) == (Code.NOT_ELIGIBLE, "no accepted token")
        assert (told["moving"].would, told["moving"].then, told["moving"].reason) == ("wait", "move", None)
        moving.move = None
        prefilled.received.clear()


async def test_a_worker_that_is_not_there_leaves_its_sessions_to_recovery(tmp_path: Path) -> None:
    """H64"""
    async with open_world(tmp_path) as world:
        await world.session("s")
        world.a.lose()
        told = by_session(await world.supervisor.preflight("a"))["s"]
        assert (told.would, told.reason) == ("wait", Code.SOURCE_LOST)


async def test_a_preflight_is_refused_where_the_drain_would_be(tmp_path: Path) -> None:
    """H50"""
    async with open_world(tmp_path) as world:
        with pytest.raises(SwapdError) as refused:
            await world.supervisor.preflight("nobody")
        assert refused.value.code == Code.WORKER_UNKNOWN
        await world.session()
        world.a.on(into.Export, silence)
        begun = await world.supervisor.start("a", 60, "operator")
        with pytest.raises(SwapdError) as refused:
            await world.supervisor.preflight("a")
        assert (refused.value.code, refused.value.detail) == (Code.DRAIN_EXISTS, begun.id)


# The rules alone -------------------------------------------------------------------------------------


class Books:
    """A trial in which `seats` may leave at a time, to `target`; `no` never may."""

    def __init__(self, seats: int, target: str = "b", how: Leave = "move", **no: Code) -> None:
        self.seats = self.free = seats
        self.how = how
        self.target = target
        self.no = no
        self.looks = 0

    def look(self, travellers: Any) -> tuple[dict[str, Way], list[Refusal]]:
        self.looks += 1
        gone: dict[str, Way] = {}
        stay: list[Refusal] = []
        for each in travellers:
            code = self.no.get(each.session)
            if code is None and not each.eligible:
                code = Code.NOT_ELIGIBLE
            if code is None and not self.free:
                code = Code.ARENA_EXHAUSTED
            if code is None:
                self.free -= 1
                gone[each.session] = Way(self.how, self.target)
            else:
                stay.append(Refusal(each.session, code, True, f"{each.session} of {self.looks}"))
        return gone, stay

    def arrive(self) -> None:
        self.free = self.seats


def travellers(*names: str, **changes: Any) -> list[Traveller]:
    return [Traveller(name, 10, **changes) for name in names]


def test_who_waits_for_the_arena_goes_after_those_that_were_first() -> None:
    """The reason is that of the first look: it is what the drain will say."""
    fates = foresee(Books(1), travellers("s", "t", "u"))
    assert fates["s"] == Fate("move", "b")
    assert fates["t"] == Fate("wait", "b", Code.ARENA_EXHAUSTED, "t of 1", "move")
    assert fates["u"] == Fate("wait", "b", Code.ARENA_EXHAUSTED, "u of 1", "move")


@pytest.mark.parametrize(
    ("code", "would"),
    [
        (Code.NO_TARGET, "stay"),
        (Code.TARGET_FULL, "stay"),
        (Code.REPLAY_NOT_PERMITTED, "stay"),
        (Code.ALREADY_FINISHED, "end"),
        (Code.ARENA_EXHAUSTED, "wait"),
    ],
)
def test_what_never_leaves_says_whether_waiting_helps(code: Code, would: str) -> None:
    fates = foresee(Books(2, s=code), travellers("s", "t"))
    assert fates["s"] == Fate(would, None, code, "s of 2")  # type: ignore[arg-type]
    assert fates["t"] == Fate("move", "b")


def test_a_place_in_the_park_and_a_rebuild_are_called_so() -> None:
    """B3, H73"""
    assert foresee(Books(1, target=PARK, how="park"), travellers("s"))["s"].would == "park"
    for how in ("replay", "anew"):
        assert foresee(Books(1, how=how), travellers("s"))["s"].would == how


def test_an_empty_worker_has_no_fates() -> None:
    """H52"""
    assert foresee(Books(1), []) == {}


def drain(*spans: tuple[float, float], bytes_each: int = 500, pause_ms: float = 40.0) -> DrainView:
    sessions = tuple(
        SessionOutcome(f"s{i}", "completed_native", None, "finished", frozen_ms=pause_ms + i,
                       precopied_bytes=bytes_each - 100, frozen_bytes=100, copy_started_at=began,
                       copy_ended_at=ended)
        for i, (began, ended) in enumerate(spans)
    )  # fmt: skip
    return DrainView("d", "a", "drained", "operator", 1.0, 60.0, 2.0, sessions)


def test_the_pace_is_that_of_whole_drains() -> None:
    """Sessions copy side by side, so their times do not add up."""
    assert pace([drain((10.0, 12.0), (11.0, 14.0))]) == Pace(1000 / 4.0, 41.0, 1)
    assert pace([drain((0.0, 1.0))] * 9) == Pace(500.0, 40.0, DRAINS_MEASURED)


@pytest.mark.parametrize("history", [[], [drain()], [drain((5.0, 5.0))]])
def test_without_a_measured_copy_there_is_no_pace(history: list[DrainView]) -> None:
    assert pace(history) is None
