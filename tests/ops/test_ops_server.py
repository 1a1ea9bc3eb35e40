"""An operator's tool gets answers from the ops socket, and nothing it sends harms the service."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
import zmq

from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import StepRecord
from swapd.messages.ops import answers, commands, frames
from swapd.ops.bus import EventBus
from swapd.ops.client import OpsClient, open_ops, open_state_events
from swapd.ops.server import MAX_IN_FLIGHT, OpsServer, run_ops
from swapd.transport.paths import ensure_private_dir
from swapd.transport.sockets import TrioSocket, open_socket
from swapd.views import NewSession
from tests.ops.service_double import ServiceDouble

LIMIT_S = 20.0


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.service = ServiceDouble()
        self.bus = EventBus()
        self.server: OpsServer


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ops-", dir="/tmp") as made:
        yield Path(made) / "run"


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Bench]:
    bench = Bench(folder)
    context = zmq.Context[zmq.Socket[bytes]]()
    try:
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:

                async def serve(task_status: trio.TaskStatus[OpsServer]) -> None:
                    await run_ops(
                        bench.service, bench.bus, socket_dir=folder, context=context, task_status=task_status
                    )

                bench.server = await nursery.start(serve)
                yield bench
                nursery.cancel_scope.cancel()
    finally:
        context.term()


@asynccontextmanager
async def raw_client(folder: Path) -> AsyncIterator[TrioSocket]:
    context = zmq.Context[zmq.Socket[bytes]]()
    try:
        async with open_socket(context, zmq.DEALER, connect=f"ipc://{folder}/ops.sock") as socket:
            yield socket
    finally:
        context.term()


def modes_in(folder: Path) -> dict[str, int]:
    """Permission bits of a folder and of what is in it, by name."""
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in (folder, *folder.iterdir())}


def request(prompt: str = "hello", max_new_tokens: int = 8) -> NewSession:
    return NewSession(prompt=prompt, max_new_tokens=max_new_tokens)


async def test_every_command_is_answered_with_the_views_of_the_service(folder: Path) -> None:
    async with running(folder) as bench, open_ops(folder) as client:
        assert (await client.ping()).pid == os.getpid()
        session = await client.create_session(request())
        assert bench.service.requests == [request()]
        assert (await client.session(session.id)) == session
        assert (await client.sessions()) == (session,)
        assert [worker.id for worker in await client.workers()] == ["a", "b"]
        drain = await client.start_drain("a", 5.0)
        assert drain.deadline_s == 5.0
        assert (await client.drain(drain.id)) == drain
        assert (await client.drains()) == (drain,)
        status = await client.status()
        assert status.sessions == {"running": 1}
        assert status.drains == (drain,)
        assert status.readiness.ready
        assert (await client.cancel_drain(drain.id)).state == "cancelled"
        assert (await client.cancel_session(session.id)).state == "cancelled"
        assert all(caller.is_operator for caller in bench.service.callers)


async def test_recorded_steps_are_taken_until_none_are_left(folder: Path) -> None:
    steps = tuple(StepRecord(0.5 * n, 0.25, (("ses_1", n), ("ses_2", 1))) for n in range(3))
    async with running(folder) as bench, open_ops(folder) as client:
        bench.service.recorded = list(steps)
        taken: list[StepRecord] = []
        while more := await client.schedule("a"):
            taken += more
        assert tuple(taken) == steps
        assert await client.schedule("a") == ()
        with pytest.raises(SwapdError) as caught:
            await client.schedule("z")
        assert caught.value.code is Code.WORKER_UNKNOWN


async def test_a_refusal_of_the_service_arrives_as_its_code(folder: Path) -> None:
    async with running(folder) as bench, open_ops(folder) as client:
        with pytest.raises(SwapdError) as caught:
            await client.start_drain("z")
        assert caught.value.code is Code.WORKER_UNKNOWN
        assert caught.value.detail == "z"
        with pytest.raises(SwapdError) as caught:
            await client.session("ses_9")
        assert caught.value.code is Code.SESSION_UNKNOWN
        assert bench.server.statistics().refused == {"worker_unknown": 1, "session_unknown": 1}


async def test_a_bug_in_one_command_is_answered_and_ends_nothing(folder: Path) -> None:
    async with running(folder) as bench, open_ops(folder) as client:
        bench.service.failing = ZeroDivisionError("secret text")
        with pytest.raises(SwapdError) as caught:
            await client.workers()
        assert caught.value.code is Code.INTERNAL
        assert "secret" not in caught.value.sentence
        session = "ses_0"
        bench.service.failing = None
        await client.create_session(request())
        bench.service.failing = ZeroDivisionError()
        with pytest.raises(SwapdError) as caught:
            await client.events(session)
        assert caught.value.code is Code.INTERNAL
        bench.service.failing = None
        assert len(await client.workers()) == 2


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([b"\x00\x01"], Code.FRAME_MALFORMED),
        ([b'{"v":9,"id":1,"body":{"type":"ping"}}'], Code.VERSION_UNSUPPORTED),
        ([b'{"v":1,"id":1,"body":{"type":"reboot"}}'], Code.FRAME_MALFORMED),
        ([b"x" * (frames.MAX_REQUEST_BYTES + 1)], Code.FRAME_TOO_LARGE),
        ([b"a", b"b", b"c"], Code.FRAME_MALFORMED),
        ([b"a", b"b"], Code.FRAME_MALFORMED),
    ],
)
async def test_a_bad_frame_is_answered_with_its_code_and_counted(
    folder: Path, parts: list[bytes], code: Code
) -> None:
    """H95, H169: refused, answered, counted, never fatal."""
    async with running(folder) as bench, raw_client(folder) as socket:
        await socket.send_multipart(parts)
        body = frames.decode_reply((await socket.recv_multipart())[-1]).body
        assert isinstance(body, answers.Error)
        assert body.code == code
        assert bench.server.statistics().refused == {code: 1}
        await socket.send_multipart([frames.encode_request(2, commands.Ping())])
        assert isinstance(frames.decode_reply((await socket.recv_multipart())[-1]).body, answers.Pong)


async def test_a_delimiter_of_a_req_socket_comes_back(folder: Path) -> None:
    async with running(folder), raw_client(folder) as socket:
        await socket.send_multipart([b"", frames.encode_request(5, commands.Ping())])
        empty, frame = await socket.recv_multipart()
        assert empty == b""
        assert frames.decode_reply(frame).id == 5


async def test_events_arrive_once_each_and_a_lost_answer_can_be_asked_for_again(folder: Path) -> None:
    async with running(folder) as bench, open_ops(folder) as client:
        session = (await client.create_session(request())).id
        stream = bench.service.streams[session]
        for pos in (1, 2, 3):
            stream.add("token", pos=pos)
        first = await client.events(session, None, max_events=2)
        assert [event.id for event in first.events] == [0, 1]
        assert not first.ended
        again = await client.events(session, None, max_events=2)
        assert again == first
        rest = await client.events(session, first.cursor)
        assert [event.id for event in rest.events] == [2, 3]
        assert [msgspec.json.decode(event.data)["pos"] for event in rest.events] == [2, 3]
        none = await client.events(session, rest.cursor, wait_s=0.0)
        assert (none.events, none.cursor, none.ended) == ((), 3, False)
        stream.add("completed", finish_reason="length")
        last = await client.events(session, rest.cursor)
        assert [event.name for event in last.events] == ["completed"]
        assert last.ended
        assert bench.service.subscriptions == 1


async def test_a_cursor_that_went_back_opens_the_stream_there(folder: Path) -> None:
    async with running(folder) as bench, open_ops(folder) as client:
        session = (await client.create_session(request())).id
        for pos in (1, 2, 3):
            bench.service.streams[session].add("token", pos=pos)
        assert (await client.events(session, 2)).cursor == 3
        assert [event.id for event in (await client.events(session, 0)).events] == [1, 2, 3]
        assert bench.service.subscriptions == 2


async def test_a_session_counts_as_read_between_polls_and_no_longer(folder: Path) -> None:
    """H32: the subscription outlives a poll, and ends when its client stays away."""
    async with running(folder) as bench, open_ops(folder) as client:
        session = (await client.create_session(request())).id
        stream = bench.service.streams[session]
        await client.events(session)
        assert stream.readers == 1
        assert bench.server.statistics().readers == 1
        readers = bench.server._readers
        assert readers is not None
        readers._idle_s = 0.01
        await client.events(session, 0, wait_s=0.0)
        await stream.left.wait()
        assert stream.readers == 0


async def test_refusals_of_a_subscription_reach_the_poll(folder: Path) -> None:
    async with running(folder), open_ops(folder) as client:
        with pytest.raises(SwapdError) as caught:
            await client.events("ses_9")
        assert caught.value.code is Code.SESSION_UNKNOWN
        session = (await client.create_session(request())).id
        for after, code in ((5, Code.CURSOR_AHEAD), (-1, Code.CURSOR_INVALID)):
            with pytest.raises(SwapdError) as caught:
                await client.events(session, after)
            assert caught.value.code is code
        with pytest.raises(SwapdError) as caught:
            await client.events(session, max_events=0)
        assert caught.value.code is Code.INVALID_REQUEST


async def test_a_stopping_service_ends_a_stream_without_ending_its_session(folder: Path) -> None:
    async with running(folder) as bench, open_ops(folder) as client:
        session = (await client.create_session(request())).id
        await client.events(session)
        bench.service.stop()
        with pytest.raises(SwapdError) as caught:
            await client.events(session, 0)
        assert caught.value.code is Code.STOPPING


async def test_the_door_closes_by_itself_behind_the_last_answer(folder: Path) -> None:
    """H230: a service that stops waits for those that are being answered, and for no time beside."""
    context = zmq.Context[zmq.Socket[bytes]]()
    service = ServiceDouble()

    async def stop_during_a_poll(server: OpsServer) -> None:
        while not server.statistics().in_flight:  # noqa: ASYNC110  # the poll must be under way
            await trio.sleep(0.005)
        service.stop()

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            start = partial(run_ops, service, EventBus(), socket_dir=folder, context=context)
            server: OpsServer = await nursery.start(start)
            async with open_ops(folder) as client:
                session = (await client.create_session(request())).id
                await client.events(session)
                nursery.start_soon(stop_during_a_poll, server)
                with pytest.raises(SwapdError) as caught:
                    await client.events(session, 0)
                assert caught.value.code is Code.STOPPING
                # And one that comes between two polls hears it too.
                with pytest.raises(SwapdError) as caught:
                    await client.events(session, 0)
                assert caught.value.code is Code.STOPPING
    context.term()


async def test_the_late_answer_of_a_cancelled_call_is_not_taken_for_the_next_ones(folder: Path) -> None:
    async with running(folder) as bench, open_ops(folder) as client:
        session = (await client.create_session(request())).id
        await client.events(session)
        with trio.move_on_after(0.05) as scope:
            await client.events(session, 0)
        assert scope.cancelled_caught
        # The poll is answered before the ping has even been sent.
        bench.service.streams[session].add("token", pos=1)
        assert (await client.ping()).pid == os.getpid()


async def test_more_commands_than_the_limit_are_refused_and_the_rest_go_on(folder: Path) -> None:
    async with running(folder) as bench, open_ops(folder) as client, raw_client(folder) as socket:
        session = (await client.create_session(request())).id
        for number in range(MAX_IN_FLIGHT + 1):
            poll = commands.Events(session, 0, wait_s=commands.MAX_WAIT_S)
            await socket.send_multipart([frames.encode_request(number + 1, poll)])
        reply = frames.decode_reply((await socket.recv_multipart())[-1])
        assert isinstance(reply.body, answers.Error)
        assert (reply.body.code, reply.id) == (Code.CAPACITY, MAX_IN_FLIGHT + 1)
        bench.service.streams[session].add("completed")
        # All of them wait for the same session, and its event wakes them all.
        with trio.fail_after(commands.MAX_WAIT_S / 2):
            for _ in range(MAX_IN_FLIGHT):
                answer = frames.decode_reply((await socket.recv_multipart())[-1]).body
                assert isinstance(answer, answers.EventsAnswer)
                assert len(answer.events) == 1
        assert (await client.ping()).pid == os.getpid()


async def test_the_sockets_belong_to_the_user_alone_and_go_with_the_service(folder: Path) -> None:
    """H107."""
    async with running(folder):
        modes = modes_in(folder)
        assert modes.pop(folder.name) == 0o700
        assert set(modes) == {frames.OPS_SOCKET, frames.EVENTS_SOCKET}
        assert not any(mode & 0o077 for mode in modes.values())
    assert set(modes_in(folder)) == {folder.name}


async def test_without_a_service_a_client_says_so_at_once(folder: Path) -> None:
    with pytest.raises(SwapdError, match="no service in") as caught:
        async with open_ops(folder):
            pass
    assert caught.value.code is Code.NOT_READY


async def test_a_service_that_does_not_answer_is_a_timeout(folder: Path) -> None:
    ensure_private_dir(folder)
    context = zmq.Context[zmq.Socket[bytes]]()
    async with open_socket(context, zmq.ROUTER, bind=f"ipc://{folder}/ops.sock"):
        with pytest.raises(SwapdError, match=r"serve") as caught:
            async with open_ops(folder, timeout_s=0.05) as client:
                await client.ping()
        assert caught.value.code is Code.TIMEOUT
    context.term()


async def test_state_events_reach_a_subscriber_in_order(folder: Path) -> None:
    async with running(folder) as bench, open_state_events(folder, "session_") as receive:
        # A subscription takes effect some time after connecting; publish until it has.
        event = None
        while event is None:
            bench.bus.publish("session_created", {"session": "probe"})
            with trio.move_on_after(0.02):
                event = await receive()
        bench.bus.publish("drain_started", {"drain": "d"})
        bench.bus.publish("session_ended", {"session": "s", "outcome": "completed", "code": None})
        while event.kind != "session_ended":
            before = event.seq
            event = await receive()
            assert event.seq > before
            assert event.kind.startswith("session_")
        assert event.fields == {"session": "s", "outcome": "completed", "code": None}


async def test_a_full_bus_drops_the_oldest_and_counts() -> None:
    bus = EventBus(capacity=3)
    for number in range(5):
        bus.publish("worker_ready", {"count": number})
    assert [event.seq for event in await bus.take()] == [3, 4, 5]
    statistics = bus.statistics()
    assert (statistics.published, statistics.dropped, statistics.waiting) == (5, 2, 0)


async def test_a_cancelled_take_loses_no_event() -> None:
    bus = EventBus()
    with trio.move_on_after(0):
        await bus.take()
    bus.publish("worker_ready", {})
    assert len(await bus.take()) == 1


def test_the_client_is_what_it_says() -> None:
    """Every command has its call, so that scripts need no other client."""
    calls = {name for name in vars(OpsClient) if not name.startswith("_")}
    tags = {command.__struct_config__.tag for command in commands.OpsCommand.__args__}
    assert calls == tags
