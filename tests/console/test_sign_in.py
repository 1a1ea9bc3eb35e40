"""Coming in at the console and going, over real sockets."""

from __future__ import annotations

import re

import pytest

from console.pages.sign_in import own_path
from console.visitors import COOKIE, SECURE_COOKIE
from swapd.signin.attempts import FREE_TRIES
from swapd.signin.rules import IDLE_S
from swapd.views import Caller, Readiness
from tests.console.browser import Browser
from tests.console.service_double import OPERATOR, TENANT
from tests.lent_devices import lent_device
from tests.signin.memory import OWNER_TOKEN

OPERATORS = Caller("ops", True)


@pytest.fixture
async def browser(client) -> Browser:
    return Browser(client)


async def test_a_stranger_is_led_to_the_sign_in_and_back(browser):
    """The page tells whether the service takes work, and nothing else."""
    reply = await browser.get("/?worker=a")
    assert (reply.status, reply.headers["location"]) == (303, "/sign-in?next=/%3Fworker%3Da")
    page = await browser.get(reply.headers["location"])
    assert page.status == 200
    assert b"Taking work" in page.body
    assert b'name="next" value="/?worker=a"' in page.body
    assert b"/settings" not in page.body
    inside = await browser.post("/sign-in", {"key": OWNER_TOKEN, "next": "/?worker=a"})
    assert (inside.status, inside.headers["location"]) == (303, "/?worker=a")


async def test_the_sign_in_says_why_no_work_is_taken(browser, service):
    service.ready = Readiness(False, ("stopping", "<script>alert(1)</script>"))
    page = await browser.get("/sign-in")
    assert b"Not taking work now" in page.body
    assert b"<script>alert" not in page.body


async def test_opening_a_link_takes_nothing_away_and_sending_its_form_does(browser, service):
    """The code is in no address that a browser sends."""
    link = service.door.link(OPERATORS, "owner")
    path, _, code = link.url.partition("#")
    for _ in range(3):
        page = await browser.get("/" + path.split("/", 3)[3])
        assert page.status == 200
    first = await browser.post("/sign-in", {"key": code})
    assert (first.status, first.headers["location"]) == (303, "/")
    again = await Browser(browser.client).post("/sign-in", {"key": code})
    assert again.status == 401
    assert code.encode() not in again.body


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(browser):
    await browser.sign_in()
    reply = await browser.post("/sign-in", {"key": OWNER_TOKEN})
    name, *attributes = reply.headers["set-cookie"].split("; ")
    assert re.fullmatch(rf"{COOKIE}=[\w-]{{43}}", name)
    assert {"HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={30 * 86400}"} <= set(attributes)
    assert not any(each.startswith(("Domain", "Secure")) for each in attributes)


async def test_behind_https_the_cookie_is_for_this_host_over_https_alone(browser):
    host = {"Host": "127.0.0.1", "Origin": "https://127.0.0.1"}
    reply = await browser.post("/sign-in", {"key": OWNER_TOKEN}, host)
    assert reply.status == 303
    assert reply.headers["set-cookie"].startswith(f"{SECURE_COOKIE}=")
    assert "; Secure" in reply.headers["set-cookie"]
    assert (await browser.get("/")).status == 200


async def test_pages_know_who_is_signed_in_and_go_on_after_a_sign_out(browser, service):
    await browser.sign_in("viewer")
    page = await browser.get("/")
    assert page.status == 200
    assert b">Viewer</a>" in page.body
    cookie = dict(browser.cookies)
    reply = await browser.post("/sign-out")
    assert (reply.status, reply.headers["location"]) == (303, "/sign-in")
    assert COOKIE not in browser.cookies
    browser.cookies = cookie
    assert (await browser.get("/")).headers["location"] == "/sign-in?next=/"


async def test_the_owner_signs_everybody_out_and_a_viewer_cannot(browser):
    owner = await Browser(browser.client).sign_in()
    viewer = await browser.sign_in("viewer")
    refused = await viewer.post("/sign-out/everywhere")
    assert refused.status == 403
    assert b"You are signed in as viewer" in refused.body
    assert (await owner.get("/")).status == 200
    assert (await owner.post("/sign-out/everywhere")).status == 303
    for each in (owner, viewer):
        assert (await each.get("/")).status == 303


