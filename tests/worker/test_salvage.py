"""An import whose source was lost, at a real worker: what was checked is used, nothing else (B24)."""

from __future__ import annotations

import msgspec
import pytest

from swapd.errors import Code
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.messages.generation import GenerationSpec
from tests.worker.client import SEEDED, SIM, Client, Move, Mover, WorkerProcess, mover, spec, unmoved

Pair = tuple[WorkerProcess, WorkerProcess]
AT = 14
"""Tokens that the source gave: with a prompt of 3, positions below 16 have KV, 4 full blocks."""


async def copied(both: Mover, given: GenerationSpec, ttl_s: float = 60.0) -> Move:
    """A session that has run at the source, and the move that has copied its full blocks."""
    await both.source.ask(into.Start(given, 1, AT), out.Started)
    await both.source.has(given, 1, AT)
    move = await both.reserve(given, 1, ttl_s)
    exported = await move.precopy()
    assert exported.frontier == 4
    return move


async def go_on(target: Client, move: Move, accepted: int = AT, **changes: object) -> out.Started:
    """Rebuild it at the target from `accepted` tokens, and see that it says what it would have said."""
    given, reference = move.given, unmoved(move.given)
    before = (await target.stats()).recomputed_tokens
    target.credited.add((given.session, 2))
    fields = {"spec": given, "epoch": 2, "limit": accepted + 8, "outputs": tuple(reference[:accepted])}
    start = into.Start(**(fields | {"salvage": move.id} | changes))  # type: ignore[arg-type]  # a test's own
    started = await target.ask(start, out.Started)
    assert await target.ended(given, 2) == reference[accepted:]
    assert target.first[given.session, 2] == accepted + 1
    below = len(given.prompt) + accepted - 1
    runs = [run for r in target.reports if isinstance(r, out.Tokens) for run in r.runs]
    told = [run.recomputed for run in runs if run.session == given.session]
    assert told[0] == below - started.kept
    assert set(told[1:]) <= {None}
    stats = await target.stats(lambda s: s.free_blocks == SIM.blocks and s.sessions == 0)
    assert (stats.recomputed_tokens, stats.reserved) == (before + below - started.kept, 0)
    return started


@pytest.mark.parametrize(
    ("accepted", "kept"), [(AT, 16), (AT - 1, 15), (AT - 5, 11)], ids=["all", "one less", "blocks less"]
)
async def test_only_what_was_not_copied_is_computed_again(pair: Pair, accepted: int, kept: int) -> None:
    """B24, H209: also where the source had computed more than was ever accepted of it."""
    given = spec(sampling=SEEDED)
    async with mover(pair[0].ready, pair[1].ready) as both:
        move = await copied(both, given)
        await both.source.ask(into.Cancel(given.session, 1), out.Done)
        started = await go_on(both.target, move, accepted)
        assert started.kept == kept


async def test_what_the_source_computed_after_the_copy_is_computed_again(pair: Pair) -> None:
    given = spec(sampling=SEEDED)
    async with mover(pair[0].ready, pair[1].ready) as both:
        move = await copied(both, given)
        await both.source.credit(given, 1, AT, 25)
        await both.source.has(given, 1, 25)
        await both.source.ask(into.Cancel(given.session, 1), out.Done)
        assert (await go_on(both.target, move, 25)).kept == 16


@pytest.mark.parametrize(
    "doubt", ["another move", "no move", "another spec", "nothing came", "expired", "gone"]
)
async def test_an_import_in_doubt_is_freed_and_all_is_computed_again(pair: Pair, doubt: str) -> None:
    """B24, H49: the plain replay, in the room that the import had."""
    given = spec(new=600)  # beside the import there would be no room for it
    async with mover(pair[0].ready, pair[1].ready) as both:
        move = await copied(both, given, ttl_s=0.05 if doubt == "expired" else 60.0)
        await both.source.ask(into.Cancel(given.session, 1), out.Done)
        changes: dict[str, object] = {}
        if doubt == "another move":
            changes["salvage"] = "other"
        if doubt == "no move":
            changes["salvage"] = ""
        if doubt == "another spec":
            changes["spec"] = msgspec.structs.replace(given, salt="cold")
        if doubt == "expired":
            await both.target.stats(lambda s: s.reserved == 0)
        if doubt in ("gone", "nothing came"):
            await both.target.ask(into.Discard(move.id), out.Done)
        if doubt == "nothing came":
            reserve = into.Reserve(move.id, given, 2, move.lease, 60.0)
            await both.target.ask(reserve, out.Reserved)
        assert (await go_on(both.target, move, **changes)).kept == 0  # type: ignore[arg-type]  # a test's own


async def test_only_verified_blocks_count(pair: Pair) -> None:
    """B21, B24: up to the first block that does not check as it should."""
    given = spec(sampling=SEEDED)
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, AT), out.Started)
        await both.source.has(given, 1, AT)
        move = await both.reserve(given, 1)
        exported = await move.export()
        bad = exported.manifest.blocks[2]
        with both.arena.region(move.lease) as region:
            region[bad.offset] ^= 1
        assert await both.target.refused(into.Import(move.id, exported.manifest)) == Code.CHECKSUM_MISMATCH
        await both.source.ask(into.Cancel(given.session, 1), out.Done)
        assert (await go_on(both.target, move)).kept == 8


async def test_nothing_is_written_any_more_into_blocks_that_were_taken_up(pair: Pair) -> None:
    """B24: a copy that comes late is refused, and a repeated Start answers as the first did."""
    given = spec(sampling=SEEDED)
    reference = unmoved(given)
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, AT), out.Started)
        await both.source.has(given, 1, AT)
        move = await both.reserve(given, 1)
        exported = await move.precopy()
        await both.source.ask(into.Cancel(given.session, 1), out.Done)
        start = into.Start(given, 2, AT, tuple(reference[:AT]), move.id)  # no window yet: it stands still
        first = await both.target.ask(start, out.Started)
        assert await both.target.refused(into.Import(move.id, exported.manifest)) == Code.LEASE_EXPIRED
        assert await both.target.ask(start, out.Started) == first
        assert first.kept == 16
        both.target.credited.add((given.session, 2))
        await both.target.credit(given, 2, AT, AT + 8)
        assert await both.target.ended(given, 2) == reference[AT:]


async def test_a_session_that_waits_to_be_rebuilt_can_be_cancelled(pair: Pair) -> None:
    """H11, H49"""
    given = spec()
    async with mover(pair[0].ready, pair[1].ready) as both:
        move = await copied(both, given)
        await both.source.ask(into.Cancel(given.session, 1), out.Done)
        outputs = tuple(unmoved(given)[:AT])
        await both.target.ask(into.Start(given, 2, AT, outputs, move.id), out.Started)
        await both.target.ask(into.Cancel(given.session, 2), out.Done)
        stats = await both.target.stats(lambda s: s.sessions == 0)
        assert stats.free_blocks == SIM.blocks
