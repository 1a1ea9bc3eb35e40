"""Living parts of pages: sent when they change, rendered once for all who watch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import trio

from console.live import PERIOD_S, LivePart, sse_message
from console.visitors import Visitor
from swapd.views import Caller, SessionOutcome
from tests.console.client import Client, Wire
from tests.console.service_double import OPERATOR, TENANT
from tests.lent_devices import lent_device

OWNER = Visitor(Caller("owners", is_operator=True), "owner")


class Messages:
    """The unnamed messages of one live stream."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._text = b""

    async def next(self) -> bytes | None:
        """The HTML of the next one; None at the clean end."""
        while b"\n\n" not in self._text:
            chunk = await self._wire.chunk()
            if not chunk:
                return None
            self._text += chunk
        block, self._text = self._text.split(b"\n\n", 1)
        return b"\n".join(line.removeprefix(b"data: ") for line in block.split(b"\n"))


@asynccontextmanager
async def watching(client: Client, path: str = "/live/overview") -> AsyncIterator[Messages]:
    async with client.wire() as wire:
        await wire.stream.send_all(client.head("GET", path, token=OPERATOR))
        status, fields = await wire.head()
        assert status == 200
        assert fields["content-type"].startswith("text/event-stream")
        yield Messages(wire)


async def test_a_change_reaches_an_open_page(client, service):
    service.lent = {"a": lent_device("a")}
    async with watching(client) as messages:
        assert b"Lent to language models" in (await messages.next())
        service.lent["a"] = lent_device("a", state="free", admitting=False, why="game", sentence="a game")
        assert b"Enjoy the game" in (await messages.next())


async def test_a_drain_is_followed_live_and_who_stops_looking_does_not_stop_it(client, service):
    """B19"""
    (drain,) = service.drain_views
    moving = SessionOutcome("ses_1", None, None, "precopying", target="b", precopied_bytes=1 << 20)
    async with watching(client, f"/live/drain/{drain.id}") as messages:
        await messages.next()
        service.drain_views = [msgspec.structs.replace(drain, sessions=(moving,))]
        assert b"1.0 MiB" in (await messages.next())
    assert service.drains_cancelled == []
    assert service.drain_views[0].state == "running"


async def test_the_part_of_the_page_and_the_part_of_the_stream_are_one_text(client, service):
    page = await client.ask("GET", "/", token=OPERATOR)
    async with watching(client) as messages:
        part = await messages.next()
    assert part.strip() in page.body


async def test_streams_end_when_the_service_stops(client, service):
    async with watching(client) as messages:
        await messages.next()
        await service.stop()
        assert await messages.next() is None


async def test_a_tenant_watches_nothing_and_unknown_pages_are_not_there(client):
    """H9"""
    assert (await client.ask("GET", "/live/overview", token=None)).status == 401
    assert (await client.ask("GET", "/live/overview", token=TENANT)).status == 403
    assert (await client.ask("GET", "/live/nothing", token=OPERATOR)).status == 404


async def test_many_watchers_cost_one_rendering_a_period(autojump_clock: trio.testing.MockClock) -> None:
    rendered = 0

    async def render(who: Visitor, name: str) -> str:
        nonlocal rendered
        rendered += 1
        await trio.sleep(0.01)
        return f"<p>{name} {rendered // 3}</p>"

    part = LivePart(render, "x")
    frames = set()

    async def watch() -> None:
        for _ in range(6):
            frames.add((await part.picture(OWNER)).frame)
            await trio.sleep(PERIOD_S)

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(watch)
    assert rendered <= 7
    assert sse_message("<p>x 0</p>") in frames


async def test_a_cancelled_rendering_leaves_the_next_one_to_others(autojump_clock) -> None:
    async def render(who: Visitor, name: str) -> str:
        await trio.sleep(1)
        return "done"

    part = LivePart(render, "")
    with trio.move_on_after(0.5) as scope:
        await part.picture(OWNER)
    assert scope.cancelled_caught
    assert (await part.picture(OWNER)).html == "done"


def test_a_message_is_one_sse_event_whatever_lines_it_has():
    assert sse_message("<p>\r\n a\n</p>\n") == b"data: <p>\ndata:  a\ndata: </p>\n\n"


async def test_the_head_of_a_living_part_comes_to_an_end(client, service):
    """A stream that sends nothing would hold its connection for as long as the client waits."""
    async with client.wire() as wire:
        for _ in range(2):
            await wire.stream.send_all(client.head("HEAD", "/live/overview", token=OPERATOR))
            with trio.fail_after(30):
                status, _ = await wire.head()
            assert status == 200
