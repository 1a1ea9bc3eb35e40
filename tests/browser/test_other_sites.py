"""Coming in without a script and from other sites; and what another site can do to who is signed in."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect

from swapd.ops.client import ask
from swapd.views import Role
from tests.browser.machine import Machine
from tests.browser.visit import Visit


def link(machine: Machine, role: Role = "owner") -> str:
    return ask(machine.deployment.folder / "s", lambda ops: ops.console_link(role)).url


def test_without_javascript_one_copies_the_code(visit: Visit) -> None:
    page = visit.page(None, java_script_enabled=False)
    page.goto("/diagnostics")
    page.get_by_label("Code from a link, or your token").fill(link(visit.machine, "viewer").partition("#")[2])
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{visit.machine.url}/diagnostics")
    expect(page.locator("header.top")).to_contain_text("Viewer")


def test_who_is_signed_in_and_comes_from_another_site_goes_on_with_one_click(visit: Visit) -> None:
    """No other site's link brings the cookie along, so the first answer is the sign-in."""
    page = visit.page()
    page.goto(f"data:text/html,<a href='{visit.machine.url}/diagnostics'>there</a>")
    page.get_by_text("there").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to your machine.")
    page.get_by_role("link", name="Go on").click()
    expect(page).to_have_url(f"{visit.machine.url}/diagnostics")


@pytest.mark.parametrize("role", ["owner", "viewer"])
def test_another_site_s_form_changes_nothing(visit: Visit, role: Role) -> None:
    visit.allow("403")
    page = visit.page(role)
    page.goto(
        f"data:text/html,<form method=post action='{visit.machine.url}/devices/desk/take-back'>"
        "<input name=for value=told><button>win a prize</button></form>"
    )
    with page.expect_response(re.compile("take-back")) as answer:
        page.get_by_text("win a prize").click()
    assert answer.value.status == 403
    expect(page.get_by_role("heading", level=1)).to_have_text("That is not allowed.")
    assert visit.machine.device("desk")["taken_back"] is None


def test_another_site_cannot_show_the_console_in_a_frame(visit: Visit) -> None:
    visit.allow("frame|ancestors|ERR_BLOCKED|X-Frame|favicon|404")
    page = visit.page()
    with site(f"<iframe src='{visit.machine.url}/sign-in'></iframe>") as address:
        page.goto(address)
        page.wait_for_function("() => window.frames.length === 1")
        page.frames[1].wait_for_load_state()
        # A frame that was refused shows the browser's own page instead.
        assert page.frames[1].url == "chrome-error://chromewebdata/"


@contextmanager
def site(html: str) -> Iterator[str]:
    """A page of another site: `localhost` is another name than the console's, and so another site."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_signing_out_everywhere_leads_every_open_page_to_the_sign_in(visit: Visit) -> None:
    """The other browser need not do anything: its stream ends, and it asks."""
    visit.allow("401")
    watching = visit.page("viewer")
    watching.goto("/")
    expect(watching.locator("main")).to_contain_text("desk")
    owner = visit.page()
    owner.goto("/sign-in")
    owner.get_by_role("button", name="Sign out every browser").click()
    for page in (owner, watching):
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to your machine.")
