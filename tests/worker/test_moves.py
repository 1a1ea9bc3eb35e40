"""A session moves between two real worker processes; what it says is what an unmoved one says."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.messages.generation import Lease, Sampling
from swapd.messages.snapshot import seal
from tests.worker.client import GREEDY, SEEDED, SIM, Mover, WorkerProcess, mover, spec, unmoved

Pair = tuple[WorkerProcess, WorkerProcess]


async def baseline(both: Mover) -> None:
    """Nothing is left in either worker."""
    for client in (both.source, both.target):
        # A session that has ended stays until its last tokens are accepted, and holds no block meanwhile.
        stats = await client.stats(lambda s: s.free_blocks == SIM.blocks and s.sessions == 0)
        assert (stats.reserved, stats.frozen, stats.recomputed_tokens) == (0, 0, 0)
        assert not [report for report in client.reports if isinstance(report, out.Alarm)]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 9, 14])
async def test_a_moved_session_goes_on_as_if_it_had_not_moved(
    pair: Pair, at: int, sampling: Sampling
) -> None:
    """H77-H83: N - 1 mod B over all classes, N - 1 < B, and a block that fills at the last step."""
    given = spec(sampling=sampling)
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, at), out.Started)
        outputs = await both.source.has(given, 1, at)
        move = await both.reserve(given, 1)
        await move.precopy()
        frozen = await move.freeze()
        assert (frozen.status, frozen.position, frozen.computed) == ("frozen", at, len(given.prompt) + at - 1)
        assert frozen.manifest is not None
        assert len(frozen.manifest.blocks) <= 1
        assert (await move.prepare(outputs)).ok
        assert (await move.activate()).unknown == ()
        rest = await both.target.ended(given, 2)
        assert both.target.first[given.session, 2] == at + 1
        assert outputs + rest == unmoved(given)
        await both.source.ask(into.Release(given.session, 1), out.Done)
        await baseline(both)


async def test_sessions_move_together_while_they_decode(pair: Pair) -> None:
    sessions = (spec(new=300), spec((8, 9), new=300, sampling=SEEDED))
    async with mover(pair[0].ready, pair[1].ready) as both:
        for one in sessions:
            both.source.credited.add((one.session, 1))
            await both.source.ask(into.Start(one, 1, 8), out.Started)
        await both.source.has(sessions[1], 1, 20)
        # From here on a pass gives them three blocks more: they decode meanwhile, and do not end before it.
        both.source.credited.clear()
        left = [await both.reserve(one, 1) for one in sessions]
        while left:
            # A pass may find a session two blocks ahead again; it goes on, and the next pass takes it.
            for move in left:
                had = len(both.source.ids[move.given.session, 1])
                await both.source.credit(move.given, 1, had, had + 12)
                await move.precopy()
            freeze = into.Freeze("b", tuple(move.freeze_item for move in left))
            frozen = (await both.source.ask(freeze, out.Frozen)).items
            done = [(move, item) for move, item in zip(left, frozen, strict=True) if item.status == "frozen"]
            items = []
            for move, item in done:
                move.manifest = item.manifest
                outputs = both.source.ids[move.given.session, 1]
                # FIFO: every token up to the freeze has come before the answer.
                assert len(outputs) == item.position
                items.append(move.prepare_item(outputs, len(outputs) + 8))
            if items:
                prepared = await both.target.ask(into.Prepare("b", tuple(items)), out.Prepared)
                assert all(item.ok for item in prepared.items)
            for move, _ in done:
                await move.activate()
                left.remove(move)
        for one in sessions:
            rest = await both.target.ended(one, 2)
            assert both.source.ids[one.session, 1] + rest == unmoved(one)
            await both.source.ask(into.Release(one.session, 1), out.Done)
        await baseline(both)


async def test_what_a_prepared_session_computes_stays_until_it_is_activated(pair: Pair) -> None:
    """Decision 1, H33: activate is permission to emit; the window bounds what is computed before."""
    given = spec()
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, 6), out.Started)
        outputs = await both.source.has(given, 1, 6)
        move = await both.reserve(given, 1)
        await move.precopy()
        await move.freeze()
        await move.prepare(outputs, ahead=3)
        stats = await both.target.stats(lambda s: s.unaccepted == 3)
        assert stats.reserved == 1
        [item] = await both.target.inventory(given)
        assert (item.phase, item.position, item.move) == ("prepared", 9, move.id)
        assert both.target.ids[given.session, 2] == []
        await move.activate(credit=False)
        held = list(await both.target.has(given, 2, 3))
        assert list(item.unaccepted) == held[:3]
        tokens = [report for report in both.target.reports if isinstance(report, out.Tokens)]
        assert len(tokens[0].runs[0].ids) == 3
        repeat = await both.target.ask(
            into.Activate((into.SessionEpoch(given.session, 2), into.SessionEpoch("other", 2))), out.Activated
        )
        assert repeat.unknown == ("other",)
        assert len([report for report in both.target.reports if isinstance(report, out.Tokens)]) == len(
            tokens
        )
        await both.target.ask(into.Cancel(given.session, 2), out.Done)
        await both.source.ask(into.Release(given.session, 1), out.Done)
        await baseline(both)


@pytest.mark.parametrize("step", ["reserve", "precopy", "freeze", "prepare"])
async def test_an_abort_at_every_step_leaves_the_source_as_it_was(pair: Pair, step: str) -> None:
    given = spec(sampling=SEEDED)
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, 7), out.Started)
        outputs = list(await both.source.has(given, 1, 7))
        move = await both.reserve(given, 1)
        if step != "reserve":
            await move.precopy()
        if step in ("freeze", "prepare"):
            await move.freeze()
        if step == "prepare":
            assert (await move.prepare(outputs)).ok
        for _ in range(2):
            await both.target.ask(into.Discard(move.id), out.Done)
            await both.source.ask(into.Resume(given.session, 1), out.Done)
        assert await both.target.inventory(given) == []
        both.source.credited.add((given.session, 1))
        await both.source.credit(given, 1, 7, 15)
        assert await both.source.ended(given, 1) == unmoved(given)
        assert both.target.ids[given.session, 2] == []
        await baseline(both)


async def test_a_discarded_move_takes_nothing_in_any_more(pair: Pair) -> None:
    given = spec()
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, 7), out.Started)
        outputs = list(await both.source.has(given, 1, 7))
        move = await both.reserve(given, 1)
        exported = await move.export()
        await both.target.ask(into.Discard(move.id), out.Done)
        assert await both.target.refused(into.Import(move.id, exported.manifest)) == "lease_expired"
        move.copied = exported.frontier
        await move.freeze()
        assert (await move.prepare(outputs)).code == "lease_expired"
        await both.source.ask(into.Cancel(given.session, 1), out.Done)
        await baseline(both)


@pytest.mark.parametrize("where", ["precopy", "tail"])
async def test_a_byte_that_changed_in_the_arena_is_noticed_and_the_source_goes_on(
    pair: Pair, where: str
) -> None:
    """B21, H99: verified by the target after its own copy; the abort is before the commit."""
    given = spec()
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, 7), out.Started)
        outputs = list(await both.source.has(given, 1, 7))
        move = await both.reserve(given, 1)
        exported = await move.export()
        if where == "precopy":
            _flip(both, move.lease, exported.manifest.blocks[1].offset)
            assert await both.target.refused(into.Import(move.id, exported.manifest)) == "checksum_mismatch"
        else:
            await move.precopy()
            await move.freeze()
            assert move.manifest is not None
            _flip(both, move.lease, move.manifest.blocks[0].offset)
            item = await move.prepare(outputs)
            assert (item.ok, item.code) == (False, "checksum_mismatch")
        await both.target.ask(into.Discard(move.id), out.Done)
        await both.source.ask(into.Resume(given.session, 1), out.Done)
        both.source.credited.add((given.session, 1))
        await both.source.credit(given, 1, 7, 15)
        assert await both.source.ended(given, 1) == unmoved(given)
        await baseline(both)


def _flip(both: Mover, lease: Lease, offset: int) -> None:
    with both.arena.region(lease) as region:
        region[offset + 5] ^= 1


async def test_bytes_past_the_frontier_are_never_read(pair: Pair) -> None:
    """H84: the tail's unused bytes are set to a NaN pattern in the arena, checksum included."""
    given = spec()
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, 7), out.Started)
        outputs = list(await both.source.has(given, 1, 7))
        move = await both.reserve(given, 1)
        await move.precopy()
        await move.freeze()
        assert move.manifest is not None
        [entry] = move.manifest.blocks
        assert entry.valid == 1
        with both.arena.region(move.lease) as region:
            used = entry.valid * SIM.block_bytes // SIM.block_tokens
            rest = SIM.block_bytes - used
            region[entry.offset + used : entry.offset + SIM.block_bytes] = b"\xff\x7f" * (rest // 2)
            crc = zlib.crc32(region[entry.offset : entry.offset + SIM.block_bytes])
        nan = msgspec.structs.replace(move.manifest, blocks=(msgspec.structs.replace(entry, crc=crc),))
        move.manifest = seal(nan)
        assert (await move.prepare(outputs)).ok
        await move.activate()
        assert outputs + await both.target.ended(given, 2) == unmoved(given)
        await both.source.ask(into.Release(given.session, 1), out.Done)
        await baseline(both)


@pytest.mark.parametrize("field", ["schema", "session", "epoch", "region", "generation", "fingerprint"])
async def test_a_manifest_of_something_else_is_refused(pair: Pair, field: str) -> None:
    """H78, B21, H96: bytes are bound to schema, session, epoch, lease and engine."""
    given = spec()
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, 7), out.Started)
        outputs = list(await both.source.has(given, 1, 7))
        move = await both.reserve(given, 1)
        manifest = (await move.export()).manifest
        value = getattr(manifest, field)
        wrong = seal(
            msgspec.structs.replace(manifest, **{field: f"{value}x" if isinstance(value, str) else value + 1})
        )
        assert await both.target.refused(into.Import(move.id, wrong)) == "manifest_mismatch"
        await move.precopy()
        await move.freeze()
        assert move.manifest is not None
        move.manifest = seal(msgspec.structs.replace(move.manifest, **{field: getattr(wrong, field)}))
        assert (await move.prepare(outputs)).code == "manifest_mismatch"
        await both.target.ask(into.Discard(move.id), out.Done)
        await both.source.ask(into.Cancel(given.session, 1), out.Done)
        await baseline(both)


