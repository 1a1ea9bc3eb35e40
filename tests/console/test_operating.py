"""Switches, quarantine and the report of a start over HTTP: for operators only."""

from __future__ import annotations

import msgspec
import pytest

from tests.console.client import Client
from tests.console.service_double import OPERATOR, TENANT, ServiceDouble

ROUTES = [
    ("GET", "/v1/switches", None),
    ("PUT", "/v1/switches/admission", {"on": False}),
    ("PUT", "/v1/switches/migration", {"on": False}),
    ("DELETE", "/v1/workers/a/quarantine", None),
    ("GET", "/v1/reconciliation", None),
]


def encoded(body: object) -> bytes | None:
    return None if body is None else msgspec.json.encode(body)


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
@pytest.mark.parametrize(("token", "status"), [(None, 401), (TENANT, 403), (OPERATOR, 200)])
async def test_only_an_operator_may(
    client: Client,
    service: ServiceDouble,
    method: str,
    path: str,
    body: object,
    token: str | None,
    status: int,
) -> None:
    """H9"""
    reply = await client.ask(method, path, token=token, body=encoded(body))
    assert reply.status == status
    assert (service.switches_view.admission and service.switches_view.migration) or status == 200


async def test_a_switch_is_turned_by_its_name_and_shown(client: Client) -> None:
    """H163, A13"""
    off = await client.ask("PUT", "/v1/switches/admission", token=OPERATOR, body=b'{"on": false}')
    assert (off.json["admission"], off.json["admission_off_since"], off.json["migration"]) == (
        False,
        100.0,
        True,
    )
    assert (await client.ask("GET", "/v1/switches", token=OPERATOR)).json == off.json
    assert (await client.ask("GET", "/status", token=OPERATOR)).json["switches"] == off.json
    on = await client.ask("PUT", "/v1/switches/admission", token=OPERATOR, body=b'{"on": true}')
    assert (on.json["admission"], on.json["admission_off_since"]) == (True, None)


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/switches/everything", {"on": False}, 404, "not_found"),
        ("/v1/switches/admission", {}, 422, "invalid_request"),
        ("/v1/switches/admission", {"on": "no"}, 422, "invalid_request"),
        ("/v1/switches/admission", {"on": False, "for_s": 3}, 422, "invalid_request"),
        ("/v1/workers/zz/quarantine", None, 404, "worker_unknown"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    client: Client, path: str, body: object, status: int, code: str
) -> None:
    method = "PUT" if body is not None else "DELETE"
    reply = await client.ask(method, path, token=OPERATOR, body=encoded(body))
    assert (reply.status, reply.json["error"]["code"]) == (status, code)
