from __future__ import annotations

import os
import random
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import zmq
from trio.testing import wait_all_tasks_blocked

from swapd.errors import Code, SwapdError
from swapd.transport.paths import ipc_endpoint
from swapd.transport.sockets import Context, TrioSocket, open_socket

Pair = tuple[TrioSocket, TrioSocket]


@asynccontextmanager
async def open_pair(context: Context, endpoint: str, *, hwm: int = 1000) -> AsyncIterator[Pair]:
    async with (
        open_socket(context, zmq.DEALER, bind=endpoint, send_hwm=hwm, recv_hwm=hwm) as left,
        open_socket(context, zmq.DEALER, connect=endpoint, send_hwm=hwm, recv_hwm=hwm) as right,
    ):
        # Bound and connected for sure once a message has crossed.
        await right.send_multipart([b"hello"])
        assert await left.recv_multipart() == [b"hello"]
        yield left, right


@pytest.fixture
def endpoint(short_dir: str) -> str:
    return ipc_endpoint(short_dir, "s")


def exists(endpoint: str) -> bool:
    return os.path.exists(endpoint.removeprefix("ipc://"))


async def until(predicate: Callable[[], bool]) -> None:
    """Wait for what libzmq's own threads do: they give no event."""
    with trio.fail_after(20):
        while not predicate():  # noqa: ASYNC110
            await trio.sleep(0.001)


async def send_many(sender: TrioSocket, parts: list[bytes], count: int) -> None:
    for _ in range(count):
        await sender.send_multipart(parts)


async def test_cancelled_receives_lose_nothing_and_keep_the_order(context: Context, endpoint: str) -> None:
    total = 5000
    dice = random.Random(7)
    received: list[int] = []
    cancelled = 0

    async def send_all(sender: TrioSocket) -> None:
        for n in range(total):
            await sender.send_multipart([b"%d" % n])

    async with open_pair(context, endpoint, hwm=64) as (left, right), trio.open_nursery() as nursery:
        nursery.start_soon(send_all, right)
        while len(received) < total:
            with trio.move_on_after(dice.choice([0, 0.00002, 0.0002, 1])) as scope:
                if dice.random() < 0.5:
                    received.append(int((await left.recv_multipart())[0]))
                else:
                    received.extend(int(m[0]) for m in await left.recv_batch(dice.randrange(1, 9)))
            cancelled += scope.cancelled_caught
    assert received == list(range(total))
    assert cancelled > 100


async def test_cancelled_sends_were_not_sent(context: Context, endpoint: str) -> None:
    total = 2000
    dice = random.Random(8)
    received: list[int] = []

    async def receive(receiver: TrioSocket) -> None:
        while len(received) < total:
            received.extend(int(m[0]) for m in await receiver.recv_batch(3))

    async with open_pair(context, endpoint, hwm=4) as (left, right), trio.open_nursery() as nursery:
        nursery.start_soon(receive, left)
        sent = 0
        while sent < total:
            with trio.move_on_after(dice.choice([0, 0.0001, 1])):
                await right.send_multipart([b"%d" % sent])
                sent += 1
    assert received == list(range(total))


async def test_both_directions_at_full_rate_with_a_low_mark_do_not_hang(
    context: Context, endpoint: str
) -> None:
    total = 3000
    counts = {"left": 0, "right": 0}

    async def send_all(sender: TrioSocket) -> None:
        for n in range(total):
            await sender.send_multipart([b"%d" % n, b"x" * 100])

    async def receive_all(name: str, receiver: TrioSocket) -> None:
        while counts[name] < total:
            for message in await receiver.recv_batch(16):
                assert int(message[0]) == counts[name]
                counts[name] += 1

    with trio.fail_after(50):
        async with open_pair(context, endpoint, hwm=8) as (left, right), trio.open_nursery() as nursery:
            for name, one in (("left", left), ("right", right)):
                nursery.start_soon(send_all, one)
                nursery.start_soon(receive_all, name, one)
    assert counts == {"left": total, "right": total}


