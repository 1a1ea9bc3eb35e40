"""What holds for every page of the console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.checks import assert_accessible, assert_fits_phone, assert_light, picture
from tests.browser.machine import Machine
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
    Shown("drains", "/drains", "For operators"),
    Shown("drain-ahead", "/drains/new?worker=a", "If it began now"),
    Shown("settings", "/settings", "How the threshold is learned"),
    Shown("report", "/away?since=day", "all devices together"),
    Shown("diagnostics", "/diagnostics", "The latest log lines"),
]


@pytest.fixture(scope="module")
def busy(shared_machine: Machine) -> Iterator[Machine]:
    """The machine with something to see on every page."""
    shared_machine.rest()
    shared_machine.generation("desk")
    shared_machine.generation("attic")
    shared_machine.use("desk", 17)
    shared_machine.until(lambda: shared_machine.device("desk")["reading_pct"] == 17.0)
    yield shared_machine
    shared_machine.rest()


@contextmanager
def opened(browser: Browser, busy: Machine, shown: Shown, **options: object) -> Iterator[Page]:
    with Visit(browser, busy) as visit:
        page = visit.page(shown.role, **options)
        page.goto(shown.path)
        expect(page.locator("main")).to_contain_text(shown.whole)
        yield page


@pytest.mark.parametrize("shown", PAGES, ids=lambda shown: shown.name)
def test_a_page_is_for_everybody(
    browser: Browser, busy: Machine, shown: Shown, request: pytest.FixtureRequest
) -> None:
    """Light of weight; axe-core, in both schemes; usable on a phone. `--screenshots` keeps what it saw."""
    with opened(browser, busy, shown, color_scheme="light") as page:
        assert_light(page)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert_accessible(page)
            if request.config.getoption("--screenshots"):
                picture(page, f"{shown.name}-{scheme}")
        page.set_viewport_size(PHONE)
        assert_fits_phone(page)
        assert_accessible(page)


@pytest.mark.parametrize("shown", PAGES, ids=lambda shown: shown.name)
def test_a_page_is_read_without_javascript(browser: Browser, busy: Machine, shown: Shown) -> None:
    with opened(browser, busy, shown, java_script_enabled=False) as page:
        expect(page.locator("h1")).to_be_visible()


def test_the_checks_can_fail(browser: Browser, busy: Machine, tmp_path: Path) -> None:
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


def test_what_a_page_complains_of_fails_its_visit(browser: Browser, busy: Machine) -> None:
    visit = Visit(browser, busy)
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
