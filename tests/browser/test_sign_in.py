"""The first way in: a link from the machine's terminal, opened in a browser."""

from __future__ import annotations

import subprocess
import sys

from playwright.sync_api import expect

from tests.browser.machine import WAIT_S, Machine
from tests.browser.visit import Visit
from tests.e2e.deployment import REPO

REFUSED = r"status 401: POST .*/sign-in|console error: .* 401 "


def link(machine: Machine, *options: str) -> str:
    """What the command prints."""
    command = [sys.executable, "-m", "swapd", "console-link", "--config", str(machine.config), *options]
    made = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True, timeout=WAIT_S)
    return made.stdout.strip()


def test_a_link_signs_one_browser_in_once(visit: Visit, machine: Machine) -> None:
    """Opened, one button, and the devices are there; a second browser needs a link of its own."""
    address = link(machine)
    page = visit.page(role=None)
    page.goto(address)
    expect(page.get_by_text("Your link is good for this one browser")).to_be_visible()
    # Neither the history nor whoever looks over the shoulder has the code.
    assert "#" not in page.url
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#device-desk")).to_contain_text("Lent")
    [cookie] = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""

    visit.allow(REFUSED)
    other = visit.page(role=None)
    other.goto(address)
    other.get_by_role("button", name="Sign in").click()
    expect(other.get_by_role("alert")).to_be_visible()
    other.goto("/")
    expect(other.get_by_role("heading", name="Sign in to your machine")).to_be_visible()

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in to your machine")).to_be_visible()
    page.go_back()
    expect(page.locator("#device-desk")).to_have_count(0)


def test_who_was_sent_to_the_door_comes_to_the_page_they_asked_for(visit: Visit, machine: Machine) -> None:
    """With a token, typed in; a wrong one is refused with a sentence."""
    visit.allow(REFUSED)
    page = visit.page(role=None)
    page.goto("/devices/desk")
    page.get_by_label("Code from a link, or your token").fill("not-the-token-of-anybody")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Code from a link, or your token").fill(machine.key())
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{machine.url}/devices/desk")


def test_a_viewer_sees_everything_and_is_offered_nothing_to_do(visit: Visit) -> None:
    page = visit.page("viewer")
    page.goto("/")
    expect(page.locator("#device-desk")).to_contain_text("Lent")
    expect(page.get_by_role("button", name="Take back now")).to_have_count(0)
