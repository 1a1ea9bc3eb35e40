"""Drains: seen, foreseen, begun, followed, cancelled; and what operators switch beside them."""

from __future__ import annotations

import html
import re

import msgspec
import pytest

from console.pages.drain_words import ROWS
from console.pages.drains import HISTORY
from swapd.errors import Code, SwapdError
from swapd.views import Asker, DrainView, Foreseen, PreflightView, QuarantineView, SessionOutcome
from tests.console.browser import Browser
from tests.console.service_double import OPERATOR, TENANT, worker_view

HOSTILE = '"><script>alert(1)</script>'
MOVES = SessionOutcome("ses_1", None, None, "precopying", target="b", precopied_bytes=1 << 20)
DONE = SessionOutcome("ses_2", "completed_native", None, "finished", target="b", frozen_ms=48.0)
RUNNING = DrainView("drn_1", "a", "running", "operator", 1000.0, 60.0, None, (MOVES, DONE))
OVER = DrainView("drn_0", "b", "drained", "take_back_now", 500.0, 60.0, 503.0, (DONE,))
AHEAD = PreflightView(
    "a", "native", (Foreseen("ses_1", "running", 6, 100, 2, 8192, "move", target="b"),), 8192, 0.5, 48.0, 1
)


def plain(reply) -> str:
    assert reply.status == 200, reply
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", reply.body.decode())))


async def page(client, path: str) -> str:
    return plain(await client.ask("GET", path, token=OPERATOR))


# The list ---------------------------------------------------------------------------------------------


async def test_at_rest_the_page_offers_a_drain_of_each_worker(client, service):
    service.drain_views = []
    service.worker_views = [worker_view("a", sessions=2, committed_blocks=5), worker_view("b")]
    reply = await client.ask("GET", "/drains", token=OPERATOR)
    told = plain(reply)
    assert "No worker is draining." in told
    assert "There has been none yet." in told
    assert "2 generations 50% of 10 blocks" in told
    assert b'href="/drains/new?worker=a"' in reply.body


async def test_a_drain_under_way_is_told_and_can_be_followed(client, service):
    service.drain_views = [RUNNING, OVER]
    service.worker_views = [worker_view("a", drain="drn_1", admitting=False), worker_view("b")]
    reply = await client.ask("GET", "/drains", token=OPERATOR)
    told = plain(reply)
    assert told.count("Moving 1 of 2 generations away from a; 1 done, longest pause 48 ms.") == 2
    assert "an operator asked for it" in told
    assert "the owner took it back Empty" in re.sub(r"✓ ", "", told).replace("  ", " ")
    assert b'<progress max="2" value="1"' in reply.body
    assert b'href="/drains/drn_1"' in reply.body


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "Ready"),
        ({"state": "starting", "reason": "loads its model"}, "Starting loads its model"),
        ({"state": "dead", "reason": "exited with 9"}, "Lost exited with 9"),
        (
            {"admitting": False, "reason": "device gpu0: its owner has it"},
            "Closed device gpu0: its owner has it",
        ),
        (
            {"admitting": False, "quarantine": QuarantineView("checksum_mismatch", 100.0)},
            "Not trusted A copied block failed its checksum.",
        ),
    ],
)
async def test_a_worker_says_why_it_takes_nothing(client, service, changes, words):
    service.worker_views = [worker_view("a", **changes)]
    assert words in await page(client, "/drains")


async def test_history_comes_page_by_page(client, service):
    service.drain_views = [msgspec.structs.replace(OVER, id=f"drn_{n}") for n in range(HISTORY + 2, 0, -1)]
    first = await client.ask("GET", "/drains", token=OPERATOR)
    assert b'href="/drains?before=drn_3"' in first.body
    assert b'"/drains/drn_2"' not in first.body
    second = await client.ask("GET", "/drains?before=drn_3", token=OPERATOR)
    assert b'href="/drains/drn_2"' in second.body
    assert b'href="/drains/drn_3"' not in second.body
    assert b"?before=" not in second.body
    assert b'hx-sse:connect="/live/drains/drn_3"' in second.body


async def test_a_drain_under_way_is_shown_on_every_page_of_the_history(client, service):
    service.drain_views = [RUNNING, OVER]
    service.worker_views = [worker_view("a", drain="drn_1")]
    assert "Moving 1 of 2 generations" in await page(client, "/drains?before=drn_1")


# The pre-flight ---------------------------------------------------------------------------------------


async def test_a_preflight_says_where_each_would_go_and_how_long_it_takes(client, service):
    service.ahead = AHEAD
    told = await page(client, "/drains/new?worker=a")
    assert "The one generation on it would move." in told
    assert "To b, with all it has computed." in told
    assert "8.0 KiB would be copied, for about 0.5 s at the pace of 1 earlier drain" in told
    assert "their longest pause was 48 ms" in told
    assert service.drains_started == []


