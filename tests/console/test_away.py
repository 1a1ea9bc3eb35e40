"""The report of what happened while the owner was away, and its sentence on the overview."""

from __future__ import annotations

import html
import re
import time

import msgspec
import pytest

from console.pages.drain_words import OUTCOMES
from console.pages.reason_words import WHYS
from swapd.device_views import ActivityStep, DeviceActivity
from swapd.lending.reasons import GIVE_BACK, Why
from swapd.views import Outcome
from tests.console.browser import Browser

HOSTILE = "<script>alert(1)</script>"
DAY_S = 86_400.0


@pytest.fixture
async def owner(client):
    return await Browser(client).sign_in()


def words(reply):
    assert reply.status == 200, reply
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", reply.body.decode())))


async def test_the_report_tells_what_was_lent_served_and_moved(owner, service):
    service.visit_before = time.time() - 2 * DAY_S
    page = words(await owner.get("/away"))
    assert "Lent 6.2 h, 41,000 tokens served." in page
    assert "6.2 h lent" in page
    assert "While you were away, since" in page
    assert "Tokens served 41,000" in page
    assert "Your work came first twice" in page
    assert "Pressure noticed 3 times" in page
    assert "Longest pause of one 0.1 s" in page
    assert "you used it twice; you took it back once" in page
    assert "5 went on elsewhere, nothing computed again" in page
    assert "1 stayed after all" in page
    assert service.asked_since[-1] == service.visit_before


async def test_a_first_visit_gets_the_last_day(owner, service):
    page = words(await owner.get("/away"))
    assert "The last 24 hours" in page
    assert abs(service.asked_since[-1] - (time.time() - DAY_S)) < 60


@pytest.mark.parametrize(("since", "span_s"), [("day", DAY_S), ("week", 7 * DAY_S)])
async def test_a_day_and_a_week_can_be_chosen(owner, service, since, span_s):
    service.visit_before = 5.0
    page = await owner.get(f"/away?since={since}")
    assert f'href="/away?since={since}" aria-current="page"'.encode() in page.body
    assert abs(service.asked_since[-1] - (time.time() - span_s)) < 60


@pytest.mark.parametrize("query", ["since=", "since=year", "since=day&since=week", f"since={HOSTILE}"])
async def test_what_is_no_time_is_refused(owner, query):
    reply = await owner.get(f"/away?{query}")
    assert reply.status == 422
    assert HOSTILE.encode() not in reply.body


async def test_a_record_that_begins_later_says_so(owner, service):
    began = time.time() - 3600
    service.happened_since = msgspec.structs.replace(
        service.happened_since,
        recorded_since=began,
        devices=(DeviceActivity("gpu0", 1800.0, 0, {}),),
    )
    page = words(await owner.get("/away?since=day"))
    assert "Recorded since" in page
    assert "gpu0: lent 30 min, 50% of the time" in page
    assert "not once" in page


async def test_names_are_never_markup(owner, service):
    service.happened_since = msgspec.structs.replace(
        service.happened_since,
        sentence=HOSTILE,
        devices=(DeviceActivity(HOSTILE, 1.0, 0, {HOSTILE: 1}),),
        moves={HOSTILE: 1},
    )
    for path in ("/away", "/"):
        assert HOSTILE.encode() not in (await owner.get(path)).body


async def test_who_came_back_from_memory_is_told_apart(owner, service):
    """B3: a park and the way back are one time that a generation had to go."""
    service.happened_since = msgspec.structs.replace(
        service.happened_since, moves={"completed_native": 3, "parked": 2}, moved=3, returned=2
    )
    page = words(await owner.get("/away"))
    assert re.search(r"1 .{0,3}went on elsewhere, nothing computed again", page)
    assert re.search(r"2 .{0,3}waited in memory", page)
    assert re.search(r"2 .{0,3}came back from memory", page)


async def test_without_devices_and_moves_the_report_says_so(owner, service):
    service.happened_since = msgspec.structs.replace(
        service.happened_since, devices=(), moves={}, longest_pause_ms=None
    )
    page = words(await owner.get("/away"))
    assert "No device is set up for lending." in page
    assert "None had to." in page
    assert "Longest pause of one none" in page


async def test_the_overview_has_the_sentence(owner, service):
    service.visit_before = time.time() - 7200
    page = words(await owner.get("/"))
    assert re.search(r"While you were away, since [^:]+:\d\d : lent 6.2 h, 41,000 tokens served\.", page)
    assert service.visits > 0


async def test_the_living_part_of_a_page_is_no_visit(owner, client, service):
    await owner.get("/")
    seen = service.visits
    async with client.wire() as wire:
        cookie = "; ".join(f"{k}={v}" for k, v in owner.cookies.items())
        await wire.stream.send_all(client.head("GET", "/live/overview", {"Cookie": cookie}, None))
        assert (await wire.head())[0] == 200
        await wire.chunk()
    assert service.visits == seen


def test_every_reason_and_every_outcome_has_words():
    assert set(WHYS) == set(Why)
    assert {why for why, words in WHYS.items() if words.given_back} == GIVE_BACK
    assert set(OUTCOMES) == set(Outcome.__args__)


async def test_when_it_was_lent_is_a_picture(owner, service):
    """A bar's height is the share of its step that all devices together were lent."""
    begin = time.time() - 24 * 3600 + 60
    service.happened_since = msgspec.structs.replace(
        service.happened_since,
        since=begin,
        devices=(DeviceActivity("a", 1.0, 0, {}), DeviceActivity("b", 1.0, 0, {})),
        course=(ActivityStep(begin, 3600.0, 5), ActivityStep(begin + 12 * 3600, 7200.0, 5)),
    )
    page = (await owner.get("/away?since=day")).body.decode()
    assert re.findall(
        r'<rect class="lent" x="([\d.]+)" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', page
    ) == [
        ("0.0", "50.0", "50.0"),
        ("300.0", "0.0", "100.0"),
    ]
    assert "a bar for every 60 min" in page


async def test_less_than_an_hour_is_told_in_what_fits(owner, service):
    service.happened_since = msgspec.structs.replace(service.happened_since, lent_s=46.0)
    assert "46 s lent" in words(await owner.get("/away"))
