"""What a hostile page, peer, name or file could try at the console, over real sockets.

The routes are those of the application: a page that comes later is attacked as well.
"""

from __future__ import annotations

import logging
import re
from contextlib import asynccontextmanager
from urllib.parse import quote, urljoin, urlsplit

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from console.app import create_app
from console.forms import MAX_FIELDS, MAX_FORM_BYTES
from console.pages.sign_in import own_path
from console.visitors import COOKIE, SECURE_COOKIE
from swapd.config import LimitConfig
from swapd.signin.attempts import FREE_TRIES
from swapd.views import Caller
from tests.console.browser import HTML, Browser
from tests.console.client import Client
from tests.console.conftest import serving
from tests.console.hostile import ATTACK, HostileService, Markup
from tests.console.service_double import ServiceDouble
from tests.lent_devices import lent_device
from tests.signin.memory import OWNER_TOKEN

OPERATORS = Caller("ops", True)
NAMES = {
    "device": "gpu0",
    "name": "gpu0",
    "worker": "a",
    "drain": "d1",
    "session": "s0",
    "page": "overview",
    "switch": "admission",
}
OPEN = {"/healthz", "/readyz", "/sign-in", "/static/<path:name>"}
FOR_PROGRAMS = {"/status", "/metrics"}
FOR_BOTH_ROLES = {"/sign-out"}


def console_routes(method: str) -> list[str]:
    """Rules of the application that are for people: all but the API's."""
    app = create_app(ServiceDouble(), LimitConfig())
    return sorted(
        rule.rule
        for rule in app.url_map.iter_rules()
        if method in (rule.methods or ()) and not rule.rule.startswith("/v1/") and not rule.websocket
    )


def address(rule: str, **names: str) -> str:
    return re.sub(r"<(?:\w+:)?(\w+)>", lambda match: quote((NAMES | names)[match[1]], safe=""), rule)


ACTIONS = [rule for rule in console_routes("POST") if rule != "/sign-in"]
OWNER_ACTIONS = [rule for rule in ACTIONS if rule not in FOR_BOTH_ROLES]
VIEWS = [rule for rule in console_routes("GET") if rule not in OPEN | FOR_PROGRAMS]
PAGES = [rule for rule in VIEWS if not rule.startswith("/live/")]


@pytest.fixture
async def owner(client: Client, service: ServiceDouble) -> Browser:
    service.lent["gpu0"] = lent_device("gpu0")
    service.add("s0", "ops")
    return await Browser(client).sign_in()


def did_nothing(service: ServiceDouble) -> bool:
    return not service.taken and not service.drains_started and not service.cleared


# Other sites' pages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "null"},
    ],
)
async def test_a_form_of_another_site_is_refused_even_with_the_right_token(owner, service, headers):
    for rule in ACTIONS:
        reply = await owner.post(address(rule), headers=headers)
        assert (reply.status, b"origin_refused" in reply.body) == (403, True), rule
    assert did_nothing(service)
    assert (await owner.get("/")).status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:9999", "null", "http://[::1"])