async def test_prepare_without_all_blocks_is_refused(pair: Pair) -> None:
    given = spec()
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, 7), out.Started)
        outputs = list(await both.source.has(given, 1, 7))
        move = await both.reserve(given, 1)
        move.copied = (await move.export()).frontier
        await move.freeze()
        assert (await move.prepare(outputs)).code == "manifest_mismatch"
        await both.target.ask(into.Discard(move.id), out.Done)
        await both.source.ask(into.Cancel(given.session, 1), out.Done)
        await baseline(both)


async def test_a_lease_of_the_past_is_refused(pair: Pair) -> None:
    """H96: a stale generation neither reads nor writes."""
    given = spec()
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, 7), out.Started)
        await both.source.has(given, 1, 7)
        move = await both.reserve(given, 1)
        manifest = (await move.export()).manifest
        both.arena.retire(move.lease)
        export = into.Export(move.id, given.session, 1, move.lease, 0)
        assert await both.source.refused(export) == "lease_stale"
        assert await both.target.refused(into.Import(move.id, manifest)) == "lease_stale"
        await both.target.ask(into.Discard(move.id), out.Done)
        await both.source.ask(into.Cancel(given.session, 1), out.Done)
        await baseline(both)


async def test_freeze_tells_who_is_not_ready_who_is_finished_and_who_is_unknown(pair: Pair) -> None:
    """H81, H85, H86, B20: one answer, each session by itself."""
    ready, behind, over, waiting, prefill = spec(), spec(), spec(new=3), spec(), spec(range(1, 400), 5)
    given = (ready, behind, over, waiting, prefill)
    async with mover(pair[0].ready, pair[1].ready) as both:
        for one, limit in zip(given[:4], (9, 9, 9, 0), strict=True):
            await both.source.ask(into.Start(one, 1, limit), out.Started)
        await both.source.ended(over, 1)
        await both.source.has(ready, 1, 9)
        await both.source.has(behind, 1, 9)
        await both.source.ask(into.Quiesce("q", True), out.Quiesced)
        await both.source.ask(into.Start(prefill, 1, 5), out.Started)
        moves = [await both.reserve(one, 1) for one in given[:4]]
        await moves[0].precopy()
        items = [move.freeze_item for move in moves]
        items.append(into.FreezeItem("mp", prefill.session, 1, moves[0].lease, 0))
        items.append(into.FreezeItem("mx", ready.session, 7, moves[0].lease, 0))
        frozen = await both.source.ask(into.Freeze("b", tuple(items)), out.Frozen)
        statuses = [item.status for item in frozen.items]
        assert statuses == ["frozen", "not_ready", "finished", "not_ready", "not_ready", "unknown"]
        phases = [(await both.source.inventory(one))[0].phase for one in given]
        assert phases == ["frozen", "held", "finished", "waiting", "running"]
        await both.source.ask(into.Quiesce("q", False), out.Quiesced)
        await both.source.has(prefill, 1, 5)
        for one in given:
            await both.source.ask(into.Cancel(one.session, 1), out.Done)
        for move in moves:
            await both.target.ask(into.Discard(move.id), out.Done)
        await baseline(both)


