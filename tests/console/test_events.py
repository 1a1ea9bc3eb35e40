"""The event stream: every event once, in order, whatever the reader's connection does."""

import random

import pytest
import trio
import trio.testing

from console.connection import Deadlines
from console.streams import Reader, StreamTimers, parse_notices, sse_frames, websocket_frame
from swapd.api import Event
from swapd.errors import Code, SwapdError
from tests.console.client import WAIT_S, EventSource
from tests.console.conftest import serving
from tests.console.service_double import TENANT, SessionDouble


async def read_all(source: EventSource) -> list:
    frames = []
    while (frame := await source.frame()) is not None:
        frames.append(frame)
    return frames


async def test_created_then_tokens_then_one_terminal_event_then_the_end(client, service):
    """H20, H22"""
    session = service.add("s0", tokens=5)
    await session.end()
    async with client.events("s0") as source:
        frames = await read_all(source)
    assert [frame.name for frame in frames] == ["created"] + ["token"] * 5 + ["completed"]
    assert [frame.id for frame in frames] == list(range(7))
    assert [frame.data for frame in frames] == [event.data for event in session.events]


async def test_events_arrive_as_they_become_durable(client, service):
    session = service.add("s0")
    async with client.events("s0") as source:
        assert (await source.frame()).name == "created"
        for position in range(1, 20):
            await session.token()
            assert (await source.frame()).id == position
        await session.end("failed")
        assert (await source.frame()).name == "failed"
        assert await source.frame() is None


@pytest.mark.parametrize("cursor", [0, 1, 4, 5])
@pytest.mark.parametrize("by_query", [False, True])
async def test_a_reader_gets_what_is_strictly_after_its_cursor(client, service, cursor, by_query):
    """H21"""
    session = service.add("s0", tokens=5)
    await session.end()
    query = f"?after={cursor}" if by_query else ""
    async with client.events("s0", None if by_query else cursor, query) as source:
        opening, *frames = await read_all(source)
    assert (opening.id, opening.name, opening.data) == (cursor, None, None)
    assert [frame.data for frame in frames] == [event.data for event in session.events[cursor + 1 :]]


async def test_the_header_goes_before_the_address(client, service):
    """H21: an EventSource repeats the address it was given, whose cursor is old by then."""
    await service.add("s0", tokens=5).end()
    async with client.events("s0", 4, "?after=1") as source:
        assert [frame.id for frame in await read_all(source)] == [4, 5, 6]


async def test_a_reader_hears_its_cursor_at_once_though_nothing_happens(client, service):
    """H28"""
    session = service.add("s0", tokens=3)
    async with client.events("s0", 3) as source:
        assert (await source.frame()).id == 3
        assert session.readers == 1
    # It was told nothing but its cursor, so nothing is lost when it comes back.
    await session.end()
    async with client.events("s0", 3) as source:
        assert [frame.id for frame in await read_all(source)] == [3, 4]


async def test_a_quiet_stream_gives_signs_of_life_and_loses_no_event(service):
    """H28: the wait that a heartbeat cuts short must not swallow the event after it."""
    session = service.add("s0")
    quick = StreamTimers(heartbeat_s=0.01)
    async with serving(service, timers=quick) as client, client.events("s0") as source:
        assert (await source.frame()).id == 0
        for position in range(1, 6):
            await source.heartbeats(2)
            await session.token()
            assert (await source.frame()).id == position


async def test_reading_a_long_replay_lets_others_run(service):
    session = service.add("s0", tokens=5)
    async with service.subscribe(service.authenticate(TENANT), "s0", None) as subscription:
        reader = Reader(subscription, quiet_s=WAIT_S)
        with trio.testing.assert_checkpoints():
            assert len(await reader.read()) == 6
        await session.end()
        with trio.testing.assert_checkpoints():
            assert [event.name for event in await reader.read()] == ["completed"]
        assert await reader.read() is None


def test_the_default_heartbeat_is_inside_the_rule():
    """H28"""
    assert StreamTimers().heartbeat_s <= 15


async def test_at_the_terminal_cursor_the_answer_is_204(client, service):
    """H25"""
    await service.add("s0", tokens=2).end()
    reply = await client.ask("GET", "/v1/sessions/s0/events", headers={"Last-Event-ID": "3"})
    assert (reply.status, reply.body) == (204, b"")
    # The same number on a running session is a wait, not an end.
    service.add("s1", tokens=3)
    async with client.events("s1", 3) as source:
        assert (await source.frame()).id == 3


@pytest.mark.parametrize("value", ["-1", "+1", "1.0", "x", "1e3", "0x1", "1 2", "\xb2", "", "1,2"])
async def test_a_malformed_cursor_is_400(client, service, value):
    """H24"""
    service.add("s0", tokens=5)
    reply = await client.ask("GET", "/v1/sessions/s0/events", headers={"Last-Event-ID": value})
    assert (reply.status, reply.code) == (400, "cursor_invalid")


