"""The frame of all pages: self-contained, strict, and made of vendored files that are what they say."""

from __future__ import annotations

import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from console.pages.layout import folder
from tests.console.service_double import OPERATOR
from tests.lent_devices import lent_device

VENDORS = (folder("static") / "vendor", Path(__file__).resolve().parents[1] / "browser" / "vendor")
LISTED = re.compile(r"^\| `([^`]+)` \|.*\| `([0-9a-f]{64})` \|$", re.MULTILINE)


PAGES = (
    "/",
    "/devices/a",
    "/sessions",
    "/drains",
    "/drains/new?worker=a",
    "/drains/d1",
    "/away",
    "/diagnostics",
    "/settings",
)


class Loads(HTMLParser):
    """What a page would load, and what a strict policy forbids in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "link"):
            self.addresses += [value for key in ("src", "href") if (value := given.get(key))]
        if tag == "style" or (tag == "script" and not given.get("src")):
            self.inline.append(tag)
        self.inline += [key for key in given if key == "style" or key.startswith(("on", "hx-on"))]


async def page(client, path):
    reply = await client.ask("GET", path, token=OPERATOR)
    assert reply.status == 200
    return reply


@pytest.mark.parametrize("path", [*PAGES, "/sign-in"])
async def test_a_page_loads_only_files_of_its_own(client, service, path):
    """Works without the internet, under a policy without inline script or style."""
    service.lent = {"a": lent_device("a")}
    reply = await page(client, path)
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert reply.headers["cache-control"] == "no-store"
    loads = Loads(reply.body.decode())
    assert loads.inline == []
    assert loads.addresses
    for address in loads.addresses:
        assert address.startswith("/static/")
        assert (await client.ask("GET", address, token=None)).status == 200


def test_each_block_of_the_style_sheet_is_closed_before_the_next_section():
    """A brace that a merge loses would hide all that follows from wide screens."""
    depth = 0
    for line in (folder("static") / "console.css").read_text().splitlines():
        assert depth == 0 or not line.startswith("/* "), line
        depth += line.count("{") - line.count("}")
    assert depth == 0


@pytest.mark.parametrize("vendor", VENDORS, ids=["served", "for tests"])
def test_the_vendored_files_are_what_their_list_says(vendor):
    listed = LISTED.findall((vendor / "README.md").read_text())
    assert {name for name, _ in listed} == {
        path.name for path in vendor.iterdir() if path.suffix in (".js", ".css")
    }
    for name, digest in listed:
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest, name


async def test_a_page_whose_service_was_away_finds_it_within_seconds(client):
    """The extension's own longest pause between two tries is a minute."""
    text = (await client.ask("GET", "/", token=OPERATOR)).body.decode()
    (config,) = re.findall(r"<meta name=\"htmx-config\" content='(.+)'>", text)
    assert json.loads(config)["sse"]["reconnectMaxDelay"] <= 5000