async def test_every_message_of_a_move_may_be_repeated(pair: Pair) -> None:
    given = spec(sampling=SEEDED)
    async with mover(pair[0].ready, pair[1].ready) as both:
        for _ in range(2):
            await both.source.ask(into.Start(given, 1, 7), out.Started)
        outputs = list(await both.source.has(given, 1, 7))
        move = await both.reserve(given, 1)
        again = into.Reserve(move.id, given, 2, move.lease, 60.0)
        assert (await both.target.ask(again, out.Reserved)).blocks == 11
        first = await move.export()
        assert (await move.export()).manifest == first.manifest
        for _ in range(2):
            await both.target.ask(into.Import(move.id, first.manifest), out.Imported)
        move.copied = first.frontier
        one, two = await move.freeze(), await move.freeze()
        assert one == two
        for _ in range(3):
            assert (await move.prepare(outputs)).ok
        assert (await both.target.ask(into.Import(move.id, first.manifest), out.Imported)).frontier == 2
        for _ in range(2):
            await move.activate()
        assert (await move.prepare(outputs)).ok
        assert outputs + await both.target.ended(given, 2) == unmoved(given)
        for _ in range(2):
            await both.source.ask(into.Release(given.session, 1), out.Done)
            await both.target.ask(into.Discard(move.id), out.Done)
        await baseline(both)