@pytest.mark.parametrize("how", ["try_send", "send_multipart"])
async def test_our_own_send_does_not_swallow_a_parked_readers_wakeup(context: Context, how: str) -> None:
    """A reader is parked, a message arrives, our own send consumes the signal before Trio polls.

    `inproc` makes it exact: the peer's send below signals our mailbox at once, and without a checkpoint
    between it and our own send nobody can have polled.
    """
    got: list[list[bytes]] = []

    async def read(reader: TrioSocket) -> None:
        got.append(await reader.recv_multipart())

    async with open_pair(context, f"inproc://lost-{how}") as (left, right):
        for _ in range(50):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, left)
                await wait_all_tasks_blocked()
                assert left.statistics().parked_readers == 1
                assert right.try_send([b"ping"])
                if how == "try_send":
                    assert left.try_send([b"ours"])
                else:
                    await left.send_multipart([b"ours"])
                with trio.fail_after(30):
                    while not got:
                        await trio.lowlevel.checkpoint()
            assert got.pop() == [b"ping"]
            assert await right.recv_multipart() == [b"ours"]


async def test_our_own_receive_does_not_swallow_a_parked_writers_wakeup(context: Context) -> None:
    """The same with the roles exchanged: room appears, and our own receive consumes the signal."""
    async with open_pair(context, "inproc://lost-room", hwm=2) as (left, right):
        assert right.try_send([b"for left"])
        while left.try_send([b"x"]):
            continue
        async with trio.open_nursery() as nursery:
            nursery.start_soon(left.send_multipart, [b"waited"])
            await wait_all_tasks_blocked()
            assert left.statistics().parked_writers == 1
            taken = right._take(1000)
            assert await left.recv_multipart() == [b"for left"]
            with trio.fail_after(30):
                while left.statistics().parked_writers:
                    taken += right._take(1000)
                    await trio.lowlevel.checkpoint()
        assert (taken + right._take(1000))[-1] == [b"waited"]


async def test_many_readers_share_one_socket(context: Context, endpoint: str) -> None:
    total = 500
    got: list[int] = []

    async def read(reader: TrioSocket) -> None:
        while True:
            got.append(int((await reader.recv_multipart())[0]))

    async with open_pair(context, endpoint) as (left, right), trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(read, left)
        await wait_all_tasks_blocked()
        for n in range(total):
            assert right.try_send([b"%d" % n])
        await until(lambda: len(got) == total)
        nursery.cancel_scope.cancel()
    assert sorted(got) == list(range(total))


LARGE = b"x" * 50_000
"""A few of these fill the kernel's buffers of a Unix socket."""
PLENTY = 100


async def test_at_the_high_water_mark_send_waits_and_try_send_says_no(
    context: Context, endpoint: str
) -> None:
    async with open_pair(context, endpoint, hwm=2) as (left, right), trio.open_nursery() as nursery:
        nursery.start_soon(send_many, right, [LARGE], PLENTY)
        await until(lambda: right.statistics().parked_writers == 1 and not right.try_send([LARGE]))
        assert right.statistics().would_block >= 1
        before = right.statistics().sent
        assert before < PLENTY
        received = 0
        with trio.fail_after(20):
            while received < PLENTY:
                received += len(await left.recv_batch())
        # What this test has sent beside the writer may have come before the writer's last.
        await until(lambda: right.statistics().parked_writers == 0)


async def test_a_router_with_one_full_peer_still_serves_the_others(context: Context, endpoint: str) -> None:
    """POLLOUT is set for the other peer: the stuck writers must neither spin nor stay stuck."""
    async with (
        open_socket(context, zmq.ROUTER, bind=endpoint, send_hwm=2) as router,
        open_socket(context, zmq.DEALER, connect=endpoint, identity=b"full", recv_hwm=2) as full,
        open_socket(context, zmq.DEALER, connect=endpoint, identity=b"free") as free,
    ):
        for peer in (full, free):
            await peer.send_multipart([b"hello"])
            await router.recv_multipart()
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(send_many, router, [b"full", LARGE], PLENTY)
            await until(lambda: router.statistics().parked_writers == 2)
            await router.send_multipart([b"free", b"now"])
            assert await free.recv_multipart() == [b"now"]
            assert router.statistics().sent < 2 * PLENTY
            received = 0
            with trio.fail_after(20):
                while received < 2 * PLENTY:
                    received += len(await full.recv_batch())


