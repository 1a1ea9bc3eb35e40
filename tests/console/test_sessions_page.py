"""The sessions' page says how far each is and why it waits, never what it says; it ends one, too."""

from __future__ import annotations

import html
import re
from urllib.parse import quote

import msgspec
import pytest

from console.pages.sessions import SHOWN, row
from swapd.views import SessionView
from tests.console.browser import Browser
from tests.console.service_double import OPERATOR

RUNNING = SessionView("ses_1", "running", "m", 6, 3, 6, 100, "gpu0", 1, 1000.0)


def plain(reply) -> str:
    assert reply.status == 200, reply
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", reply.body.decode())))


def session(name: str = "ses_1", **changes) -> SessionView:
    return msgspec.structs.replace(RUNNING, id=name, **changes)


async def page(client) -> str:
    return plain(await client.ask("GET", "/sessions", token=OPERATOR))


async def test_without_sessions_the_page_says_how_they_come(client):
    told = await page(client)
    assert "No generation is running." in told
    assert "POST /v1/sessions" in told


async def test_each_session_shows_its_state_its_place_and_how_far_it_is(client, service):
    service.session_views = [
        session("ses_1", accepted=1234, max_new_tokens=5000),
        session("ses_2", state="migrating", created_at=2000.0),
        session("ses_3", waits="no_reader", created_at=3000.0),
        session("ses_4", state="parked", worker="park", waits="target_full", created_at=4000.0),
    ]
    reply = await client.ask("GET", "/sessions", token=OPERATOR)
    told = plain(reply)
    assert "3 generations are running, 1 parked." in told
    assert "1,234 of 5,000" in told
    for words in ("Writing", "Moving", "Held Nobody reads the session; it goes on when somebody does."):
        assert words in told
    assert "Parked Target already holds the maximum active sessions." in told
    assert "host memory" in told
    assert b'<progress max="5000" value="1234"' in reply.body
    assert [told.index(f"ses_{n}") for n in range(1, 5)] == sorted(
        told.index(f"ses_{n}") for n in range(1, 5)
    )


async def test_many_sessions_come_page_by_page_and_are_counted_together(client, service):
    service.session_views = [session(f"ses_{n:04}", created_at=float(n)) for n in range(SHOWN + 3)]
    first = await client.ask("GET", "/sessions", token=OPERATOR)
    assert f"{SHOWN + 3} generations are running." in plain(first)
    assert b"ses_0000" in first.body
    assert f"ses_{SHOWN:04}".encode() not in first.body
    assert b'href="/sessions?page=2"' in first.body
    second = await client.ask("GET", "/sessions?page=2", token=OPERATOR)
    assert f"ses_{SHOWN:04}".encode() in second.body
    assert b"ses_0000" not in second.body
    assert b'href="/sessions"' in second.body
    assert b'hx-sse:connect="/live/sessions/2"' in second.body
    beyond = await client.ask("GET", "/sessions?page=9", token=OPERATOR)
    assert beyond.status == 200
    assert f"ses_{SHOWN:04}".encode() in beyond.body
    assert b'href="/sessions?page=8"' not in beyond.body


@pytest.mark.parametrize("page", ["0", "-1", "x", "1e3", "999999", "\u0661"])
async def test_a_page_that_is_none_is_not_there(client, page):
    assert (await client.ask("GET", f"/sessions?page={quote(page)}", token=OPERATOR)).status == 404
    assert (await client.ask("GET", f"/live/sessions/{quote(page)}", token=OPERATOR)).status == 404


async def test_a_hostile_model_name_is_only_text(client, service):
    service.session_views = [session(model="<script>alert(1)</script>", worker='"><img src=x>')]
    reply = await client.ask("GET", "/sessions", token=OPERATOR)
    assert b"<script>alert" not in reply.body
    assert b"<img" not in reply.body
    assert "<script>alert(1)</script>" in html.unescape(reply.body.decode())


async def test_an_owner_ends_a_session_after_a_question(client, service):
    """H3; without JavaScript, too: a page asks, and a form answers."""
    service.session_views = [session()]
    owner = await Browser(client).sign_in()
    asked = await owner.get("/sessions/ses_1/end")
    assert "End this generation?" in plain(asked)
    assert service.session_views[0].state == "running"
    reply = await owner.post("/sessions/ses_1/end")
    assert (reply.status, reply.headers["location"]) == (303, "/sessions")
    assert service.session_views[0].state == "cancelled"
    assert "It has ended already." in plain(await owner.get("/sessions/ses_1/end"))


async def test_a_session_that_is_not_there_cannot_be_ended(client):
    owner = await Browser(client).sign_in()
    assert (await owner.get("/sessions/nobody/end")).status == 404
    assert (await owner.post("/sessions/nobody/end")).status == 404


async def test_a_viewer_sees_the_sessions_and_ends_none(client, service):
    service.session_views = [session()]
    viewer = await Browser(client).sign_in("viewer")
    told = await viewer.get("/sessions")
    assert "1 generation is running." in plain(told)
    assert b"/end" not in told.body
    assert (await viewer.get("/sessions/ses_1/end")).status == 403
    assert (await viewer.post("/sessions/ses_1/end")).status == 403
    assert service.session_views[0].state == "running"


@pytest.mark.parametrize("fields", [{"csrf": ""}, {"csrf": "guessed"}])
async def test_another_sites_form_ends_no_session(client, service, fields):
    service.session_views = [session()]
    owner = await Browser(client).sign_in()
    assert (await owner.post("/sessions/ses_1/end", fields)).status == 403
    assert service.session_views[0].state == "running"


def test_where_a_parked_session_is_depends_on_what_is_left_of_it() -> None:
    """B3: without its KV it is in no memory, and is computed again."""
    parked = msgspec.structs.replace(RUNNING, state="parked", worker=None)
    assert row(parked).place == "host memory"
    assert row(msgspec.structs.replace(parked, without_kv=True)).place == "nowhere: to be computed again"
