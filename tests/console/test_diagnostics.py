"""The diagnostics page: what is wrong comes first, the archive is a link, the debug window a form."""

from __future__ import annotations

import html
import re

import msgspec
import pytest

from console.pages.diagnostics import summary
from swapd.errors import Code, SwapdError
from swapd.views import DebugView, LogLine, PartView
from tests.console.browser import Browser
from tests.console.service_double import TENANT
from tests.lent_devices import LentDevices

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
async def owner(client):
    return await Browser(client).sign_in()


@pytest.fixture
async def viewer(client):
    return await Browser(client).sign_in("viewer")


def words(reply):
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", reply.body.decode())))


def with_parts(service, *parts):
    service.health = msgspec.structs.replace(service.health, parts=parts)


async def test_the_sentence_names_what_needs_a_look_and_it_comes_first(owner, service):
    page = words(await owner.get("/diagnostics"))
    assert "Something needs a look: worker b." in page
    assert page.index("worker b ▲ trouble") < page.index("store ● ok")
    assert "4% of the time it wants one" in page


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (("ok", "off"), "Everything works."),
        (("ok", "waiting"), "Nothing is wrong; 1 part is not ready yet."),
        (("waiting", "waiting"), "Nothing is wrong; 2 parts are not ready yet."),
        (("trouble", "trouble", "ok"), "2 parts need a look."),
    ],
)
def test_the_page_has_one_sentence(parts, told):
    view = msgspec.structs.replace(
        LentDevices().health, parts=tuple(PartView("p", word, "d") for word in parts)
    )
    assert summary(view) == told


async def test_what_was_logged_is_shown_and_nothing_in_it_is_markup(owner, service):
    line = LogLine("2026-01-02T03:04:05.000+00:00", "error", HOSTILE, HOSTILE, f"reason={HOSTILE}")
    service.health = msgspec.structs.replace(
        service.health, log=(line, LogLine("odd", "info", "swapd", "m", "")),
        versions={HOSTILE: HOSTILE}, parts=(PartView(HOSTILE, "trouble", HOSTILE),),
    )  # fmt: skip
    reply = await owner.get("/diagnostics")
    assert HOSTILE.encode() not in reply.body
    assert reply.body.count(b"&lt;script&gt;") == 8
    assert b">error<" in reply.body


async def test_without_a_line_the_log_says_so(owner, service):
    service.health = msgspec.structs.replace(service.health, log=())
    assert "Nothing was logged since the start." in words(await owner.get("/diagnostics"))


async def test_the_archive_is_downloaded_by_the_owner_alone(owner, viewer, client, service):
    """R128"""
    assert b'href="/diagnostics/archive"' in (await owner.get("/diagnostics")).body
    reply = await owner.get("/diagnostics/archive")
    assert (reply.status, reply.body) == (200, service.archive)
    assert b'href="/diagnostics/archive"' not in (await viewer.get("/diagnostics")).body
    refused = await viewer.get("/diagnostics/archive")
    assert refused.status == 403
    assert b"operator_required" in refused.body
    assert (await client.ask("GET", "/diagnostics/archive", token=None)).status in (303, 401)
    assert (await client.ask("GET", "/diagnostics/archive", token=TENANT)).status == 403
    assert len(service.exports) == 1


async def test_an_archive_that_cannot_be_made_is_told_on_the_page(owner, service):
    async def fails(caller):
        raise SwapdError(Code.TIMEOUT, "the archive was not ready in 20 s")

    service.export_diagnostics = fails
    reply = await owner.get("/diagnostics/archive")
    assert reply.status == SwapdError(Code.TIMEOUT).status
    assert "the archive was not ready in 20 s" in words(reply)
    assert "The parts of the service" in words(reply)


async def test_the_debug_window_is_opened_shown_and_ended(owner, service):
    """R129"""
    await owner.get("/diagnostics")
    reply = await owner.post("/diagnostics/debug", {"minutes": "15"})
    assert (reply.status, reply.headers["location"]) == (303, "/diagnostics")
    assert service.logged_for == [900.0]
    page = await owner.get("/diagnostics")
    assert "is logged until" in words(page)
    assert b"Stop now" in page.body
    await owner.post("/diagnostics/debug", {"minutes": "0"})
    assert service.logged_for == [900.0, 0.0]
    assert b"Stop now" not in (await owner.get("/diagnostics")).body
    service.health = msgspec.structs.replace(service.health, debug=DebugView(True, None, True))
    assert "owner.debug_decisions" in words(await owner.get("/diagnostics"))


@pytest.mark.parametrize("minutes", ["", "61", "-1", "nan", "5.5", HOSTILE])
async def test_only_the_offered_times_are_taken(owner, service, minutes):
    await owner.get("/diagnostics")
    reply = await owner.post("/diagnostics/debug", {"minutes": minutes})
    assert reply.status == 422
    assert HOSTILE.encode() not in reply.body
    assert service.logged_for == []


async def test_a_viewer_opens_no_debug_window(viewer, service):
    await viewer.get("/diagnostics")
    assert (await viewer.post("/diagnostics/debug", {"minutes": "5"})).status == 403
    assert service.logged_for == []


async def test_another_sites_form_opens_no_debug_window(owner, service):
    await owner.get("/diagnostics")
    foreign = {"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"}
    assert (await owner.post("/diagnostics/debug", {"minutes": "5"}, foreign)).status == 403
    assert (await owner.post("/diagnostics/debug", {"minutes": "5", "csrf": "x"})).status == 403
    assert service.logged_for == []


async def test_the_page_lives_and_closes_nothing_that_was_opened(owner, client, service):
    """What stands in a `details` is no part of what the stream replaces."""
    page = (await owner.get("/diagnostics")).body.decode()
    assert 'hx-sse:connect="/live/diagnostics"' in page
    assert page.count("<details") == 2
    async with client.wire() as wire:
        cookie = "; ".join(f"{k}={v}" for k, v in owner.cookies.items())
        await wire.stream.send_all(client.head("GET", "/live/diagnostics", {"Cookie": cookie}, None))
        assert (await wire.head())[0] == 200
        message = (await wire.chunk()).decode()
    assert "<details" not in message
    assert "data: <h1" in message
    assert "The latest log lines" in message