async def test_stuck_writers_wait_by_the_clock_and_do_not_wake_each_other(
    context: Context, endpoint: str
) -> None:
    """Two writers with full peers, who woke each other, would spin; here each tries a few times a second."""
    async with (
        open_socket(context, zmq.ROUTER, bind=endpoint, send_hwm=2) as router,
        open_socket(context, zmq.DEALER, connect=endpoint, identity=b"full", recv_hwm=2) as full,
        open_socket(context, zmq.DEALER, connect=endpoint, identity=b"free") as free,
    ):
        for peer in (full, free):
            await peer.send_multipart([b"hello"])
            await router.recv_multipart()
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(send_many, router, [b"full", LARGE], PLENTY)
            await until(lambda: router.statistics().parked_writers == 2)
            attempts = 0
            put = router._put

            def counted(parts: Sequence[bytes]) -> bool | None:
                nonlocal attempts
                attempts += 1
                return put(parts)

            router._put = counted  # type: ignore[method-assign]  # counting, not changing
            await trio.sleep(0.2)
            assert attempts < 1000
            nursery.cancel_scope.cancel()


async def test_an_unroutable_message_is_dropped_and_counted(context: Context, endpoint: str) -> None:
    async with open_socket(context, zmq.ROUTER, bind=endpoint) as router:
        assert not router.try_send([b"nobody", b"hi"])
        await router.send_multipart([b"nobody", b"hi"])
        assert router.statistics().unroutable == 2
        assert router.statistics().sent == 0


async def test_a_message_over_the_limit_ends_only_its_senders_connection(
    context: Context, endpoint: str
) -> None:
    """H95: exactly the limit passes, one byte more never arrives, and the other peer goes on."""
    limit = 10_000
    async with (
        open_socket(context, zmq.ROUTER, bind=endpoint, max_message_bytes=limit) as router,
        open_socket(context, zmq.DEALER, connect=endpoint, identity=b"good") as good,
        open_socket(context, zmq.DEALER, connect=endpoint, identity=b"bad") as bad,
    ):
        await good.send_multipart([b"x" * limit])
        assert await router.recv_multipart() == [b"good", b"x" * limit]
        await bad.send_multipart([b"hello"])
        assert await router.recv_multipart() == [b"bad", b"hello"]
        await bad.send_multipart([b"y" * (limit + 1)])
        await until(lambda: not router.try_send([b"bad", b"are you there"]))
        await good.send_multipart([b"still here"])
        assert await router.recv_multipart() == [b"good", b"still here"]


async def test_subscribers_get_their_topic(context: Context, endpoint: str) -> None:
    async with (
        open_socket(context, zmq.PUB, bind=endpoint) as publisher,
        open_socket(context, zmq.SUB, connect=endpoint, subscribe=b"a") as subscriber,
        trio.open_nursery() as nursery,
    ):

        async def publish() -> None:
            while True:
                await publisher.send_multipart([b"b", b"not this"])
                await publisher.send_multipart([b"a", b"this"])
                await trio.sleep(0.001)

        nursery.start_soon(publish)
        assert await subscriber.recv_multipart() == [b"a", b"this"]
        nursery.cancel_scope.cancel()


async def test_closing_ends_waiting_tasks_and_later_calls(context: Context, endpoint: str) -> None:
    errors: list[type[Exception]] = []

    async def expect_closed(socket: TrioSocket) -> None:
        try:
            await socket.recv_multipart()
        except trio.ClosedResourceError as error:
            errors.append(type(error))

    async with trio.open_nursery() as nursery, open_socket(context, zmq.PULL, bind=endpoint) as socket:
        nursery.start_soon(expect_closed, socket)
        await wait_all_tasks_blocked()
    assert errors == [trio.ClosedResourceError]
    with pytest.raises(trio.ClosedResourceError):
        await socket.recv_batch()
    with pytest.raises(trio.ClosedResourceError):
        socket.try_send([b""])