async def test_a_browser_that_tells_only_the_origin_is_understood(owner, service, origin):
    """Where there is no https, browsers send no Sec-Fetch-Site."""
    body = f"csrf={owner.csrf}".encode()
    cookie = f"{COOKIE}={owner.cookies[COOKIE]}"
    fields = {"Origin": origin, "Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
    reply = await owner.client.ask("POST", "/devices/gpu0/take-back", body, fields, token=None)
    assert (reply.status, reply.code) == (403, "origin_refused")
    assert did_nothing(service)


async def test_a_form_without_its_token_or_with_another_s_is_refused(owner, service):
    """The token of each sign-in is another one, the same person's included."""
    other = await Browser(owner.client).sign_in()
    assert other.csrf != owner.csrf
    for rule in ACTIONS:
        for token in ("", other.csrf, owner.csrf[:-1], owner.csrf + "0", owner.csrf.upper(), "é"):
            reply = await owner.post(address(rule), {"csrf": token})
            assert (reply.status, b"csrf_refused" in reply.body) == (403, True), (rule, token)
    assert did_nothing(service)
    assert (await owner.get("/")).status == 200


async def test_a_form_in_another_shape_is_refused(owner, service):
    """Multipart and plain text are what a form of another site could send without asking."""
    for rule in [*ACTIONS, "/sign-in"]:
        for shape in ("multipart/form-data; boundary=x", "text/plain", "application/json", ""):
            reply = await owner.post(address(rule), headers={"Content-Type": shape})
            assert reply.status == 415, (rule, shape)
    assert did_nothing(service)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", ""])
async def test_a_name_that_is_not_ours_gets_nothing(owner, host):
    """DNS rebinding: the name is the attacker's, the address is ours."""
    for rule in [*VIEWS, "/sign-in", "/static/<path:name>"]:
        accept = "text/event-stream" if rule.startswith("/live/") else HTML
        headers = {"Host": host, "Accept": accept}
        reply = await owner.get(address(rule, name="console.css"), headers)
        assert reply.status == 421, rule
        assert b"gpu0" not in reply.body
    reply = await owner.post("/sign-in", {"key": OWNER_TOKEN}, {"Host": host})
    assert reply.status == 421
    assert "set-cookie" not in reply.headers


# Who may what ----------------------------------------------------------------------------------


async def test_a_stranger_sees_nothing(client):
    for rule in VIEWS:
        told = await client.ask("GET", address(rule), token=None)
        assert (told.status, told.code) == (401, "unauthenticated"), rule
        if rule in PAGES:
            page = await Browser(client).get(address(rule))
            assert page.status == 303, rule
            assert page.headers["location"].startswith("/sign-in?next=/"), rule


async def test_a_stranger_does_nothing(client, service):
    for rule in ACTIONS:
        reply = await Browser(client).post(address(rule))
        assert (reply.status, reply.headers["location"]) == (303, "/sign-in?next=/"), rule
    assert did_nothing(service)


async def test_a_viewer_does_nothing(client, service):
    service.lent["gpu0"] = lent_device("gpu0")
    viewer = await Browser(client).sign_in("viewer")
    for rule in OWNER_ACTIONS:
        reply = await viewer.post(address(rule))
        assert (reply.status, b"operator_required" in reply.body) == (403, True), rule
    assert did_nothing(service)


# Tokens and cookies ----------------------------------------------------------------------------


async def test_guessing_is_looked_at_a_few_times_and_then_not_at_all(client):
    """Many at once are no way around it; meanwhile the owner comes in from elsewhere, and by a link."""
    statuses: list[int] = []

    async def guess(number: int) -> None:
        reply = await Browser(client).post("/sign-in", {"key": f"guess-{number}"})
        statuses.append(reply.status)

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(guess, number)
    assert sorted(statuses) == [401] * FREE_TRIES + [429] * (60 - FREE_TRIES)
    assert (await Browser(client).post("/sign-in", {"key": OWNER_TOKEN})).status == 429
    assert (await Browser(From("127.0.0.2", client)).post("/sign-in", {"key": OWNER_TOKEN})).status == 303


class From(Client):
    """The same client at another address of this machine."""

    def __init__(self, source: str, client: Client) -> None:
        super().__init__(client.port)
        self.source = source

    @asynccontextmanager
    async def wire(self):
        from tests.console.client import WAIT_S, Wire

        with trio.fail_after(WAIT_S):
            socket = trio.socket.socket()
            await socket.bind((self.source, 0))
            await socket.connect(("127.0.0.1", self.port))
            async with trio.SocketStream(socket) as stream:
                yield Wire(stream)


async def test_a_link_comes_in_while_its_own_address_has_to_wait(client, service):
    for number in range(FREE_TRIES + 1):
        await Browser(client).post("/sign-in", {"key": f"guess-{number}"})
    code = service.door.link(OPERATORS, "owner").url.partition("#")[2]
    assert (await Browser(client).post("/sign-in", {"key": code})).status == 303


async def test_a_cookie_that_was_there_before_is_not_the_one_after(client):
    """Session fixation."""
    planted = "planted-by-somebody-else-0123456789abcdefghi"
    browser = Browser(client)
    browser.cookies[COOKIE] = planted
    await browser.sign_in()
    assert browser.cookies[COOKIE] != planted
    stranger = Browser(client)
    stranger.cookies[COOKIE] = planted
    assert (await stranger.get("/")).status == 303


async def test_signing_in_again_ends_the_sign_in_before(client):
    browser = await Browser(client).sign_in()
    before = browser.cookies[COOKIE]
    await browser.sign_in("viewer")
    browser.cookies[COOKIE] = before
    assert (await browser.get("/")).status == 303


async def test_a_changed_cookie_is_nobody_s(owner):
    good = owner.cookies[COOKIE]
    for header in (
        f"{COOKIE}={good[:-1]}",
        f"{COOKIE}={good}x",
        f"{COOKIE}={good.swapcase()}",
        f"{COOKIE}=",
        f"{COOKIE}={'x' * 4000}",
        f"{COOKIE}=\xe9\xff",
        f"{COOKIE}={good}; {COOKIE}=another",
        f"{SECURE_COOKIE}=another; {COOKIE}={good}",
        f"other={good}",
        ";;;===;",
    ):
        reply = await owner.get("/", {"Cookie": header})
        assert reply.status == 303, header
    assert (await owner.get("/", {"Cookie": f"a=b; {COOKIE}={good}; c=d"})).status == 200


async def test_nothing_of_a_code_a_token_or_a_cookie_is_in_a_log_or_an_answer(client, service, caplog):
    with caplog.at_level(logging.DEBUG):
        code = service.door.link(OPERATORS, "owner").url.partition("#")[2]
        browser = Browser(client)
        replies = [
            await browser.post("/sign-in", {"key": key, "next": "/?from=here"})
            for key in (code, code, OWNER_TOKEN, "wrong-secret-of-somebody")
        ]
        replies.append(await browser.get("/"))
    written = "".join(f"{record.__dict__}" for record in caplog.records)
    for secret in (code, OWNER_TOKEN, "wrong-secret", browser.cookies[COOKIE]):
        assert secret not in written
        assert all(secret.encode() not in reply.body for reply in replies)


# Forms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["/sign-in", "/devices/<device>/take-back"])
async def test_a_form_is_bounded(owner, rule):
    path = address(rule)
    assert (await owner.post(path, {"key": "x" * MAX_FORM_BYTES})).status == 413
    assert (await owner.post(path, {"key": "x" * (2 << 20)})).status == 413
    fields = {f"field{number}": "x" for number in range(MAX_FIELDS + 1)}
    assert (await owner.post(path, fields)).status == 422
    assert await owner.client.alive()


@pytest.mark.parametrize("body", [b"csrf=%ff%fe", b"\xff\xfe", b"key=\x00", b"=" * 50, b"&" * 50])
async def test_a_form_that_cannot_be_read_is_refused(owner, body):
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    reply = await owner._ask("POST", "/devices/gpu0/take-back", body, headers)
    assert reply.status in (403, 422)
    assert await owner.client.alive()


# Addresses -------------------------------------------------------------------------------------

ELSEWHERE = [
    "//evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "https://evil.example/",
    "http:evil.example",
    "javascript:alert(1)",
    "/\t/evil.example",
    "/\n/evil.example",
    " //evil.example",
    "/sign-out",
    "/sign-in?next=/sign-in",
    "",
    "evil.example",
    "/é",
    "/" + "x" * 600,
    '/"><script>',
]


async def test_after_signing_in_one_stays_here(client):
    """No open redirect."""
    for text in ELSEWHERE:
        page = await Browser(client).get(f"/sign-in?next={quote(text)}")
        assert b'name="next" value="/"' in page.body, text
        reply = await Browser(client).post("/sign-in", {"key": OWNER_TOKEN, "next": text})
        assert (reply.status, reply.headers["location"]) == (303, "/"), text


@given(st.text(alphabet="/\\:.@?#%&=abhtps\t\r\n \x00\x7féj", max_size=30))
def test_wherever_one_is_sent_is_this_console(text: str) -> None:
    to = own_path(text)
    assert urlsplit(urljoin("http://console/", to)).netloc == "console"
    assert re.fullmatch(r"/([^/\\\s#][^\\\s#]*)?", to)


TRICKS = [
    "/static/../pyproject.toml",
    "/static/%2e%2e/pyproject.toml",
    "/static/..%2fpyproject.toml",
    "/static/..%5cpyproject.toml",
    "/static/..\\pyproject.toml",
    "/static/%252e%252e/pyproject.toml",
    "/static/vendor/../../pyproject.toml",
    "/static/....//pyproject.toml",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/etc/passwd",
    "/static/file:///etc/passwd",
    "/static/console.css%00.js",
    "/static/console.css%00",
    "/static/console.css/",
    "/static/CONSOLE.CSS",
    "/static/./console.css",
    "/static/vendor",
    "/static/vendor/",
    "/static/",
    "/static",
    "/static/.gitignore",
    "/static/%c0%ae%c0%ae/pyproject.toml",
    "/static/%u002e%u002e/pyproject.toml",
]


async def test_a_path_leads_to_a_file_of_the_list_or_nowhere(client):
    for path in TRICKS:
        reply = await client.ask("GET", path, token=None)
        assert reply.status == 404, path
        assert b"[project]" not in reply.body
        assert b"root:" not in reply.body


# What stands on pages --------------------------------------------------------------------------


async def test_no_text_of_anybody_becomes_markup():
    """Names of devices, models, programs and sessions, and reasons that a driver or a peer gave."""
    async with serving(HostileService()) as client:  # type: ignore[arg-type]
        owner = await Browser(client).sign_in()
        for rule in PAGES:
            reply = await owner.get(address(rule, device=ATTACK, name=ATTACK))
            assert reply.status in (200, 303, 404), (rule, reply.status)
            assert "sign-in" not in reply.headers.get("location", ""), rule
            assert Markup(reply.body.decode()).found == [], rule


async def test_a_hostile_name_is_shown_as_it_is(client, service):
    service.lent["gpu0"] = lent_device("gpu0", sentence=ATTACK)
    page = await (await Browser(client).sign_in()).get("/")
    assert b"&lt;script&gt;alert(1)&lt;/script&gt;" in page.body
    assert Markup(page.body.decode()).found == []


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 200), ("/sign-in", 200), ("/nothing", 404), ("/static/console.css", 200), ("/v1/devices", 401)],
)
async def test_every_answer_is_under_a_strict_policy(owner, path, status):
    reply = await owner.get(path)
    assert reply.status == status
    policy = dict(part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        "connect-src": "'self'",
        "form-action": "'self'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "same-origin"
    assert reply.headers["cross-origin-opener-policy"] == "same-origin"
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"
    assert "geolocation=()" in reply.headers["permissions-policy"]
    if not path.startswith("/static/"):
        assert reply.headers["cache-control"] == "no-store"
