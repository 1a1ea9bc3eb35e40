"""One browser a run, a fresh profile in it a test; what a page complains of fails the test.

    def test_something(visit: Visit) -> None:
        page = visit.page()            # signed in as the owner
        page.goto("/")
        expect(page.locator("#device-desk")).to_contain_text("Lent")

Nothing here sleeps: wait for what the page shall show, with `expect` or `wait_for_function`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.machine import WAIT_S, Machine
from tests.browser.visit import Visit
from tests.devices.fake_nvml import compiler

HERE: Final = Path(__file__).resolve().parent
CHROMIUM: Final = "/usr/bin/chromium"
ARGUMENTS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-quic",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this folder, and give it the time that a busy machine takes."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("browser")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=WAIT_S * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def shared_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if compiler() is None:
        pytest.skip("the fake NVML is C, and there is no C compiler")
    machine = Machine(tmp_path_factory.mktemp("machine"))
    try:
        machine.start()
        yield machine
    finally:
        machine.close()


@pytest.fixture
def machine(shared_machine: Machine) -> Iterator[Machine]:
    """The service for all tests that leave it running: before each, both cards are lent and idle."""
    shared_machine.rest()
    yield shared_machine
    shared_machine.rest()


@pytest.fixture
def visit(browser: Browser, machine: Machine) -> Iterator[Visit]:
    """Visits to `machine` by as many people as a test wants."""
    with Visit(browser, machine) as visit:
        yield visit
