"""An owner changes settings: what is wrong is said, what would change is shown, then the file is right."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.checks import assert_accessible, assert_fits_phone
from tests.browser.machine import Machine
from tests.browser.visit import PHONE, Visit


@pytest.fixture
def machine(machine: Machine) -> Iterator[Machine]:
    """Other tests start the service again with the file as it was."""
    before = machine.config.read_bytes()
    yield machine
    machine.config.write_bytes(before)


def work_of_55_pct(machine: Machine) -> None:
    """The owner's, until it has engaged pressure and is on record."""
    machine.use("desk", 55)

    def recorded() -> bool:
        # A few: by the clock of the record pressure may engage a reading later than it did.
        samples = machine.call("GET", "/v1/devices/desk/samples")["samples"]
        # Other tests have loaded this card, too.
        return sum(sample["engaged"] and sample["reading_pct"] == 55.0 for sample in samples) >= 4

    machine.until(recorded)
    machine.use("desk", 0)


@pytest.mark.parametrize("script", [True, False], ids=["javascript", "none"])
def test_a_setting_is_refused_then_previewed_then_saved(visit: Visit, machine: Machine, script: bool) -> None:
    """R40, R126: with and without JavaScript."""
    before = machine.config.read_text()
    if script:
        work_of_55_pct(machine)
    page = visit.page(java_script_enabled=script)
    page.goto("/settings")
    expect(page.locator("h1")).to_have_text("Your settings are in force.")
    threshold = page.get_by_label("Fixed threshold")
    threshold.fill("150")
    visit.allow("422")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#problem-threshold_pct")).to_have_text("! This must be between 0 and 100.")
    expect(threshold).to_be_focused()
    expect(threshold).to_have_value("150")
    if script:
        assert_accessible(page)
    assert machine.config.read_text() == before

    threshold.fill("60")
    page.get_by_label("Quiet hours", exact=True).fill("22:00-07:00")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("h1")).to_have_text("Nothing is saved yet.")
    if script:
        # What counted at 50 % would not at 60 %.
        told = page.locator(".replayed", has_text="desk").locator(".sentence").inner_text()
        found = re.search(r"(\d+) pressure events?, would be (\d+|none)", told)
        assert found is not None, told
        assert int(found[1]) > int(found[2].replace("none", "0"))
    page.get_by_text("Lines of the file that change").click()
    expect(page.locator(".diff")).to_contain_text("-threshold_pct = 50.0")
    if script:
        assert_accessible(page)
        assert_fits_phone(page)
    assert machine.config.read_text() == before

    page.get_by_role("button", name="Save for the next start").click()
    expect(page.get_by_role("status").filter(has_text="Saved to")).to_be_visible()
    expect(page.locator("h1")).to_have_text("2 settings apply when swapd next starts.")
    if script:
        assert_accessible(page)
    expect(page.locator("#now-threshold_pct")).to_contain_text("In force: 50 %")
    expect(page.locator("#now-threshold_pct")).to_contain_text("Saved: 60 %, applies at next start")
    after = machine.config.read_text()
    changed = [
        line
        for line in difflib.ndiff(before.splitlines(), after.splitlines())
        if line[0] in "+-" and line[2:]
    ]
    assert changed == ['+ quiet_hours = ["22:00-07:00"]', "- threshold_pct = 50.0", "+ threshold_pct = 60"]
    assert tomllib.loads(after)["owner"]["gpu_pressure"]["threshold_pct"] == 60
    assert machine.config.stat().st_mode & 0o777 == 0o600


def test_a_viewer_reads_the_settings(visit: Visit) -> None:
    page = visit.page("viewer", viewport=PHONE)
    page.goto("/settings")
    expect(page.locator("main")).to_contain_text("In force: 50 %")
    expect(page.get_by_role("button", name="Preview")).to_have_count(0)
    assert_accessible(page)
    assert_fits_phone(page)
