"""An operator drains a worker in the console: looks ahead, begins, follows every session, cancels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.checks import assert_accessible, assert_fits_phone
from tests.browser.machine import LENT, Machine
from tests.browser.visit import Visit

MIGRATION = "/v1/switches/migration"


@pytest.fixture
def machine(machine: Machine) -> Iterator[Machine]:
    """Moves are switched off, so that a drain stands still for as long as a test looks at it."""
    machine.call("PUT", MIGRATION, {"on": False})
    yield machine
    machine.call("PUT", MIGRATION, {"on": True})


def let_go(machine: Machine) -> None:
    machine.call("PUT", MIGRATION, {"on": True})


def mark(page: Page) -> None:
    """A page that is loaded anew has no mark any more."""
    page.evaluate("window.mark = 'same page'")


def assert_same(page: Page) -> None:
    assert page.evaluate("window.mark") == "same page"


def generations(machine: Machine) -> tuple[str, list[str]]:
    """Two on one worker: which it is, and their ids."""
    made = [machine.created(12_000) for _ in range(3)]
    by_worker: dict[str, list[str]] = {worker: [] for worker in LENT}
    for session in made:
        by_worker[machine.call("GET", f"/v1/sessions/{session}")["worker"]].append(session)
    worker = max(by_worker, key=lambda name: len(by_worker[name]))
    return worker, by_worker[worker]


def test_a_drain_is_foreseen_begun_and_followed_without_a_reload(visit: Visit, machine: Machine) -> None:
    """H50, H54: and whoever looks at the sessions elsewhere sees them move, too."""
    worker, sessions = generations(machine)
    other = next(name for name in LENT if name != worker)
    beside = visit.page()
    beside.goto("/sessions")
    expect(beside.locator(f"#session-{sessions[0]}")).to_contain_text("Writing")
    mark(beside)

    page = visit.page()
    page.goto("/drains")
    page.get_by_role("link", name=f"Start a drain of {worker}").click()
    ahead = page.locator("#live")
    expect(ahead).to_contain_text("Both generations would stay.")
    expect(ahead).to_contain_text("Migration is switched off (by the operator).")
    mark(page)
    let_go(machine)
    expect(ahead).to_contain_text("Both generations would move.")
    expect(ahead).to_contain_text(f"To {other}, with all it has computed.")
    assert_same(page)
    machine.call("PUT", MIGRATION, {"on": False})

    page.get_by_label("Deadline in seconds").fill("600")
    page.get_by_role("button", name="Start drain").click()
    sentence = page.locator("h1")
    expect(sentence).to_have_text(f"{len(sessions)} generations wait to leave {worker}.")
    expect(page.locator(f"#session-{sessions[0]}")).to_contain_text("Migration is switched off")
    mark(page)
    let_go(machine)
    expect(sentence).to_contain_text(f"{worker} is empty: {len(sessions)} generations left it, longest pause")
    for session in sessions:
        row = page.locator(f"#session-{session}")
        expect(row).to_contain_text("Moved")
        expect(row).to_contain_text("KiB")
        expect(beside.locator(f"#session-{session} [data-label=Where]")).to_have_text(other)
    assert_same(page)
    assert_same(beside)
    assert_accessible(page)
    assert_fits_phone(page)


def test_a_drain_is_cancelled_and_its_worker_is_open_again(visit: Visit, machine: Machine) -> None:
    """H61"""
    worker, sessions = generations(machine)
    page = visit.page()
    page.goto(f"/drains/new?worker={worker}")
    page.get_by_role("button", name="Start drain").click()
    expect(page.locator("h1")).to_contain_text(f"wait to leave {worker}")
    beside = visit.page("viewer")
    beside.goto("/drains")
    row = beside.locator(f"#worker-{worker}")
    expect(row).to_contain_text("Draining")
    expect(beside.get_by_role("button", name="Cancel the drain")).to_have_count(0)
    page.get_by_role("button", name="Cancel the drain").click()
    expect(page.locator("h1")).to_contain_text(
        f"Cancelled: 0 of {len(sessions)} generations had left {worker}"
    )
    expect(page.locator(f"#session-{sessions[0]}")).to_contain_text("Stayed")
    expect(row).to_contain_text("Ready")


def test_a_drain_behind_its_deadline_shows_what_is_in_the_way(visit: Visit, machine: Machine) -> None:
    """H58"""
    worker, sessions = generations(machine)
    drain = machine.call("POST", f"/v1/workers/{worker}/drains", {"deadline_s": 0.5})["id"]
    page = visit.page(color_scheme="dark")
    page.goto(f"/drains/{drain}")
    expect(page.locator("h1")).to_contain_text(f"{len(sessions)} generations cannot leave {worker} yet.")
    expect(page.locator(f"#session-{sessions[0]}")).to_contain_text("Cannot leave yet")
    assert_accessible(page)
    assert_fits_phone(page)


@pytest.mark.parametrize("script", [True, False], ids=["javascript", "none"])
def test_a_generation_is_ended_after_a_question(visit: Visit, machine: Machine, script: bool) -> None:
    """H3"""
    session = machine.created(12_000)
    page = visit.page(java_script_enabled=script)
    page.goto("/sessions")
    page.get_by_role("link", name=f"End {session}").click()
    page.get_by_role("link", name="Keep it").click()
    page.get_by_role("link", name=f"End {session}").click()
    page.get_by_role("button", name="End it").click()
    expect(page.locator("h1")).to_contain_text("No generation is running.")
    assert machine.call("GET", f"/v1/sessions/{session}")["state"] == "cancelled"