async def test_a_preflight_promises_no_time_that_was_never_measured(client, service):
    service.ahead = msgspec.structs.replace(AHEAD, copy_s=None, longest_pause_ms=None, drains_measured=0)
    told = await page(client, "/drains/new?worker=a")
    assert "8.0 KiB would be copied. Nothing is reserved" in told


async def test_a_mode_that_is_switched_off_is_said_and_offers_no_button(client, service):
    """B3"""
    service.ahead = SwapdError(Code.PARKING_OFF)
    reply = await client.ask("GET", "/drains/new?worker=a&mode=park", token=OPERATOR)
    assert "Parking is switched off; give it memory with park_bytes." in plain(reply)
    assert b'action="/drains"' not in reply.body


async def test_a_worker_that_drains_already_leads_to_its_drain(client, service):
    """H50"""
    service.ahead = SwapdError(Code.DRAIN_EXISTS, "drn_1")
    reply = await client.ask("GET", "/drains/new?worker=a", token=OPERATOR)
    assert (reply.status, reply.headers["location"]) == (303, "/drains/drn_1")


@pytest.mark.parametrize(("query", "status"), [("", 303), ("?worker=x", 404), ("?worker=a&mode=x", 422)])
async def test_a_preflight_of_nothing_is_refused(client, query, status):
    assert (await client.ask("GET", f"/drains/new{query}", token=OPERATOR)).status == status


@pytest.mark.parametrize(
    ("deadline", "started"), [("", ("a", None, "operator")), ("90", ("a", 90.0, "operator"))]
)
async def test_an_owner_starts_a_drain_and_sees_it(client, service, deadline, started):
    """H50"""
    owner = await Browser(client).sign_in()
    await owner.get("/drains/new?worker=a")
    reply = await owner.post("/drains", {"worker": "a", "mode": "park", "deadline_s": deadline})
    assert (reply.status, reply.headers["location"]) == (303, "/drains/d1")
    assert service.drains_started == [started]
    assert service.modes_started == ["park"]
    again = await owner.post("/drains", {"worker": "a"})
    assert (again.status, again.headers["location"]) == (303, "/drains/d1")
    assert len(service.drains_started) == 1


@pytest.mark.parametrize(
    "fields",
    [
        *({"deadline_s": text} for text in ("soon", "-1", "nan")),
        {"mode": "magic"},
        {"reason": "x" * 201},
        {"reason": "a\nb"},
    ],
)
async def test_a_drain_that_cannot_be_is_refused_with_the_reason(client, service, fields):
    """A23"""
    owner = await Browser(client).sign_in()
    reply = await owner.post("/drains", {"worker": "a"} | fields)
    assert reply.status == 422
    assert b"invalid_request" in reply.body
    assert service.drains_started == []


# One drain --------------------------------------------------------------------------------------------


async def test_a_drain_shows_each_session_with_phase_bytes_and_pause(client, service):
    """H54"""
    service.drain_views = [RUNNING]
    told = await page(client, "/drains/drn_1")
    assert "Moving 1 of 2 generations away from a; 1 done, longest pause 48 ms." in told
    assert "Moving Copying while it goes on b 1.0 MiB" in told
    assert re.search("Moved Nothing computed again. b . 48 ms", told)
    assert "Deadline" in told
    assert "Cancel the drain" in told


async def test_a_drain_that_is_over_says_how_long_it_took_and_offers_no_cancel(client, service):
    service.drain_views = [OVER]
    told = await page(client, "/drains/drn_0")
    assert "b is empty: 1 generation left it, longest pause 48 ms." in told
    assert "Took 3.0 s" in told
    assert "Cancel" not in told


async def test_a_drain_behind_its_deadline_says_what_is_in_the_way(client, service):
    """H58"""
    full = SessionOutcome("ses_3", "blocked", "target_full", "planned", detail="held by ses_9")
    service.drain_views = [msgspec.structs.replace(RUNNING, state="blocked", sessions=(full,))]
    told = await page(client, "/drains/drn_1")
    assert "Cannot leave yet Target already holds the maximum active sessions (held by ses_9)." in told
    assert "Nothing is ended by that" in told


async def test_an_owner_cancels_a_drain(client, service):
    """H61"""
    service.drain_views = [RUNNING]
    owner = await Browser(client).sign_in()
    await owner.get("/drains/drn_1")
    reply = await owner.post("/drains/drn_1/cancel")
    assert (reply.status, reply.headers["location"]) == (303, "/drains/drn_1")
    assert service.drains_cancelled == ["drn_1"]


