"""Devices, status and metrics over HTTP: for operators only (H9, H177), with the texts of R43-R70."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from swapd.device_views import DeviceEvent, SamplePoint, TakeBack
from swapd.errors import Code, SwapdError
from tests.console.client import Client
from tests.console.service_double import OPERATOR, TENANT, ServiceDouble
from tests.lent_devices import lent_device

ROUTES = [
    ("GET", "/status"),
    ("GET", "/metrics"),
    ("GET", "/v1/devices"),
    ("GET", "/v1/devices/gpu0"),
    ("POST", "/v1/devices/gpu0/take-back"),
    ("DELETE", "/v1/devices/gpu0/take-back"),
    ("GET", "/v1/devices/gpu0/samples"),
    ("GET", "/v1/devices/gpu0/events"),
]


@pytest.fixture
async def service() -> ServiceDouble:
    made = ServiceDouble()
    made.lent = {name: lent_device(name) for name in ("gpu0", "gpu1")}
    return made


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(("token", "status"), [(None, 401), ("nobody", 401), (TENANT, 403), (OPERATOR, 200)])
async def test_only_an_operator_may(
    client: Client, service: ServiceDouble, method: str, path: str, token: str | None, status: int
) -> None:
    """H9, H177"""
    reply = await client.ask(method, path, token=token)
    assert reply.status == status
    assert len(service.taken) == (1 if status == 200 and method == "POST" else 0)


async def test_the_status_shows_the_devices_as_they_are(client: Client, service: ServiceDouble) -> None:
    """R43, R65: the view, field by field; a key that is not known is absent."""
    hint = "learned load is above the calibration cap; target held at cap"
    service.lent["gpu0"] = lent_device("gpu0", hint=hint)
    status = (await client.ask("GET", "/status", token=OPERATOR)).json
    assert {
        "version",
        "ready",
        "reasons",
        "consent",
        "devices",
        "workers",
        "sessions",
        "drains",
        "switches",
    } == set(status)
    first, second = status["devices"]
    assert (first["threshold_pct"], first["hint"]) == (33.6, hint)
    assert "hint" not in second
    assert (await client.ask("GET", "/v1/devices", token=OPERATOR)).json == {"devices": [first, second]}
    assert (await client.ask("GET", "/v1/devices/gpu1", token=OPERATOR)).json == second


async def test_a_take_back_without_a_body_is_until_told(client: Client, service: ServiceDouble) -> None:
    reply = await client.ask("POST", "/v1/devices/gpu0/take-back", token=OPERATOR)
    assert (reply.status, reply.json["state"], reply.json["admitting"]) == (200, "vacating", False)
    assert service.taken == [("gpu0", TakeBack(until="told"))]
    reply = await client.ask("DELETE", "/v1/devices/gpu0/take-back", token=OPERATOR)
    assert (reply.status, reply.json["taken_back"]) == (200, None)


async def test_a_take_back_can_be_for_a_time(client: Client, service: ServiceDouble) -> None:
    reply = await client.ask("POST", "/v1/devices/gpu0/take-back", b'{"for_s": 60}', token=OPERATOR)
    assert reply.status == 200
    assert reply.json["taken_back"]["ends_at"] == 160.0


@pytest.mark.parametrize(
    "body", [b'{"for_s": 0}', b'{"until": "time"}', b'{"until": "noon"}', b'{"for_s": 60, "until": "unlock"}']
)
async def test_a_take_back_that_cannot_be_meant_is_refused(
    client: Client, service: ServiceDouble, body: bytes
) -> None:
    reply = await client.ask("POST", "/v1/devices/gpu0/take-back", body, token=OPERATOR)
    assert (reply.status, reply.code) == (422, "invalid_request")
    assert service.taken == []


@pytest.mark.parametrize(("method", "path"), [each for each in ROUTES if "gpu0" in each[1]])
async def test_a_device_that_is_not_there_is_not_found(client: Client, method: str, path: str) -> None:
    reply = await client.ask(method, path.replace("gpu0", "gpu9"), token=OPERATOR)
    assert (reply.status, reply.code) == (404, "device_unknown")


async def test_samples_are_read_from_a_time_on(client: Client, service: ServiceDouble) -> None:
    """R128"""
    service.points = [SamplePoint(float(at), "ok", "locked", 3.0, 34.0, False) for at in (10, 20)]
    reply = await client.ask("GET", "/v1/devices/gpu0/samples?since=15", token=OPERATOR)
    assert [point["at"] for point in reply.json["samples"]] == [20.0]
    assert len((await client.ask("GET", "/v1/devices/gpu0/samples", token=OPERATOR)).json["samples"]) == 2


@pytest.mark.parametrize(
    "query", ["since=", "since=soon", "since=nan", "since=-1", "since=inf", "since=1&since=2"]
)
async def test_a_time_that_is_none_is_refused(client: Client, query: str) -> None:
    reply = await client.ask("GET", f"/v1/devices/gpu0/samples?{query}", token=OPERATOR)
    assert (reply.status, reply.code) == (422, "invalid_request")


async def test_what_happened_to_a_device_can_be_read(client: Client, service: ServiceDouble) -> None:
    service.happened = [DeviceEvent(2.0, "gpu0", "free", seconds=2.1), DeviceEvent(1.0, "gpu0", "engaged")]
    reply = await client.ask("GET", "/v1/devices/gpu0/events", token=OPERATOR)
    assert [event["kind"] for event in reply.json["events"]] == ["free", "engaged"]


async def test_metrics_are_prometheus_text(client: Client) -> None:
    """H177"""
    reply = await client.ask("GET", "/metrics", token=OPERATOR)
    assert reply.headers["content-type"].startswith("text/plain; version=")
    (family,) = text_string_to_metric_families(reply.body.decode())
    assert family.name == "swapd_ready"


@pytest.mark.parametrize(("after_s", "header"), [(185.2, "186"), (0.0, "1"), (1e9, "3600"), (None, "2")])
async def test_a_refusal_because_of_devices_says_when_to_come_back(
    client: Client, service: ServiceDouble, after_s: float | None, header: str
) -> None:
    """R60: 503 with an explanation, `Retry-After` in whole seconds, and the same in the body."""
    service.refuse_with = SwapdError(Code.DEVICE_CALIBRATING, "gpu0: 23 of 60 readings", after_s)
    reply = await client.ask("POST", "/v1/sessions", b'{"prompt":"hello","max_new_tokens":5}')
    assert (reply.status, reply.code) == (503, "device_calibrating")
    assert reply.headers["retry-after"] == header
    error = reply.json["error"]
    assert error["retryable"] is True
    assert "calibration" in error["message"]
    assert "23 of 60 readings" in error["message"]
    assert error.get("retry_after_s") == (None if after_s is None else int(header))