async def test_the_bodys_own_error_comes_out_unwrapped(context: Context, endpoint: str) -> None:
    with pytest.raises(SwapdError) as caught:
        async with open_socket(context, zmq.PULL, bind=endpoint):
            raise SwapdError(Code.TIMEOUT)
    assert caught.value.code is Code.TIMEOUT


async def test_a_cancelled_body_is_cancelled_and_leaves_no_file(context: Context, endpoint: str) -> None:
    """H98"""
    with trio.move_on_after(0) as scope:
        async with open_socket(context, zmq.PULL, bind=endpoint) as socket:
            await socket.recv_multipart()
    assert scope.cancelled_caught
    assert not exists(endpoint)


async def test_an_error_raised_under_cancellation_is_not_lost(context: Context, endpoint: str) -> None:
    async def fail_when_cancelled(scope: trio.CancelScope) -> None:
        async with open_socket(context, zmq.PULL, bind=endpoint):
            scope.cancel()
            raise KeyError

    with trio.CancelScope() as scope, pytest.raises(KeyError):
        await fail_when_cancelled(scope)


async def test_a_bound_socket_belongs_to_its_user_alone_and_goes_on_exit(
    context: Context, endpoint: str
) -> None:
    """H107, H98"""
    path = endpoint.removeprefix("ipc://")
    async with open_socket(context, zmq.PULL, bind=endpoint):
        assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0
    assert not exists(endpoint)


async def test_a_socket_file_left_by_a_killed_process_does_not_block_the_next(
    context: Context, endpoint: str
) -> None:
    """H115"""
    raw = context.socket(zmq.PULL)
    raw.bind(endpoint)
    raw.close()
    assert exists(endpoint)
    async with open_pair(context, endpoint):
        pass


async def test_an_endpoint_that_cannot_be_bound_is_named(context: Context) -> None:
    with pytest.raises(SwapdError) as caught:
        async with open_socket(context, zmq.PULL, bind="ipc:///nowhere/at/all/s"):
            pass
    assert caught.value.code is Code.CONFIG_INVALID
    assert "/nowhere/at/all/s" in caught.value.detail


async def test_only_kinds_that_survive_cancellation_are_offered(context: Context) -> None:
    with pytest.raises(ValueError, match="kinds"):
        async with open_socket(context, zmq.REQ, connect="inproc://x"):
            pass


async def test_linger_bounds_the_end_of_the_context(short_dir: str) -> None:
    """A message for a peer that never comes must not hold the process: `term` returns by itself."""
    context: Context = zmq.Context()
    async with open_socket(
        context, zmq.PUSH, connect=ipc_endpoint(short_dir, "nobody"), linger_ms=20
    ) as socket:
        await socket.send_multipart([b"never read"])
    with trio.fail_after(20):
        await trio.to_thread.run_sync(context.term, abandon_on_cancel=True)


async def test_lingering_messages_arrive_after_close(context: Context, endpoint: str) -> None:
    async with open_socket(context, zmq.PULL, bind=endpoint) as receiver:
        async with open_socket(context, zmq.PUSH, connect=endpoint, linger_ms=5000) as sender:
            for n in range(100):
                await sender.send_multipart([b"%d" % n])
        got: list[int] = []
        with trio.fail_after(20):
            while len(got) < 100:
                got.extend(int(m[0]) for m in await receiver.recv_batch())
    assert got == list(range(100))


@pytest.mark.usefixtures("no_fd_leak")
async def test_a_hundred_sockets_leave_nothing_behind(short_dir: str) -> None:
    """H98"""
    context: Context = zmq.Context()
    for n in range(100):
        async with open_pair(context, ipc_endpoint(short_dir, f"s{n}")):
            pass
    context.term()
    assert os.listdir(short_dir) == []
