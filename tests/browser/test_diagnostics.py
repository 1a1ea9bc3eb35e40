"""What an owner sends to whoever helps them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.machine import Machine
from tests.browser.visit import Visit
from tests.e2e.deployment import OTHER, TENANT, TOKEN


def test_the_archive_is_downloaded_and_holds_what_it_says(
    visit: Visit, machine: Machine, tmp_path: Path
) -> None:
    """Every file that its README names can be read, the devices are in it, and nobody's secrets are."""
    machine.generation("desk")
    page = visit.page()
    page.goto("/diagnostics")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download").click()
    assert downloading.value.suggested_filename.endswith(".zip")
    downloading.value.save_as(tmp_path / "archive.zip")
    with zipfile.ZipFile(tmp_path / "archive.zip") as archive:
        assert archive.testzip() is None
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    (readme,) = [text for name, text in texts.items() if name.rsplit("/", 1)[-1].startswith("README")]
    for name, text in texts.items():
        folder, _, file = name.rpartition("/")
        assert file in readme or (folder and f"{folder}/" in readme) or "README" in file, (name, readme)
        if name.endswith(".json"):
            json.loads(text)
    whole = "\n".join(texts.values())
    assert all(name in whole for name in ("desk", "attic", "NVIDIA Fake 4090"))
    secrets = (TOKEN, TENANT, OTHER, machine.key("owner"), machine.key("viewer"))
    assert not [secret for secret in secrets if secret in whole]
    expect(page.get_by_role("heading", name="The latest log lines")).to_be_visible()


def test_every_decision_is_logged_before_the_owners_eyes_for_as_long_as_asked(
    visit: Visit, machine: Machine
) -> None:
    page = visit.page()
    page.goto("/diagnostics")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("That ends by itself")).to_be_visible()
    page.evaluate("window.sameDocument = true")
    machine.use("desk", 37)
    expect(page.locator(".log")).to_contain_text("37")
    assert page.evaluate("window.sameDocument")
    page.get_by_role("button", name="Stop now").click()
    expect(page.get_by_role("button", name="Start")).to_be_visible()