async def test_a_late_message_of_the_old_epoch_never_touches_the_new_owner(pair: Pair) -> None:
    """H104: release, cancel and resume name an epoch, and only that one."""
    given = spec()
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, 7), out.Started)
        outputs = list(await both.source.has(given, 1, 7))
        move = await both.reserve(given, 1)
        await move.precopy()
        await move.freeze()
        await move.prepare(outputs)
        await move.activate(credit=False)
        for late in (into.Release(given.session, 1), into.Cancel(given.session, 1)):
            await both.target.ask(late, out.Done)
        assert await both.target.refused(into.Resume(given.session, 1)) == "epoch_stale"
        assert await both.target.refused(into.Start(given, 1, 7)) == "epoch_stale"
        await both.target.credit(given, 1, 40, 0)
        assert await both.target.refused(into.Release(given.session, 2)) == "not_eligible"
        assert outputs + await both.target.has(given, 2, 8) == unmoved(given)[:15]
        both.target.credited.add((given.session, 2))
        await both.target.credit(given, 2, 15, 23)
        await both.target.ended(given, 2)
        await both.source.ask(into.Release(given.session, 1), out.Done)
        stats = await both.target.stats(lambda s: s.sessions == 0)
        assert stats.fenced >= 5
        await both.source.stats(lambda s: s.sessions == 0)


async def test_a_session_comes_home_under_a_newer_epoch(pair: Pair) -> None:
    """B22: the target is lost after the commit; the source, still frozen, goes on as epoch + 2."""
    given = spec(sampling=SEEDED)
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, 7), out.Started)
        outputs = list(await both.source.has(given, 1, 7))
        move = await both.reserve(given, 1)
        await move.precopy()
        await move.freeze()
        await both.target.ask(into.Discard(move.id), out.Done)
        both.source.credited.add((given.session, 3))
        for _ in range(2):
            await both.source.ask(into.Resume(given.session, 1, 3), out.Done)
        await both.source.ask(into.Release(given.session, 1), out.Done)
        await both.source.credit(given, 3, 7, 15)
        assert outputs + await both.source.ended(given, 3) == unmoved(given)
        assert both.source.first[given.session, 3] == 8
        await baseline(both)


async def test_an_import_that_nobody_completes_is_freed_and_a_prepared_one_is_not(pair: Pair) -> None:
    """H154, decision 3: only incomplete imports expire by a timer of the worker's own."""
    given, forgotten = spec(), spec()
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, 7), out.Started)
        outputs = list(await both.source.has(given, 1, 7))
        move = await both.reserve(given, 1)
        await move.precopy()
        await move.freeze()
        assert (await move.prepare(outputs)).ok
        await both.reserve(forgotten, 1, ttl_s=0.05)
        await both.target.stats(lambda s: s.reserved == 1)
        await both.target.stats(lambda s: True)
        await both.target.stats(lambda s: True)
        [item] = await both.target.inventory(given)
        assert item.phase == "prepared"
        await both.target.ask(into.Discard(move.id), out.Done)
        await both.source.ask(into.Cancel(given.session, 1), out.Done)
        await baseline(both)


