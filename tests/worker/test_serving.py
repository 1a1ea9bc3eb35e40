"""Tokens, windows and credits of one worker; who may command it; what a new coordinator gets."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import trio
import zmq

from swapd.errors import Code
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.messages.envelope import MAX_FRAME_BYTES, VERSION, Command, decode_report, encode
from swapd.messages.generation import GenerationSpec, Lease, Sampling
from swapd.transport.sockets import open_socket
from tests.worker.client import (
    GREEDY,
    SEEDED,
    SIM,
    Client,
    WorkerProcess,
    connect,
    next_generation,
    spec,
    unmoved,
    worker,
)

Pair = tuple[WorkerProcess, WorkerProcess]


async def emptied(client: Client) -> out.WorkerStats:
    return await client.stats(lambda s: s.sessions == 0 and s.free_blocks == SIM.blocks)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
async def test_credits_carry_a_session_to_its_end(pair: Pair, sampling: object) -> None:
    given = spec(sampling=sampling)  # type: ignore[arg-type]  # parametrised above
    async with connect(pair[0].ready) as client:
        client.credited.add((given.session, 1))
        assert await client.ask(into.Start(given, 1, 8), out.Started) == out.Started(given.session, 1)
        assert await client.ended(given, 1) == unmoved(given)
        assert client.finish[given.session, 1] == "length"
        await emptied(client)


async def test_no_token_is_computed_past_the_limit(pair: Pair) -> None:
    """H33, H36: a session without a credit waits, with one it computes exactly its window."""
    given = spec()
    async with connect(pair[0].ready) as client:
        await client.ask(into.Start(given, 1, 0), out.Started)
        assert [item.phase for item in await client.inventory(given)] == ["waiting"]
        for limit in (1, 5):
            await client.credit(given, 1, 0, limit)
            await client.has(given, 1, limit)
            await client.stats(lambda s: s.held == 1)
            [item] = await client.inventory(given)
            assert (item.phase, item.position) == ("held", limit)
            assert list(item.unaccepted) == client.ids[given.session, 1]
        await client.credit(given, 1, 4, 5)
        await client.stats(lambda s: s.unaccepted == 1)
        assert (await client.inventory(given))[0].unaccepted == tuple(client.ids[given.session, 1][4:])
        await client.ask(into.Cancel(given.session, 1), out.Done)
        await emptied(client)


async def test_all_sessions_share_one_message_a_step(pair: Pair) -> None:
    """H38: messages are bounded by steps, not by sessions."""
    many = [spec((n + 1,), 30) for n in range(6)]
    async with connect(pair[0].ready) as client:
        for given in many:
            await client.ask(into.Start(given, 1, 0), out.Started)
        await client.send(into.Credit(tuple(into.Grant(given.session, 1, 0, 30) for given in many)))
        for given in many:
            assert await client.ended(given, 1) == unmoved(given)
        messages = [report for report in client.reports if isinstance(report, out.Tokens)]
        assert len(messages) == 30
        assert all(len(message.runs) == 6 for message in messages)
        # A finished session stays until all of its tokens are durable.
        assert (await client.inventory(many[0]))[0].phase == "finished"
        await client.send(into.Credit(tuple(into.Grant(given.session, 1, 30, 30) for given in many)))
        await emptied(client)


async def test_a_replay_goes_on_after_its_outputs(pair: Pair) -> None:
    given = spec(sampling=SEEDED)
    async with connect(pair[1].ready) as client:
        before = (await client.stats()).recomputed_tokens
        reference = unmoved(given)
        client.credited.add((given.session, 4))
        await client.ask(into.Start(given, 4, 18, tuple(reference[:10])), out.Started)
        assert await client.ended(given, 4) == reference[10:]
        assert client.first[given.session, 4] == 11
        assert (await emptied(client)).recomputed_tokens == before + 12


async def test_a_full_worker_refuses_and_has_room_again_after_a_cancel(pair: Pair) -> None:
    """H46, H48: the ledger counts sessions and reservations, and both ways of being full."""
    large, small = spec(new=997), spec()
    lease = Lease(0, 1, 0, 4096)
    async with connect(pair[0].ready) as client:
        await client.ask(into.Start(large, 1, 0), out.Started)
        assert await client.refused(into.Start(spec(new=300), 1, 0)) == Code.CAPACITY
        assert await client.refused(into.Reserve("mf", spec(new=300), 2, lease, 60)) == Code.TARGET_FULL
        await client.ask(into.Cancel(large.session, 1), out.Done)
        reserved = [spec((1,), 3) for _ in range(SIM.max_num_seqs)]
        for n, given in enumerate(reserved):
            await client.ask(into.Reserve(f"mf{n}", given, 2, lease, 60), out.Reserved)
        assert await client.refused(into.Start(small, 1, 0)) == Code.CAPACITY
        for n in range(len(reserved)):
            await client.ask(into.Discard(f"mf{n}"), out.Done)
        await client.ask(into.Start(small, 1, 0), out.Started)
        await client.ask(into.Cancel(small.session, 1), out.Done)
        await emptied(client)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (spec(()), Code.PROMPT_EMPTY),
        (spec(new=0), Code.BUDGET_EXCEEDED),
        (spec(new=998), Code.BUDGET_EXCEEDED),
        (spec((1, SIM.vocab_size)), Code.INVALID_REQUEST),
        (spec((1, -1)), Code.INVALID_REQUEST),
    ],
)
async def test_what_the_engine_cannot_do_never_reaches_it(pair: Pair, given: object, code: Code) -> None:
    async with connect(pair[0].ready) as client:
        assert await client.refused(into.Start(given, 1, 8)) == code  # type: ignore[arg-type]  # a spec
        await emptied(client)


async def test_a_finished_session_does_not_begin_again_when_its_start_is_repeated(pair: Pair) -> None:
    given = spec(new=5)
    async with connect(pair[0].ready) as client:
        client.credited.add((given.session, 1))
        for _ in range(2):
            await client.ask(into.Start(given, 1, 8), out.Started)
            await client.ended(given, 1)
            stats = await emptied(client)
        assert stats.running == 0
        assert len([report for report in client.reports if isinstance(report, out.Tokens)]) <= 5


async def test_moves_without_an_arena_are_refused_and_serving_goes_on(folder: Path) -> None:
    """H92: no arena, no move; sessions are not touched by it."""
    given, lease = spec(), Lease(0, 1, 4096, 4096)
    with worker(folder) as alone:
        async with connect(alone.ready) as client:
            await client.ask(into.Start(given, 1, 6), out.Started)
            await client.has(given, 1, 6)
            export = into.Export("m", given.session, 1, lease, 0)
            freeze = into.Freeze("b", (into.FreezeItem("m", given.session, 1, lease, 0),))
            for body in (export, freeze):
                assert await client.refused(body) == Code.ARENA_UNAVAILABLE
            client.credited.add((given.session, 1))
            await client.credit(given, 1, 6, 14)
            assert await client.ended(given, 1) == unmoved(given)


async def test_quiesce_stops_prefill_only_and_nests(pair: Pair) -> None:
    decoding, prefill = spec(new=30), spec((7, 7))
    async with connect(pair[0].ready) as client:
        await client.ask(into.Start(decoding, 1, 4), out.Started)
        await client.has(decoding, 1, 4)
        for batch in ("q1", "q2"):
            await client.ask(into.Quiesce(batch, True), out.Quiesced)
        await client.ask(into.Start(prefill, 1, 4), out.Started)
        await client.ask(into.Quiesce("q1", False), out.Quiesced)
        await client.credit(decoding, 1, 4, 30)
        assert await client.ended(decoding, 1) == unmoved(decoding)
        assert client.ids[prefill.session, 1] == []
        await client.ask(into.Quiesce("q2", False), out.Quiesced)
        await client.has(prefill, 1, 4)
        for given in (decoding, prefill):
            await client.ask(into.Cancel(given.session, 1), out.Done)
        await emptied(client)


async def test_a_new_coordinator_finds_the_sessions_and_loses_no_token(pair: Pair) -> None:
    """H33, H104: the worker serves on within its window; nothing is sent to the new one unasked."""
    given, quiet = spec(sampling=SEEDED), spec((7, 7))
    async with connect(pair[0].ready) as first:
        await first.ask(into.Start(given, 1, 6), out.Started)
        await first.has(given, 1, 3)
        await first.credit(given, 1, 2, 12)
        await first.ask(into.Quiesce("lost", True), out.Quiesced)
    async with connect(pair[0].ready) as second:
        await second.stats(lambda s: s.held == 1 and s.unaccepted == 10)
        [item] = await second.inventory(given)
        assert (item.position, len(item.unaccepted)) == (12, 10)
        assert second.ids[given.session, 1] == []
        await second.ask(into.Resend(given.session, 1, 4, 12), out.Done)
        assert await second.has(given, 1, 8) == unmoved(given)[4:12]
        assert second.first[given.session, 1] == 5
        assert await second.refused(into.Resend(given.session, 1, 1, 12)) == Code.CURSOR_AHEAD
        # The lost coordinator's quiesce went with it.
        await second.ask(into.Start(quiet, 1, 2), out.Started)
        await second.has(quiet, 1, 2)
        second.credited.add((given.session, 1))
        await second.credit(given, 1, 12, 20)
        assert await second.ended(given, 1) == unmoved(given)[4:]
        await second.ask(into.Cancel(quiet.session, 1), out.Done)
        await emptied(second)


async def test_a_credit_of_the_new_coordinator_also_brings_what_it_lacks(pair: Pair) -> None:
    given = spec()
    async with connect(pair[0].ready) as first:
        await first.ask(into.Start(given, 1, 6), out.Started)
        await first.has(given, 1, 6)
    async with connect(pair[0].ready) as second:
        second.credited.add((given.session, 1))
        await second.credit(given, 1, 3, 11)
        assert await second.ended(given, 1) == unmoved(given)[3:]
        await emptied(second)


async def test_an_older_coordinator_is_fenced_and_counted(pair: Pair) -> None:
    given = spec()
    async with connect(pair[0].ready) as old:
        await old.ask(into.Start(given, 1, 0), out.Started)
        async with connect(pair[0].ready) as new:
            before = (await new.stats()).fenced
            assert await old.refused(into.Cancel(given.session, 1)) == Code.FENCED
            assert await old.refused(into.Hello()) == Code.FENCED
            await old.credit(given, 1, 0, 8)
            await new.stats(lambda s: s.fenced >= before + 3)
            [item] = await new.inventory(given)
            assert (item.phase, item.position) == ("waiting", 0)
            await new.ask(into.Cancel(given.session, 1), out.Done)
            await emptied(new)


async def test_a_coordinator_that_stops_reading_keeps_no_other_from_taking_over(pair: Pair) -> None:
    given = spec()
    context = zmq.Context()
    try:
        async with open_socket(context, zmq.DEALER, connect=pair[0].ready.control, recv_hwm=1) as socket:
            deaf = Client(socket, pair[0].ready, next_generation())
            await deaf.send(into.Hello(), 1)
            await deaf.send(into.Start(given, 1, 0), 2)
            # It hears that its session was taken, and nothing after that.
            while decode_report((await socket.recv_multipart())[-1]).request != 2:
                pass
            with trio.move_on_after(1.0):
                for request in range(3, 20_000):
                    await deaf.send(into.Start(given, 1, 0), request)
            async with connect(pair[0].ready) as heard:
                assert [item.phase for item in await heard.inventory(given)] == ["waiting"]
                await heard.ask(into.Cancel(given.session, 1), out.Done)
                await emptied(heard)
    finally:
        context.term()


async def test_a_command_for_another_incarnation_is_refused(pair: Pair) -> None:
    """H103, H104: an expected incarnation that differs, and one of the past."""
    async with connect(pair[0].ready) as client:
        assert await client.refused(into.Hello("inc_other")) == Code.FENCED
        client.incarnation = "inc_other"
        assert await client.refused(into.InventoryQuery()) == Code.FENCED
        client.incarnation = client.ready.incarnation
        assert (await client.ask(into.Hello(client.ready.incarnation), out.Ready)).worker == "a"
    async with connect(pair[0].ready, hello=False) as unknown:
        assert await unknown.refused(into.InventoryQuery()) == Code.FENCED


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"", None),
        (b"\xff" * 40, None),
        (bytes([VERSION]), None),
        (bytes([VERSION]) + b"\xc1", None),
        (bytes([VERSION]) + b"\x91" * 100_000, None),
        (bytes([VERSION]) + msgspec.msgpack.encode({"generation": 5, "request": 77}), Code.FRAME_MALFORMED),
        (
            bytes([VERSION])
            + msgspec.msgpack.encode(
                {"incarnation": "", "generation": 5, "request": 77, "body": {"type": "format_disk"}}
            ),
            Code.FRAME_MALFORMED,
        ),
        (
            bytes([VERSION + 1]) + encode(Command("", 5, 77, into.Hello()))[1:],
            Code.VERSION_UNSUPPORTED,
        ),
    ],
)
async def test_a_frame_that_cannot_be_read_is_refused_and_never_fatal(
    pair: Pair, frame: bytes, code: Code | None
) -> None:
    async with connect(pair[0].ready) as client:
        await client.socket.send_multipart([frame])
        await client.socket.send_multipart([b"one", b"part", b"too many"])
        if code is not None:
            answer = await client.answer(77)
            assert isinstance(answer, out.Refused)
            assert answer.code == code
        assert (await client.ask(into.InventoryQuery(), out.Inventory)).items == ()


async def test_the_schedule_comes_in_pieces_and_is_forgotten(folder: Path) -> None:
    given = spec((1, 2), 900)
    with worker(folder, record_schedule=True, sim=msgspec.structs.replace(SIM, step_ms=0)) as alone:
        async with connect(alone.ready) as client:
            await client.ask(into.Start(given, 1, 900), out.Started)
            await client.ended(given, 1)
            steps: list[out.StepRecord] = []
            while taken := (await client.ask(into.Schedule(), out.ScheduleLog)).steps:
                steps += taken
    assert [step.batch for step in steps] == [((given.session, 2),), *[((given.session, 1),)] * 899]
    assert all(a.at_s <= b.at_s for a, b in pairwise(steps))


# Run-ahead ---------------------------------------------------------------------------------------------


async def read_with_window(client: Client, given: GenerationSpec, window: int) -> list[int]:
    """A coordinator that accepts one token at a time and grants so many past it; returns the transcript."""
    await client.ask(into.Start(given, 1, window), out.Started)
    name = (given.session, 1)
    for accepted in range(given.max_new_tokens):
        await client.has(given, 1, accepted + 1)
        assert len(client.ids[name]) <= accepted + window
        await client.credit(given, 1, accepted + 1, accepted + 1 + window)
    await client.ended(given, 1)
    return client.ids[name]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
async def test_every_window_gives_the_same_transcript(pair: Pair, sampling: Sampling) -> None:
    """H34, H35: a window of 1 is off: a token is computed only once the one before it is durable."""
    given = [spec(new=24, sampling=sampling) for _ in range(4)]
    async with connect(pair[0].ready) as client:
        made = [
            await read_with_window(client, one, window)
            for one, window in zip(given, (1, 2, 8, 64), strict=True)
        ]
        assert made == [unmoved(given[0])] * 4
        await emptied(client)


async def test_a_window_is_computed_while_nothing_is_accepted(pair: Pair) -> None:
    """H34: token p + 1 does not wait for p to be durable; nothing is forgotten before it is."""
    given = spec()
    async with connect(pair[0].ready) as client:
        await client.ask(into.Start(given, 1, 8), out.Started)
        assert await client.has(given, 1, 8) == unmoved(given)[:8]
        stats = await client.stats(lambda s: s.held == 1)
        assert stats.unaccepted == 8
        await client.ask(into.Cancel(given.session, 1), out.Done)
        await emptied(client)


async def test_a_second_start_of_a_running_session_is_a_no_op(pair: Pair) -> None:
    """H31: one producer a session, also after a replay; under an older epoch there is none."""
    given = spec(sampling=SEEDED)
    reference = unmoved(given)
    async with connect(pair[0].ready) as client:
        client.credited.add((given.session, 3))
        replay = into.Start(given, 3, 12, tuple(reference[:4]))
        for _ in range(3):
            assert await client.ask(replay, out.Started) == out.Started(given.session, 3)
        assert await client.refused(into.Start(given, 2, 12)) == Code.EPOCH_STALE
        assert len(await client.inventory(given)) == 1
        assert await client.ended(given, 3) == reference[4:]
        steps = [run for r in client.reports if isinstance(r, out.Tokens) for run in r.runs]
        assert sum(len(run.ids) for run in steps) == len(reference) - 4
        await emptied(client)


def frame_of(client: Client, size: int, request: int) -> bytes:
    """A command that means nothing, of exactly so many bytes."""

    def cancel(length: int) -> bytes:
        body = into.Cancel("x" * length, 1)
        return encode(Command(client.incarnation, client.generation, request, body))

    rest = len(cancel(1 << 19)) - (1 << 19)
    return cancel(size - rest)


async def test_a_frame_over_the_limit_ends_its_connection_and_nothing_else(pair: Pair) -> None:
    """H95, H169: 1 MiB is read and answered, a byte more is not; the next coordinator is served."""
    async with connect(pair[0].ready) as client:
        frame = frame_of(client, MAX_FRAME_BYTES, 1000)
        assert len(frame) == MAX_FRAME_BYTES
        await client.socket.send_multipart([frame])
        assert isinstance(await client.answer(1000), out.Done)
        await client.socket.send_multipart([frame_of(client, MAX_FRAME_BYTES, 1001) + b"x"])
        async with connect(pair[0].ready) as other:
            assert (await other.ask(into.InventoryQuery(), out.Inventory)).items == ()
        assert 1001 not in client._answers
