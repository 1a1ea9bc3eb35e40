"""The settings page: what is saved beside what is in force, tried out, then saved; over a real file."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest

from swapd.errors import Code, SwapdError
from tests.console.browser import Browser
from tests.console.conftest import serving
from tests.console.service_double import ServiceDouble
from tests.settings.files import GOOD, TOKEN
from tests.settings.rooms import fill, room


class SettingsService(ServiceDouble):
    """The facade's three calls, over a keeper; roles as the service has them."""

    def __init__(self, keeper):
        super().__init__()
        self.keeper = keeper

    async def settings(self, caller):
        return await self.keeper.view()

    async def preview_settings(self, caller, change):
        return await self.keeper.preview(change)

    async def save_settings(self, caller, change):
        return await self.keeper.save(change)


class Form(HTMLParser):
    """The fields of the settings form as a browser would send them, and what describes them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self.attrs: dict[str, dict[str, str | None]] = {}
        self.ids: set[str] = set()
        self.labels: set[str | None] = set()
        self._inside = False
        self._area: str | None = None
        self._select: str | None = None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if "id" in given:
            assert given["id"] not in self.ids, "an id stands twice"
            self.ids.add(given["id"])
        if tag == "form":
            self._inside = given.get("id") == "settings"
        if tag == "label":
            self.labels.add(given.get("for"))
        if not self._inside:
            return
        if "name" in given:
            self.attrs[given["name"]] = given
        if tag == "input":
            self.values[given["name"]] = given.get("value") or ""
        elif tag == "select":
            self._select = given["name"]
        elif tag == "option" and ("selected" in given or self._select not in self.values):
            self.values[self._select] = given["value"]
        elif tag == "textarea":
            self._area = given["name"]
            self.values[self._area] = ""

    def handle_data(self, data):
        if self._area is not None:
            self.values[self._area] += data

    def handle_endtag(self, tag):
        if tag == "textarea":
            # The first line end of a text area is not part of it.
            self.values[self._area] = self.values[self._area].removeprefix("\n")
            self._area = None
        if tag == "form":
            self._inside = False


def words(reply) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", reply.body.decode())))


def form(reply) -> Form:
    return Form(reply.body.decode())


@pytest.fixture
async def at(tmp_path):
    async with room(tmp_path) as made:
        yield made


@pytest.fixture
async def owner(at):
    async with serving(SettingsService(at.keeper)) as client:
        yield await Browser(client).sign_in()


async def test_the_form_says_what_the_file_says_and_what_is_in_force(owner, at):
    """R126"""
    at.path.write_text(GOOD.replace("cap_pct = 40", "cap_pct = 55"))
    reply = await owner.get("/settings")
    assert reply.status == 200
    found = form(reply)
    assert found.values["cap_pct"] == "55"
    assert found.values["ignore"] == "obs\nbeep"
    assert found.values["threshold_pct"] == ""
    text = words(reply)
    assert "1 setting applies when swapd next starts." in text
    assert "In force: 40 % Saved: 55 %, applies at next start" in text
    assert "In force: 25 % (the default)" in text
    assert "A change applies when swapd next starts" in text
    assert "The next save from here removes it." in text
    assert TOKEN not in reply.body.decode()


async def test_every_field_is_labelled_and_described(owner):
    found = form(await owner.get("/settings"))
    for name, attrs in found.attrs.items():
        if attrs.get("type") != "hidden" and name != "csrf":
            assert attrs["id"] in found.labels
            assert set(attrs["aria-describedby"].split()) <= found.ids


async def test_a_form_sent_as_it_came_changes_but_the_retired_key(owner, at):
    """R122"""
    first = form(await owner.get("/settings"))
    reply = await owner.post("/settings/preview", first.values)
    assert reply.status == 200
    assert "baseline_quantile will be removed from the file" in words(reply)
    saved = await owner.post("/settings/save", form(reply).values)
    assert (saved.status, saved.headers["location"]) == (303, "/settings?saved=1")
    assert at.path.read_text() == GOOD.replace("baseline_quantile = 0.2  # old\n", "")
    assert "Saved to" in words(await owner.get("/settings?saved=1"))


async def test_a_change_is_previewed_then_saved(owner, at):
    """R126: the preview says what changes in the file and how the last six hours would have been."""
    await fill(at, *(2.0,) * 100, *(60.0,) * 5, *(2.0,) * 100)
    values = form(await owner.get("/settings")).values | {"cap_pct": "70", "sustain_s": "120"}
    reply = await owner.post("/settings/preview", values)
    text = words(reply)
    assert "Nothing is saved yet." in text
    assert "Highest threshold (cap) 40 % 70 %" in text
    assert "cpu0 1 pressure event, would be none" in text
    assert "-cap_pct = 40 # was 50" in text
    assert "+sustain_s = 120" in text
    assert TOKEN not in reply.body.decode()
    assert at.path.read_text() == GOOD
    assert (await owner.post("/settings/save", form(reply).values)).status == 303
    pressure = at.parsed().owner.gpu_pressure
    assert (pressure.cap_pct, pressure.sustain_s) == (70.0, 120.0)


async def test_a_save_that_was_not_previewed_is_shown_first(owner, at):
    """The difference is seen before it is written, also where the form was changed after its preview."""
    values = form(await owner.get("/settings")).values | {"cap_pct": "70"}
    reply = await owner.post("/settings/save", values)
    assert reply.status == 200
    assert "Nothing is saved yet." in words(reply)
    changed = await owner.post("/settings/save", form(reply).values | {"cap_pct": "71"})
    assert changed.status == 200
    assert "Highest threshold (cap) 40 % 71 %" in words(changed)
    assert at.path.read_text() == GOOD
    assert (await owner.post("/settings/save", form(changed).values)).status == 303
    assert at.parsed().owner.gpu_pressure.cap_pct == 71.0


@pytest.mark.parametrize("path", ["/settings/preview", "/settings/save"])
async def test_what_is_wrong_is_said_beside_its_field_and_nothing_is_written(owner, at, path):
    """R40"""
    wrong = {
        "floor_pct": "50",
        "cap_pct": "45",
        "quiet_hours": "at night",
        "always": "<script>alert(1)</script>/",
    }
    reply = await owner.post(path, form(await owner.get("/settings")).values | wrong)
    assert reply.status == 422
    assert b"<script>alert" not in reply.body
    text = words(reply)
    assert "The cap must not be below the floor, 50." in text
    assert "'at night' is no time span" in text
    found = form(reply)
    assert {name: found.values[name] for name in wrong} == wrong
    for name in ("cap_pct", "quiet_hours", "always"):
        attrs = found.attrs[name]
        assert attrs["aria-invalid"] == "true"
        assert f"problem-{name}" in attrs["aria-describedby"].split()
        assert f"problem-{name}" in found.ids
    assert "aria-invalid" not in found.attrs["floor_pct"]
    assert [name for name, attrs in found.attrs.items() if "autofocus" in attrs] == ["quiet_hours"]
    assert at.path.read_text() == GOOD


async def test_a_fixed_threshold_out_of_range_is_refused_and_floor_and_cap_are_not(owner, at):
    """D7"""
    values = form(await owner.get("/settings")).values
    values |= {"mode": "fixed", "threshold_pct": "101", "floor_pct": "95", "cap_pct": "20"}
    reply = await owner.post("/settings/preview", values)
    assert [name for name, attrs in form(reply).attrs.items() if "aria-invalid" in attrs] == ["threshold_pct"]
    assert (await owner.post("/settings/preview", values | {"threshold_pct": "97"})).status == 200


async def test_a_file_that_was_changed_meanwhile_is_shown_with_what_was_entered(owner, at):
    values = form(await owner.get("/settings")).values | {"cap_pct": "70"}
    at.path.write_text(GOOD.replace('"beep"', '"boop"'))
    reply = await owner.post("/settings/preview", values)
    assert reply.status == 409
    assert "changed meanwhile" in words(reply)
    found = form(reply)
    assert found.values["cap_pct"] == "70"
    again = await owner.post("/settings/preview", found.values)
    assert "Highest threshold (cap) 40 % 70 %" in words(again)


async def test_a_file_that_cannot_be_written_says_so_and_has_no_form(owner, at):
    at.path.chmod(0o444)
    text = words(await owner.get("/settings"))
    assert "read-only for this service (mode 0444)" in text
    assert "Your settings cannot be changed from here." in text
    at.path.write_text("[")
    reply = await owner.get("/settings")
    assert "not valid TOML" in words(reply)
    assert form(reply).values == {}


async def test_a_viewer_reads_and_cannot_save(at):
    async with serving(SettingsService(at.keeper)) as client:
        viewer = await Browser(client).sign_in("viewer")
        reply = await viewer.get("/settings")
        assert reply.status == 200
        assert form(reply).values == {}
        assert "In force: 40 %" in words(reply)
        digest = (await at.keeper.view()).digest
        assert digest not in reply.body.decode()
        for path in ("/settings/preview", "/settings/save"):
            assert (await viewer.post(path, {"digest": digest, "cap_pct": "70"})).status == 403
    assert at.path.read_text() == GOOD


async def test_a_form_from_elsewhere_is_refused(owner, at):
    values = form(await owner.get("/settings")).values
    assert (await owner.post("/settings/save", values | {"csrf": "x" * 32})).status == 403
    assert at.path.read_text() == GOOD


async def test_a_disk_that_fails_is_told_with_the_form_kept(owner, at, monkeypatch):
    reply = await owner.post(
        "/settings/preview", form(await owner.get("/settings")).values | {"cap_pct": "70"}
    )

    def full(path, text, digest):
        raise SwapdError(Code.SETTINGS_NOT_WRITTEN, "No space left on device")

    monkeypatch.setattr("swapd.settings.keeper.replace", full)
    refused = await owner.post("/settings/save", form(reply).values)
    assert refused.status == 409
    assert "No space left on device" in words(refused)
    assert form(refused).values["cap_pct"] == "70"


async def test_an_unknown_field_is_refused(owner):
    reply = await owner.post("/settings/preview", form(await owner.get("/settings")).values | {"port": "1"})
    assert reply.status == 422
    assert "there is no setting 'port' here" in words(reply)