async def test_a_move_back_and_forth_a_dozen_times_changes_nothing(pair: Pair) -> None:
    given = spec(new=60, sampling=SEEDED)
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, 4), out.Started)
        outputs = list(await both.source.has(given, 1, 4))
        for epoch in range(1, 13):
            move = await both.reserve(given, epoch)
            await move.precopy()
            assert (await move.freeze()).status == "frozen"
            assert (await move.prepare(outputs, ahead=4)).ok
            await both.target.ask(
                into.Activate((into.SessionEpoch(given.session, epoch + 1),)), out.Activated
            )
            outputs += await both.target.has(given, epoch + 1, 4)
            await both.source.ask(into.Release(given.session, epoch), out.Done)
            both.source, both.target = both.target, both.source
        both.source.credited.add((given.session, 13))
        await both.source.credit(given, 13, len(outputs), len(outputs) + 8)
        rest = (await both.source.ended(given, 13))[4:]
        assert outputs + rest == unmoved(given)
        await baseline(both)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("accepted_first", [True, False], ids=["accepted", "pending"])
async def test_a_freeze_at_every_token_carries_what_was_computed(
    pair: Pair, sampling: Sampling, accepted_first: bool
) -> None:
    """H37, decision 5: frozen after each of 64 tokens, with tokens pending that nobody accepted, or none.

    What is frozen is exactly what had been sent by then; the KV frontier fits it; the rest is as unmoved.
    """
    given = spec(new=65, sampling=sampling)
    reference = unmoved(given)
    outputs: list[int] = []
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, 1), out.Started)
        for epoch in range(1, 65):
            outputs += (await both.source.has(given, epoch, 1))[:1]
            if accepted_first:
                await both.source.credit(given, epoch, epoch, epoch)
            pending = (await both.source.inventory(given))[0].unaccepted
            assert accepted_first or pending == (outputs[-1],)
            move = await both.reserve(given, epoch)
            await move.precopy()
            frozen = await move.freeze()
            assert (frozen.position, frozen.computed) == (epoch, len(given.prompt) + epoch - 1)
            assert frozen.manifest is not None
            tail = sum(entry.valid for entry in frozen.manifest.blocks)
            assert move.copied * SIM.block_tokens + tail == frozen.computed
            assert (await move.prepare(outputs, ahead=1)).ok
            await move.activate(credit=False)
            await both.source.ask(into.Release(given.session, epoch), out.Done)
            both.arena.retire(move.lease)
            both.leases.release(move.lease)
            both.source, both.target = both.target, both.source
        outputs += await both.source.ended(given, 65)
        assert outputs == reference
        await both.source.credit(given, 65, 65, 65)
        await baseline(both)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ("truncated", "manifest_mismatch"),
        ("duplicated", "manifest_mismatch"),
        ("reordered", "checksum_mismatch"),
        ("outside", "manifest_mismatch"),
    ],
)
async def test_blocks_that_are_missing_doubled_or_exchanged_are_refused(
    pair: Pair, damage: str, code: str
) -> None:
    """H99: in the manifest of the pre-copy; the move is given up and the source goes on."""
    given = spec()
    async with mover(pair[0].ready, pair[1].ready) as both:
        await both.source.ask(into.Start(given, 1, 7), out.Started)
        outputs = list(await both.source.has(given, 1, 7))
        move = await both.reserve(given, 1)
        exported = await move.export()
        first, second = exported.manifest.blocks
        blocks = {
            "truncated": (first,),
            "duplicated": (first, first),
            "reordered": (
                msgspec.structs.replace(first, offset=second.offset),
                msgspec.structs.replace(second, offset=first.offset),
            ),
            "outside": (first, msgspec.structs.replace(second, offset=move.lease.size)),
        }[damage]
        manifest = seal(msgspec.structs.replace(exported.manifest, blocks=blocks))
        answer = await both.target.ask(into.Import(move.id, manifest))
        if isinstance(answer, out.Refused):
            assert answer.code == code
        move.copied = exported.frontier
        await move.freeze()
        item = await move.prepare(outputs)
        # Whether it was noticed at once or only by what is missing in the end: it is not let in.
        assert (item.ok, item.code) == (False, "manifest_mismatch")
        assert isinstance(answer, out.Refused) == (damage in ("reordered", "outside"))
        await both.target.ask(into.Discard(move.id), out.Done)
        await both.source.ask(into.Resume(given.session, 1), out.Done)
        both.source.credited.add((given.session, 1))
        await both.source.credit(given, 1, 7, 15)
        assert await both.source.ended(given, 1) == unmoved(given)
        await baseline(both)
