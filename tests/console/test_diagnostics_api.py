"""How the service is over HTTP: for operators only; the archive as a download."""

from __future__ import annotations

import pytest

from tests.console.client import Client
from tests.console.service_double import OPERATOR, TENANT, ServiceDouble

ROUTES = [
    ("GET", "/v1/diagnostics", None),
    ("GET", "/v1/diagnostics/archive", None),
    ("PUT", "/v1/diagnostics/debug", b'{"for_s": 60}'),
]


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
@pytest.mark.parametrize(("token", "status"), [(None, 401), (TENANT, 403), (OPERATOR, 200)])
async def test_only_an_operator_may(
    client: Client,
    service: ServiceDouble,
    method: str,
    path: str,
    body: bytes | None,
    token: str | None,
    status: int,
) -> None:
    """H9"""
    assert (await client.ask(method, path, token=token, body=body)).status == status
    assert (not service.exports and not service.logged_for) or status == 200


async def test_the_archive_is_a_download_and_its_file_is_closed(
    client: Client, service: ServiceDouble
) -> None:
    """R128"""
    reply = await client.ask("GET", "/v1/diagnostics/archive", token=OPERATOR)
    assert reply.body == service.archive
    assert reply.headers["content-type"] == "application/zip"
    assert reply.headers["content-length"] == str(len(service.archive))
    assert reply.headers["content-disposition"].startswith('attachment; filename="swapd-diagnostics-')
    assert [file.closed for file in service.exports] == [True]


async def test_the_debug_window_has_a_limit(client: Client) -> None:
    """R129"""
    opened = await client.ask("PUT", "/v1/diagnostics/debug", token=OPERATOR, body=b'{"for_s": 60}')
    assert opened.json["is_open"] is True
    assert (await client.ask("GET", "/v1/diagnostics", token=OPERATOR)).json["debug"] == opened.json
    for body in (b'{"for_s": 1e9}', b"{}", b'{"for_s": "60"}', b'{"for_s": 1, "x": 1}'):
        assert (await client.ask("PUT", "/v1/diagnostics/debug", token=OPERATOR, body=body)).status == 422