async def test_a_drain_that_nobody_knows_is_not_there(client):
    for path in ("/drains/nothing", "/live/drain/nothing"):
        assert (await client.ask("GET", path, token=OPERATOR)).status == 404


async def test_a_great_drain_lists_those_first_that_need_a_look(client, service):
    """The sentences count all of them."""
    many = [msgspec.structs.replace(DONE, session=f"d{n:04}") for n in range(ROWS + 5)]
    waits = SessionOutcome("waits", None, "no_target", "planned")
    service.drain_views = [msgspec.structs.replace(RUNNING, sessions=(*many, waits))]
    told = await page(client, "/drains/drn_1")
    assert f"1 of {ROWS + 6} generations waits to leave a; {ROWS + 5} done" in told
    assert "waits … Waiting" in told
    assert "6 more are counted and not listed." in told
    each = AHEAD.sessions[0]
    moves = [msgspec.structs.replace(each, session=f"m{n:04}") for n in range(ROWS)]
    stays = msgspec.structs.replace(each, session="z", would="stay", target=None, reason="no_target")
    service.ahead = msgspec.structs.replace(AHEAD, sessions=(*moves, stays))
    told = await page(client, "/drains/new?worker=a")
    assert f"Of {ROWS + 1} generations {ROWS} would move and 1 would stay." in told
    assert "z ▲ Stays" in told
    assert "1 more is counted and not listed." in told


async def test_a_drain_says_who_asked_and_in_which_words(client, service):
    """B16: in the list, in its history and on its page, each as text."""
    asked = (Asker("operator", 1000.0, HOSTILE), Asker("take_back_now", 1001.0, "gpu0: taken back"))
    joined = msgspec.structs.replace(RUNNING, origin="take_back_now", reason=HOSTILE, askers=asked)
    over = msgspec.structs.replace(joined, id="drn_0", state="drained", finished_at=1002.0)
    service.drain_views = [joined, over]
    service.worker_views = [worker_view("a", drain="drn_1")]
    for path, times in (("/drains", 2), ("/drains/drn_1", 1), ("/drains/drn_0", 1)):
        reply = await client.ask("GET", path, token=OPERATOR)
        assert plain(reply).count("an operator asked for it and the owner took it back") == times, path
        assert plain(reply).count("gpu0: taken back") == times, path
        assert b"<script>alert" not in reply.body, path
    owner = await Browser(client).sign_in()
    assert "another drain begins at once" in plain(await owner.get("/drains/drn_1"))


async def test_a_drain_says_when_nothing_was_left_on_the_device(client, service):
    """B17: apart from when its sessions were away; and when it was not measured."""
    service.drain_views = [msgspec.structs.replace(OVER, time_to_clear_s=4.5)]
    assert "Took 3.0 s Nothing left on the device after 4.5 s" in await page(client, "/drains/drn_0")
    service.drain_views = [OVER]
    assert "Nothing left on the device not measured" in await page(client, "/drains/drn_0")
    service.drain_views = [RUNNING]
    assert "Nothing left on the device" not in await page(client, "/drains/drn_1")


async def test_an_owner_says_why_a_drain_begins(client, service):
    """B16"""
    owner = await Browser(client).sign_in()
    assert b'name="reason"' in (await owner.get("/drains/new?worker=a")).body
    await owner.post("/drains", {"worker": "a", "reason": " a new driver "})
    assert service.reasons_started == ["a new driver"]


# Operators --------------------------------------------------------------------------------------------


async def test_the_switches_show_how_they_stand_and_turn(client, service):
    """H163, A13"""
    owner = await Browser(client).sign_in()
    assert "Admitted" in plain(await owner.get("/drains"))
    assert (await owner.post("/switches/admission", {"on": "no"})).status == 303
    assert not service.switches_view.admission
    told = plain(await owner.get("/drains"))
    assert "New sessions ▲ Stopped since" in told
    assert "Admit new sessions" in told
    await owner.post("/switches/migration", {"on": "no"})
    assert "Switch moves on" in plain(await owner.get("/drains"))
    assert (await owner.post("/switches/admission", {"on": "yes"})).status == 303
    assert service.switches_view.admission


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/switches/everything", {"on": "no"}),
        ("/switches/admission", {}),
        ("/switches/admission", {"on": "2"}),
    ],
)
async def test_a_switch_that_is_none_turns_nothing(client, service, path, fields):
    owner = await Browser(client).sign_in()
    assert (await owner.post(path, fields)).status == 404
    assert service.switches_view.admission


