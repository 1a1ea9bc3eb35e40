"""Addresses of routes: made when somebody asks, and then right."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import quote, unquote

import pytest
from werkzeug.routing import Rule

from console.app import create_app
from swapd.config import LimitConfig


def test_a_console_comes_up_without_compiling_what_makes_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*_: object) -> None:
        raise AssertionError("an address was asked for")

    monkeypatch.setattr(Rule, "_get_func_code", compiled)
    app = create_app(cast(Any, None), LimitConfig())
    endpoint, values = app.url_map.bind("localhost").match("/devices/a b/take-back", "POST")
    assert (endpoint, values) == ("POST /devices/<device>/take-back", {"device": "a b"})


def test_an_address_that_is_asked_for_is_made() -> None:
    routes = create_app(cast(Any, None), LimitConfig()).url_map.bind("localhost")
    for device in ("a b", "desk"):
        built = routes.build("POST /devices/<device>/take-back", {"device": device})
        assert built == f"/devices/{quote(device)}/take-back"
        assert routes.match(unquote(built), "POST") == (
            "POST /devices/<device>/take-back",
            {"device": device},
        )
    assert routes.build("GET /devices/<device>", {"device": "desk", "x": 1}) == "/devices/desk?x=1"
