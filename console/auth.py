"""Who is calling, and from which page.

A bearer token names the caller. Browsers send requests on behalf of any page, so the Host is checked
against DNS rebinding, and unsafe methods and WebSockets against calls from other sites
(Sec-Fetch-Site, else Origin).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from werkzeug.datastructures import Headers

from swapd.api import Service
from swapd.errors import Code, SwapdError
from swapd.views import Caller

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
SUBPROTOCOL: Final = "swapd.v1"
BEARER_SUBPROTOCOL: Final = "bearer."
"""A browser cannot set a header on a WebSocket: it offers `swapd.v1` and `bearer.<token>` instead."""


def caller(service: Service, headers: Headers, subprotocols: Sequence[str] = ()) -> Caller:
    """Who sent this request. Raises `unauthenticated` (H9)."""
    token = _bearer(headers)
    if token is None:
        offered = [name for name in subprotocols if name.startswith(BEARER_SUBPROTOCOL)]
        token = offered[0].removeprefix(BEARER_SUBPROTOCOL) if len(offered) == 1 else None
    # Comparing in constant time takes ASCII or bytes only; nothing else can be a token.
    if token is not None and not token.isascii():
        token = None
    return service.authenticate(token)


def operator(service: Service, headers: Headers) -> Caller:
    """The operator who sent this request. Raises `unauthenticated`, `operator_required` (H9)."""
    who = caller(service, headers)
    if not who.is_operator:
        raise SwapdError(Code.OPERATOR_REQUIRED)
    return who


def _bearer(headers: Headers) -> str | None:
    values = headers.getlist("Authorization")
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token else None


def check_host(headers: Headers, names: frozenset[str]) -> None:
    """Refuse a Host that a hostile DNS name could bring. Raises `host_refused`.

    Addresses cannot be rebound, loopback names are ours, `names` are the configured ones (lower case).
    """
    hosts = headers.getlist("Host")
    name = _host_name(hosts[0]) if len(hosts) == 1 else None
    if name is None or not (name in names or name == "localhost" or _is_address(name)):
        raise SwapdError(Code.HOST_REFUSED)


def check_origin(headers: Headers, method: str, *, is_websocket: bool = False) -> None:
    """Refuse what another site's page sent. Raises `origin_refused`. Programs send neither header."""
    if method in SAFE_METHODS and not is_websocket:
        return
    site = headers.get("Sec-Fetch-Site")
    origin = headers.get("Origin")
    if site is not None and site not in ("same-origin", "none"):
        raise SwapdError(Code.ORIGIN_REFUSED)
    if site is None and origin is not None and _authority(origin) != headers.get("Host", "").lower():
        raise SwapdError(Code.ORIGIN_REFUSED)


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _host_name(host: str) -> str | None:
    """The name in a Host header, without port and brackets; None when it cannot be one."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc != host or "@" in host or parts.hostname is None:
        return None
    return parts.hostname.rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