@pytest.mark.parametrize("query", ["after=-1", "after=", "after=1&after=2", "after=%D9%A1"])
async def test_a_malformed_cursor_in_the_address_is_400(client, service, query):
    """H24"""
    service.add("s0", tokens=5)
    reply = await client.ask("GET", f"/v1/sessions/s0/events?{query}")
    assert (reply.status, reply.code) == (400, "cursor_invalid")


@pytest.mark.parametrize("value", ["6", "9" * 18, "9" * 19, "9" * 20, "9" * 5000])
async def test_a_cursor_past_the_last_event_is_409_and_never_a_wait(client, service, value):
    """H24"""
    service.add("s0", tokens=5)
    reply = await client.ask("GET", "/v1/sessions/s0/events", headers={"Last-Event-ID": value})
    assert (reply.status, reply.code) == (409, "cursor_ahead")


async def test_a_head_request_does_not_count_as_a_reader(client, service):
    """H32"""
    session = service.add("s0", tokens=5)
    async with client.wire() as wire:
        await wire.stream.send_all(client.head("HEAD", "/v1/sessions/s0/events"))
        assert (await wire.head())[0] == 200
    assert session.readers == 0


async def test_many_readers_get_the_same_sequence(client, service):
    """H26"""
    session = service.add("s0")
    seen: list[list] = []

    async def read() -> None:
        async with client.events("s0") as source:
            seen.append([frame.data for frame in await read_all(source)])

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(read)
        for _ in range(200):
            await session.token()
            await trio.lowlevel.checkpoint()
        await session.end()
    assert seen == [[event.data for event in session.events]] * 5


@pytest.mark.parametrize("seed", range(6))
async def test_reconnecting_anywhere_leaves_no_gap_and_no_repeat(client, service, seed):
    """H21, H28: the reader leaves at random points, before its first event too, and comes back by cursor."""
    chance = random.Random(seed)
    session = service.add("s0")
    total = 150

    async def produce() -> None:
        for _ in range(total):
            await session.token("\n\ud83d".encode("utf-8", "replace").decode())
            for _ in range(chance.randrange(4)):
                await trio.lowlevel.checkpoint()
        await session.end()

    got: list[bytes] = []
    cursor: int | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        while True:
            left = chance.randrange(25)
            ended = False
            async with client.events("s0", cursor) as source:
                while left > 0:
                    frame = await source.frame()
                    if frame is None:
                        ended = True
                        break
                    left -= 1
                    if frame.id is not None:
                        cursor = frame.id
                    if frame.data is not None:
                        got.append(frame.data)
            if ended:
                break
            if session.state == "completed" and cursor == session.events[-1].id:
                break
    assert got == [event.data for event in session.events]


async def wait_readers(session: SessionDouble, count: int) -> None:
    """Return when the session has `count` readers; the test's own deadline ends a hang."""
    with trio.fail_after(20):
        while session.readers != count:
            await session.readers_changed.wait()


async def test_a_reader_that_leaves_stops_counting_though_nothing_is_sent(client, service):
    """H32"""
    session = service.add("s0")
    async with client.events("s0") as source:
        await source.frame()
        assert session.readers == 1
    await wait_readers(session, 0)


async def test_a_reader_that_stops_reading_delays_nobody_and_is_dropped(service):
    """H29"""
    stalled, lively = service.add("stalled"), service.add("lively")
    async with serving(service, deadlines=Deadlines(write_s=0.3)) as client, client.events("stalled"):
        await wait_readers(stalled, 1)
        for _ in range(40):
            # Far more than the socket buffers of both sides hold.
            stalled.append("token", {"text": "x" * 500_000})
        await stalled.wake()
        async with client.events("lively") as source:
            assert (await source.frame()).id == 0
            for position in range(1, 50):
                await lively.token()
                assert (await source.frame()).id == position
        await wait_readers(stalled, 0)


async def test_the_stream_sets_no_header_of_its_own_framing(client, service):
    service.add("s0")
    async with client.wire() as wire:
        await wire.stream.send_all(client.head("GET", "/v1/sessions/s0/events"))
        _, headers = await wire.head()
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert "content-length" not in headers


def test_a_notice_has_no_id_so_no_cursor_moves():
    """B6, H21: a reader that comes back asks by the last event that counts."""
    token, notice = Event(7, "token", b"{}"), Event(7, "notice", b'{"notice":"parked"}')
    assert sse_frames([token, notice]) == (
        b'id: 7\nevent: token\ndata: {}\n\nevent: notice\ndata: {"notice":"parked"}\n\n'
    )
    assert websocket_frame(notice) == '{"event":"notice","data":{"notice":"parked"}}'


def test_notices_are_only_for_those_that_ask():
    """B6: and what cannot be understood is refused."""
    assert [parse_notices(given) for given in ([], ["0"], ["1"])] == [False, False, True]
    for given in (["yes"], ["1", "1"], [""]):
        with pytest.raises(SwapdError) as caught:
            parse_notices(given)
        assert caught.value.code is Code.INVALID_REQUEST


async def test_a_wrong_wish_for_notices_is_422(client, service):
    service.add("s0")
    reply = await client.ask("GET", "/v1/sessions/s0/events?notices=maybe")
    assert (reply.status, reply.code) == (422, "invalid_request")
