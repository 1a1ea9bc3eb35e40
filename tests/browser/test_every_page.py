"""What holds for every page of the console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from console.pages.layout import NAVIGATION
from tests.browser.checks import Scheme, assert_accessible, assert_fits_phone, assert_light, picture, show_in
from tests.browser.machine import CARDS, Machine
from tests.browser.past import give_past
from tests.browser.visit import DESK, PHONE, Visit


class Shown(NamedTuple):
    """A page: what its picture is called, where it is, and what is on it once it is whole."""

    name: str
    path: str
    whole: str
    role: str | None = "owner"


PAGES = [
    Shown("sign-in", "/sign-in", "Sign in to your machine", role=None),
    Shown("overview", "/", "desk"),
    Shown("device", "/devices/desk", "NVIDIA Fake 4090"),
    Shown("sessions", "/sessions", "Writing"),
    Shown("session-end", "/sessions/{session}/end", "Keep it"),
    Shown("drains", "/drains", "For operators"),
    Shown("drain-ahead", "/drains/new?worker=a", "If it began now"),
    Shown("drain", "/drains/{drain}", "Moved"),
    Shown("settings", "/settings", "How the threshold is learned"),
    Shown("report", "/away?since=day", "all devices together"),
    Shown("diagnostics", "/diagnostics", "The latest log lines"),
]


class Busy(NamedTuple):
    """A machine with something to see on every page, and the names of some of it."""

    machine: Machine
    names: dict[str, str]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Busy]:
    machine = Machine(tmp_path_factory.mktemp("busy"), 'mode = "calibrated"')
    try:
        give_past(machine)
        machine.start()
        machine.use("desk", 11)
        machine.until(lambda: machine.is_lent(*CARDS))
        moved = machine.generation("desk")
        drain = machine.call("POST", "/v1/workers/a/drains", {})["id"]
        machine.until(lambda: machine.call("GET", f"/v1/drains/{drain}")["state"] == "drained")
        machine.generation("desk")
        yield Busy(machine, {"session": moved, "drain": drain})
    finally:
        machine.close()


@contextmanager
def opened(browser: Browser, busy: Busy, shown: Shown, **options: object) -> Iterator[Page]:
    with Visit(browser, busy.machine) as visit:
        page = visit.page(shown.role, **options)
        page.goto(shown.path.format(**busy.names))
        expect(page.locator("main")).to_contain_text(shown.whole)
        yield page


def test_every_page_that_the_navigation_names_is_here() -> None:
    assert {entry.path for entry in NAVIGATION} <= {shown.path.partition("?")[0] for shown in PAGES}


@pytest.mark.parametrize("shown", PAGES, ids=lambda shown: shown.name)
def test_a_page_is_for_everybody(
    browser: Browser, busy: Busy, shown: Shown, request: pytest.FixtureRequest
) -> None:
    """Light of weight; axe-core, in both schemes; usable on a phone. `--screenshots` keeps what it saw."""
    schemes: tuple[Scheme, ...] = ("light", "dark")
    with opened(browser, busy, shown) as page:
        assert_light(page)
        for scheme in schemes:
            show_in(page, scheme)
            assert_accessible(page)
            if request.config.getoption("--screenshots"):
                picture(page, f"{shown.name}-{scheme}")
        page.set_viewport_size(PHONE)
        assert_fits_phone(page)
        assert_accessible(page)


@pytest.mark.parametrize("shown", PAGES, ids=lambda shown: shown.name)
def test_a_page_is_read_without_javascript(browser: Browser, busy: Busy, shown: Shown) -> None:
    with opened(browser, busy, shown, java_script_enabled=False) as page:
        expect(page.locator("h1")).to_be_visible()


def test_the_checks_can_fail(browser: Browser, busy: Busy, tmp_path: Path) -> None:
    """Each of them, for a page that somebody has spoilt."""
    with opened(browser, busy, PAGES[1]) as page:
        page.evaluate("document.querySelector('main').style.minWidth = '800px'")
        with pytest.raises(AssertionError, match=r"8\d\d"):
            assert_fits_phone(page)
        page.evaluate("document.querySelector('main').style.minWidth = ''")
        page.evaluate(
            "document.querySelector('button').style.cssText = 'min-height: 0; padding: 0; font-size: 8px'"
        )
        with pytest.raises(AssertionError, match="button"):
            assert_fits_phone(page)
        page.evaluate("document.querySelector('button').innerHTML = ''")
        with pytest.raises(AssertionError, match="button-name"):
            assert_accessible(page)
        page.evaluate("document.documentElement.lang = ''")
        with pytest.raises(AssertionError, match="html-has-lang"):
            assert_accessible(page)
        assert picture(page, "spoilt", tmp_path).stat().st_size > 1000


def test_what_a_page_complains_of_fails_its_visit(browser: Browser, busy: Busy) -> None:
    visit = Visit(browser, busy.machine)
    page = visit.page(viewport=DESK)
    page.goto("/nothing-here")
    page.evaluate("console.error('spoilt')")
    page.evaluate("fetch('https://example.invalid/').catch(() => null)")
    told = "\n".join(visit.complaints())
    for part in ("status 404", "spoilt", "Content Security Policy"):
        assert part in told
    visit.allow("nothing-here|404|spoilt|example.invalid")
    assert visit.complaints() == []
    with visit:
        pass