async def test_a_viewer_sees_no_button_and_is_refused_what_one_would_do(browser, service):
    service.lent["gpu0"] = lent_device("gpu0")
    viewer = await browser.sign_in("viewer")
    page = await viewer.get("/")
    assert b"gpu0" in page.body
    assert b"take-back" not in page.body
    assert (await viewer.post("/devices/gpu0/take-back", {"for": "3600"})).status == 403
    assert service.taken == []


async def test_an_owner_takes_a_device_back_by_a_form(browser, service):
    service.lent["gpu0"] = lent_device("gpu0")
    await browser.sign_in()
    reply = await browser.post("/devices/gpu0/take-back", {"for": "3600"})
    assert (reply.status, reply.headers["location"]) == (303, "/#device-gpu0")
    assert [name for name, _ in service.taken] == ["gpu0"]


async def test_wrong_tries_are_told_when_to_come_back(browser):
    for _ in range(FREE_TRIES):
        reply = await browser.post("/sign-in", {"key": "wrong"})
        assert reply.status == 401
        assert "www-authenticate" not in reply.headers
    reply = await browser.post("/sign-in", {"key": OWNER_TOKEN})
    assert (reply.status, reply.headers["retry-after"]) == (429, "1")
    assert re.search(rb"You can try again in 1 second, at \d\d:\d\d:\d\d\.", reply.body)


async def test_a_sign_in_ends_by_itself(browser, service):
    await browser.sign_in()
    service.door.clocks.now += IDLE_S
    assert (await browser.get("/")).status == 303


async def test_a_live_part_ends_for_who_is_signed_out(client, service):
    """The browser then asks for the page, and is led to the sign-in."""
    owner = await Browser(client).sign_in()
    cookie = "; ".join(f"{k}={v}" for k, v in owner.cookies.items())
    async with client.wire() as wire:
        fields = {"Accept": "text/event-stream", "Cookie": cookie}
        await wire.stream.send_all(client.head("GET", "/live/overview", fields, None))
        status, _ = await wire.head()
        assert status == 200
        assert b"data:" in await wire.chunk()
        assert (await owner.post("/sign-out")).status == 303
        while await wire.chunk():
            pass
    refused = await client.ask("GET", "/live/overview", headers=fields, token=None)
    assert (refused.status, refused.code) == (401, "unauthenticated")


@pytest.mark.parametrize("path", ["/v1/devices", "/v1/sessions", "/v1/limits"])
async def test_a_cookie_and_the_console_s_tokens_are_nothing_to_the_api(browser, path):
    await browser.sign_in()
    reply = await browser.get(path)
    assert (reply.status, reply.code) == (401, "unauthenticated")
    reply = await browser.client.ask("GET", path, token=OWNER_TOKEN)
    assert reply.status == 401


async def test_a_program_s_token_still_opens_pages(client, service):
    service.lent["gpu0"] = lent_device("gpu0")
    assert (await client.ask("GET", "/", token=OPERATOR)).status == 200
    refused = await client.ask("GET", "/", token=TENANT)
    assert (refused.status, refused.code) == (403, "operator_required")


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nothing", 404), ("PUT", "/", 405), ("GET", "/static/x", 404)]
)
async def test_people_get_a_page_and_programs_get_json(browser, method, path, status):
    await browser.sign_in()
    page = await browser._ask(method, path, None if method == "GET" else b"", {})
    assert page.status == status
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b"To your devices" in page.body
    assert b"/settings" in page.body
    told = await browser.client.ask(method, path, token=None)
    assert (told.status, told.headers["content-type"]) == (status, "application/json")
    if status == 405:
        assert page.headers["allow"] == told.headers["allow"] != ""


async def test_a_bug_in_a_page_is_a_page_without_its_text(browser, service):
    await browser.sign_in()

    async def broken(*_args: object) -> None:
        raise ValueError("a secret")

    service.status = broken
    page = await browser.get("/")
    assert page.status == 500
    assert b"Something went wrong in swapd" in page.body
    assert b"a secret" not in page.body


@pytest.mark.parametrize("text", ["/", "/drains", "/devices/gpu0?span=6h", "/drains/new?worker=a%20b"])
def test_an_address_of_this_console_is_gone_back_to(text):
    assert own_path(text) == text