async def test_a_quarantine_is_shown_and_lifted(client, service):
    """H79"""
    service.worker_views = [worker_view("a", quarantine=QuarantineView("checksum_mismatch", 100.0))]
    owner = await Browser(client).sign_in()
    assert "Trust a again" in plain(await owner.get("/drains"))
    assert (await owner.post("/workers/a/trust")).status == 303
    assert service.cleared == ["a"]
    refused = await owner.post("/workers/x/trust")
    assert refused.status == 404
    assert b"There is no such worker." in refused.body


# Who may, and what may not get through ---------------------------------------------------------------


ACTIONS = ["/drains", "/drains/drn_1/cancel", "/switches/admission", "/workers/a/trust"]
FIELDS = {"worker": "a", "on": "no"}


def untouched(service) -> bool:
    acted = [*service.drains_started, *service.drains_cancelled, *service.cleared]
    return not acted and service.switches_view.admission


async def test_a_viewer_sees_everything_and_can_do_nothing(client, service):
    service.drain_views, service.ahead = [RUNNING], AHEAD
    service.worker_views = [worker_view("a", quarantine=QuarantineView("checksum_mismatch", 100.0))]
    viewer = await Browser(client).sign_in("viewer")
    for path in ("/drains", "/drains/new?worker=a", "/drains/drn_1"):
        reply = await viewer.get(path)
        assert reply.status == 200
        assert re.findall(rb'<form[^>]*action="([^"]*)"', reply.body) in ([], [b"/sign-out"])
    for path in ACTIONS:
        assert (await viewer.post(path, FIELDS)).status == 403
    assert untouched(service)


@pytest.mark.parametrize("path", ACTIONS)
async def test_another_sites_form_does_nothing(client, service, path):
    service.drain_views = [RUNNING]
    owner = await Browser(client).sign_in()
    assert (await owner.post(path, FIELDS | {"csrf": "guessed"})).status == 403
    foreign = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert (await owner.post(path, FIELDS, foreign)).status == 403
    assert untouched(service)


@pytest.mark.parametrize(
    "path", ["/sessions", "/drains", "/drains/new?worker=a", "/drains/d1", "/live/drains"]
)
async def test_a_tenants_token_opens_no_page(client, path):
    """H9"""
    assert (await client.ask("GET", path, token=TENANT)).status == 403


async def test_hostile_names_are_only_text(client, service):
    hostile = msgspec.structs.replace(MOVES, session=HOSTILE, target=HOSTILE)
    service.drain_views = [msgspec.structs.replace(RUNNING, worker=HOSTILE, sessions=(hostile,))]
    service.worker_views = [
        worker_view("a", drain="drn_1"),
        worker_view(HOSTILE, state="dead", reason=HOSTILE),
    ]
    each = msgspec.structs.replace(AHEAD.sessions[0], session=HOSTILE, target=HOSTILE, detail=HOSTILE)
    service.ahead = msgspec.structs.replace(AHEAD, sessions=(each,))
    for path in ("/drains", "/drains/drn_1", "/drains/new?worker=%22%3E%3Cscript%3Ealert(1)%3C/script%3E"):
        reply = await client.ask("GET", path, token=OPERATOR)
        assert reply.status == 200, path
        assert b"<script>alert" not in reply.body, path
        assert b"&lt;script&gt;alert" in reply.body, path


async def test_a_drain_that_parked_everybody_does_not_say_that_nobody_paused(client, service):
    """H48: how long a parked session's client waits is not known by its drain."""
    parked = SessionOutcome("ses_1", "parked", None, "finished")
    service.drain_views = [msgspec.structs.replace(OVER, sessions=(parked,))]
    assert "Longest pause not known for parked ones" in await page(client, "/drains/drn_0")
    service.drain_views = [msgspec.structs.replace(OVER, sessions=())]
    assert "Longest pause none" in await page(client, "/drains/drn_0")


async def test_two_generations_are_both(client, service):
    two = (AHEAD.sessions[0], msgspec.structs.replace(AHEAD.sessions[0], session="ses_2"))
    service.ahead = msgspec.structs.replace(AHEAD, sessions=two)
    assert "Both generations would move." in await page(client, "/drains/new?worker=a")


async def test_cancelling_what_the_owner_began_does_not_promise_an_open_worker(client, service):
    """H61, B17: while the owner wants the device, its worker is drained again."""
    service.drain_views = [RUNNING]
    owner = await Browser(client).sign_in()
    assert "a opens again." in plain(await owner.get("/drains/drn_1"))
    service.drain_views = [msgspec.structs.replace(RUNNING, origin="take_back_now")]
    told = plain(await owner.get("/drains/drn_1"))
    assert "another drain begins at once" in told
    assert "opens again" not in told
