"""Switches, quarantine and the report of a start over HTTP: for operators only."""

from __future__ import annotations

import msgspec
import pytest

from tests.certify.made import certificate
from tests.console.client import Client
from tests.console.service_double import OPERATOR, TENANT, ServiceDouble

ROUTES = [
    ("GET", "/v1/switches", None),
    ("PUT", "/v1/switches/admission", {"on": False}),
    ("PUT", "/v1/switches/migration", {"on": False}),
    ("DELETE", "/v1/workers/a/quarantine", None),
    ("GET", "/v1/reconciliation", None),
    ("GET", "/v1/plans", None),
    ("POST", f"/v1/certificates/{certificate('fp').id}/revoke", None),
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
    assert not service.plans.revoked or status == 200


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
        ("/v1/certificates/cuda_release:sha256:1:0/revoke", None, 404, "certificate_unknown"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    client: Client, path: str, body: object, status: int, code: str
) -> None:
    method = "PUT" if body is not None else "POST" if path.endswith("/revoke") else "DELETE"
    reply = await client.ask(method, path, token=OPERATOR, body=encoded(body))
    assert (reply.status, reply.json["error"]["code"]) == (status, code)


async def test_plans_tell_each_way_and_a_revocation_takes_it_away(
    client: Client, service: ServiceDouble
) -> None:
    """H132, H137, A14: the same again is answered the same."""
    plans = (await client.ask("GET", "/v1/plans", token=OPERATOR)).json
    name = service.plans.known.id
    assert plans["edges"][0] == {
        "edge": {"source": "a", "target": "b"},
        "basis": "evaluated",
        "certificate": name,
        "expires_at": float(service.plans.known.expires_at),
    }
    assert plans["transfer"] == {"kind": "arena", "bytes": 64 << 20, "page_locked": True, "refusal": None}
    assert (plans["migration_enabled"], plans["certification_refusals"], plans["no_target"]) == (
        True,
        [],
        False,
    )
    for _ in range(2):
        reply = await client.ask("POST", f"/v1/certificates/{name}/revoke", token=OPERATOR)
        assert (reply.status, reply.json) == (200, {"certificate": name, "revoked_at": 100.0})
    plans = (await client.ask("GET", "/v1/plans", token=OPERATOR)).json
    assert plans["edges"] == []
    assert [(each["edge"], each["code"]) for each in plans["certification_refusals"]] == [
        ({"source": "a", "target": "b"}, "revoked"),
        ({"source": "b", "target": "a"}, "revoked"),
    ]
