"""Devices as they change before their owner's eyes, without a reload."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.machine import Machine
from tests.browser.visit import Visit


def marked(page: Page) -> Page:
    """The page, recognisable as long as it is not loaded anew."""
    page.evaluate("window.sameDocument = true")
    return page


def same(page: Page) -> bool:
    return bool(page.evaluate("window.sameDocument === true"))


def test_the_owners_work_takes_the_card_and_the_generation_moves(visit: Visit, machine: Machine) -> None:
    """B17, R5: the reading, the verdict, the move and the return are all seen as they happen."""
    session = machine.generation("desk")
    page = visit.page()
    page.goto("/")
    desk, attic = page.locator("#device-desk"), page.locator("#device-attic")
    expect(desk).to_contain_text("1 generation running on it")
    expect(attic).to_contain_text("idle, waiting for work")
    marked(page)
    machine.use("desk", 83)
    expect(desk.locator(".number")).to_have_text("83%")
    expect(desk.locator(".tag")).to_contain_text("Yours")
    expect(desk).to_contain_text(re.compile(r"owner load 83 % ≥ 50 %", re.IGNORECASE))
    expect(desk).to_contain_text(re.compile(r"free in [0-9.]+ s"))
    expect(attic).to_contain_text("1 generation running on it")
    assert machine.where(session) == "attic"
    machine.use("desk", 0)
    expect(desk.locator(".tag")).to_contain_text("Lent")
    assert same(page)


def test_the_owner_takes_a_card_back_and_everybody_sees_it(visit: Visit, machine: Machine) -> None:
    """B17: by one button, for as long as was chosen; another's browser is in step; lent again by a button."""
    session = machine.generation("attic")
    owner, viewer = visit.page(), visit.page("viewer")
    for page in (owner, viewer):
        page.goto("/")
        expect(page.locator("#device-attic")).to_contain_text("1 generation running on it")
    marked(viewer)
    card = owner.locator("#device-attic")
    card.get_by_label("How long to keep attic").select_option("for an hour")
    card.get_by_role("button", name="Take back now").click()
    for page in (owner, viewer):
        expect(page.locator("#device-attic .tag")).to_contain_text("Yours")
        expect(page.locator("#device-attic")).to_contain_text("Yours until")
        expect(page.locator("#device-desk")).to_contain_text("1 generation running on it")
    assert machine.where(session) == "desk"
    assert machine.device("attic")["taken_back"]["until"] == "time"
    card.get_by_role("button", name="Lend again").click()
    for page in (owner, viewer):
        expect(page.locator("#device-attic .tag")).to_contain_text("Lent")
    assert same(viewer)


def test_what_the_owner_has_chosen_stays_while_the_page_moves_on(visit: Visit, machine: Machine) -> None:
    """A part that comes in anew takes neither the choice nor the focus from a person who is choosing."""
    page = visit.page()
    page.goto("/")
    choice = page.locator("#device-desk").get_by_label("How long to keep desk")
    choice.select_option("for 4 hours")
    choice.focus()
    machine.use("desk", 31)
    expect(page.locator("#device-desk .number")).to_have_text("31%")
    expect(choice).to_have_value("14400")
    expect(choice).to_be_focused()


def test_a_lost_connection_is_shown_and_recovers(visit: Visit, machine: Machine) -> None:
    """The service is killed and started again: the page says so, since when, and goes on by itself."""
    page = visit.page()
    page.goto("/")
    expect(page.locator("#device-desk .tag")).to_contain_text("Lent")
    # Its stream must be open: one that finds nobody at first is another matter than one that breaks off.
    machine.use("desk", 14)
    expect(page.locator("#device-desk .number")).to_have_text("14%")
    marked(page)
    # Both sides of it: the stream that broke off, and those that found nobody. A page's icon is fetched late.
    visit.allow(r"/live/|htmx:sse:error|/swapd\.svg")
    machine.kill()
    expect(page.locator("#connection")).to_contain_text("Connection lost")
    expect(page.locator("#connection-since")).to_contain_text(re.compile(r"\d\d:\d\d:\d\d"))
    machine.start()
    expect(page.locator("#connection")).to_be_hidden()
    machine.use("desk", 12)
    expect(page.locator("#device-desk .number")).to_have_text("12%")
    assert same(page)


@pytest.mark.parametrize("late", ["htmx.min.js", "hx-sse.min.js", "console.js"])
def test_a_page_lives_in_whatever_order_its_scripts_arrive(visit: Visit, machine: Machine, late: str) -> None:
    page = visit.page()

    def hold_back(route: Route) -> None:
        # Until the others have come and have begun without it: nothing tells that they have.
        page.wait_for_timeout(500)
        route.continue_()

    page.route(f"**/{late}*", hold_back)
    page.goto("/")
    machine.use("attic", 21)
    expect(page.locator("#device-attic .number")).to_have_text("21%")


CALIBRATED = 'mode = "calibrated"\nwarmup_samples = 80'
"""Four a second: a slow browser must have opened its page before they are complete."""


@pytest.fixture
def learning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    machine = Machine(tmp_path_factory.mktemp("learning"), CALIBRATED)
    try:
        machine.launch()
        yield machine
    finally:
        machine.close()


def test_calibration_is_seen_to_go_on_until_the_card_is_lent(browser: Browser, learning: Machine) -> None:
    """R41: how many readings of how many; then the threshold that was learned."""
    with Visit(browser, learning) as visit:
        page = visit.page()
        page.goto("/")
        marked(page)
        bar = page.locator("#learning-desk")
        expect(page.locator("#device-desk .tag")).to_contain_text("Learning")
        first = int(bar.get_attribute("value") or 0)
        page.wait_for_function("before => document.querySelector('#learning-desk').value > before", arg=first)
        expect(page.locator("#device-desk .tag")).to_contain_text("Lent")
        expect(page.locator("#device-desk .threshold")).to_contain_text("Threshold 25%")
        assert same(page)


def test_a_devices_page_draws_its_load_and_goes_on(visit: Visit, machine: Machine) -> None:
    """The plot over the last six hours can be read off; the numbers beside it live; events are told."""
    page = visit.page()
    page.goto("/")
    page.get_by_role("link", name="attic").click()
    expect(page.locator("#load canvas")).to_be_visible()
    marked(page)
    machine.use("attic", 77)
    expect(page.locator(".device-now .number")).to_have_text("77%")
    expect(page.locator(".title .tag")).to_contain_text("Yours")
    machine.use("attic", 0)
    expect(page.locator(".title .tag")).to_contain_text("Lent")
    assert same(page)
    expect(page.locator("#load canvas")).to_be_visible()
