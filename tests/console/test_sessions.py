"""Starting, looking at and ending sessions, and every bad request that HTTP refuses itself."""

import logging

import pytest

from swapd.errors import Code, SwapdError
from swapd.views import Readiness
from tests.console.service_double import OPERATOR, OTHER

GOOD = b'{"prompt":"hello","max_new_tokens":5}'
MIB = 1 << 20


def padded(size: int) -> bytes:
    """A valid body of exactly `size` bytes."""
    frame = b'{"max_new_tokens":5,"prompt":""}'
    return frame[:-2] + b"a" * (size - len(frame)) + frame[-2:]


async def test_a_valid_body_gives_201_and_the_sessions_address(client, service):
    """H1"""
    reply = await client.ask("POST", "/v1/sessions", GOOD)
    assert reply.status == 201
    assert {"id", "state", "cursor"} <= reply.json.keys()
    assert reply.headers["location"] == f"/v1/sessions/{reply.json['id']}"
    assert service.asked[0].prompt == "hello"


async def test_replay_is_not_allowed_unless_asked_for(client, service):
    """H7"""
    await client.ask("POST", "/v1/sessions", GOOD)
    await client.ask("POST", "/v1/sessions", GOOD[:-1] + b',"allow_replay_fallback":true}')
    assert [asked.allow_replay_fallback for asked in service.asked] == [False, True]
    for wrong in (b'"yes"', b"1", b"null"):
        reply = await client.ask(
            "POST", "/v1/sessions", GOOD[:-1] + b',"allow_replay_fallback":' + wrong + b"}"
        )
        assert reply.status == 422


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1.0", "true", '"5"', "null", "[]", "9" * 400, "1e999"])
async def test_a_budget_that_is_not_a_whole_number_above_zero_is_refused(client, service, value):
    """H5"""
    body = b'{"prompt":"hello","max_new_tokens":%s}' % value.encode()
    reply = await client.ask("POST", "/v1/sessions", body)
    assert (reply.status, reply.code) == (422, "invalid_request")
    assert not service.asked


async def test_a_missing_budget_is_named(client):
    """H5"""
    reply = await client.ask("POST", "/v1/sessions", b'{"prompt":"hello"}')
    assert reply.status == 422
    assert "max_new_tokens" in reply.json["error"]["message"]


async def test_an_empty_prompt_is_refused(client):
    for prompt in (b'""', b"[]"):
        reply = await client.ask("POST", "/v1/sessions", b'{"prompt":%s,"max_new_tokens":5}' % prompt)
        assert (reply.status, reply.code) == (422, "prompt_empty")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"hello",
        b'{"prompt":"a","max_new_tokens":1} x',
        b'{"prompt":"a","max_new_tokens":1,"temperature":NaN}',
        b'{"prompt":"a","max_new_tokens":1,"temperature":Infinity}',
        b'{"prompt":"\xff\xfe","max_new_tokens":1}',
        b'{"prompt":"\\ud800","max_new_tokens":1}',
    ],
)
async def test_what_is_not_json_is_malformed(client, body):
    reply = await client.ask("POST", "/v1/sessions", body)
    assert (reply.status, reply.code) == (400, "malformed_json")


@pytest.mark.parametrize(
    "field",
    [
        *("response_format", "guided_json", "guided_regex", "grammar", "structured_outputs", "json_schema"),
        *("logprobs", "top_logprobs", "logit_bias", "n", "best_of", "bad_words"),
    ],
)
async def test_what_needs_state_that_no_snapshot_carries_is_refused_by_name(client, service, field):
    """H89: there is no grammar state to move, because nobody gets one: refused, never silently left out."""
    body = b'{"prompt":"a","max_new_tokens":1,"%s":1}' % field.encode()
    reply = await client.ask("POST", "/v1/sessions", body)
    assert (reply.status, reply.code) == (422, "invalid_request")
    assert f"unknown field `{field}`" in reply.json["error"]["message"]
    assert service.asked == []


@pytest.mark.parametrize("begin", [b"[", b'{"prompt":[', b'{"a":[', b'{"prompt":"a","stop":['])
async def test_deep_nesting_is_refused_and_harms_nothing(client, begin):
    reply = await client.ask("POST", "/v1/sessions", begin + b"[" * 500_000)
    assert reply.status in (400, 422)
    assert await client.alive()


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_another_content_type_is_refused(client, kind):
    reply = await client.ask("POST", "/v1/sessions", GOOD, {"Content-Type": kind})
    assert (reply.status, reply.code) == (415, "unsupported_media_type")


async def test_a_charset_beside_json_is_fine(client):
    reply = await client.ask(
        "POST", "/v1/sessions", GOOD, {"Content-Type": "application/json; charset=utf-8"}
    )
    assert reply.status == 201


async def test_an_error_names_the_path_and_never_the_value(client):
    secret = "zebra-in-the-prompt"
    bodies = [
        f'{{"prompt":"{secret}","max_new_tokens":"{secret}"}}',
        f'{{"prompt":"a","max_new_tokens":1,"on_disconnect":"{secret}"}}',
        f'{{"prompt":"a","max_new_tokens":1,"{secret} is a key":1}}',
        f'{{"prompt":"{secret}","max_new_tokens":1,"temperature":77}}',
        f'{{"prompt":"{secret}',
    ]
    for body in bodies:
        reply = await client.ask("POST", "/v1/sessions", body.encode())
        assert reply.status in (400, 422)
        assert secret.encode() not in reply.body
    reply = await client.ask("POST", "/v1/sessions", b'{"prompt":"a","max_new_tokens":1,"stop":["x",5]}')
    assert "$.stop[1]" in reply.json["error"]["message"]


async def test_a_body_of_exactly_the_limit_is_accepted(client, service):
    """H8, H168"""
    reply = await client.ask("POST", "/v1/sessions", padded(MIB))
    assert reply.status == 201
    assert len(service.asked) == 1


async def test_one_byte_over_the_limit_is_refused_before_it_is_sent(client, service):
    """H8: the answer comes while the client has sent only the head."""
    fields = {"Content-Type": "application/json", "Content-Length": str(MIB + 1)}
    async with client.wire() as wire:
        await wire.stream.send_all(client.head("POST", "/v1/sessions", fields))
        reply = await wire.reply()
    assert (reply.status, reply.code) == (413, "body_too_large")
    assert not service.asked


@pytest.mark.parametrize(("size", "status"), [(MIB, 201), (MIB + 1, 413)])
async def test_the_limit_holds_for_chunks_without_a_length(client, size, status):
    """H8"""
    body = padded(size)
    async with client.wire() as wire:
        head = client.head(
            "POST", "/v1/sessions", {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        )
        await wire.stream.send_all(head)
        for begin in range(0, size, 50_000):
            piece = body[begin : begin + 50_000]
            await wire.stream.send_all(b"%x\r\n%s\r\n" % (len(piece), piece))
        if status == 201:
            await wire.stream.send_all(b"0\r\n\r\n")
        # Over the limit the end of the body is never sent, and the answer comes all the same.
        assert (await wire.reply()).status == status


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"Authorization": "Bearer nobody"},
        {"Authorization": "Basic dGVuYW50"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer t\xf6ken"},
        {"Authorization": "tenant-token"},
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/sessions", "/v1/sessions/s0", "/v1/workers", "/v1/drains/d1", "/v1/limits"]
)
async def test_without_a_known_token_everything_is_401(client, service, fields, path):
    """H9"""
    service.add("s0")
    reply = await client.ask("GET", path, headers=fields, token=None)
    assert (reply.status, reply.code) == (401, "unauthenticated")
    assert reply.headers["www-authenticate"] == "Bearer"


async def test_a_token_in_the_address_is_not_taken(client, service):
    service.add("s0")
    reply = await client.ask("GET", "/v1/sessions/s0?token=tenant-token", token=None)
    assert reply.status == 401


async def test_the_token_is_checked_before_the_body_is_read(client):
    fields = {"Content-Type": "application/json", "Content-Length": "100000"}
    async with client.wire() as wire:
        await wire.stream.send_all(client.head("POST", "/v1/sessions", fields, token="nobody"))
        assert (await wire.reply()).status == 401


@pytest.mark.parametrize(
    ("method", "suffix"), [("GET", ""), ("DELETE", ""), ("GET", "/events"), ("GET", "/events?after=3")]
)
async def test_another_namespaces_session_looks_exactly_like_none(client, service, method, suffix):
    """H9"""
    service.add("mine", tokens=2)
    foreign = await client.ask(method, f"/v1/sessions/mine{suffix}", token=OTHER)
    missing = await client.ask(method, f"/v1/sessions/none{suffix}", token=OTHER)
    assert foreign.status == missing.status == 404
    assert foreign.body == missing.body
    assert service.known["mine"].state == "running"


async def test_a_session_shows_its_state_owner_and_cursor(client, service):
    """H10"""
    service.add("s0", tokens=4)
    view = (await client.ask("GET", "/v1/sessions/s0")).json
    assert (view["state"], view["worker"], view["epoch"], view["accepted"], view["cursor"]) == (
        "running", "a", 1, 4, 4,
    )  # fmt: skip
    assert {"finish_reason", "code"} <= view.keys()


async def test_the_list_holds_the_callers_own(client, service):
    service.add("mine")
    service.add("theirs", namespace="u")
    listed = (await client.ask("GET", "/v1/sessions")).json["sessions"]
    assert [view["id"] for view in listed] == ["mine"]


async def test_cancelling_twice_answers_the_same(client, service):
    """H3"""
    service.add("s0", tokens=2)
    first = await client.ask("DELETE", "/v1/sessions/s0")
    second = await client.ask("DELETE", "/v1/sessions/s0")
    assert first.status == second.status == 200
    assert first.body == second.body
    assert first.json["state"] == "cancelled"


async def test_an_unknown_model_is_404(client, service):
    """H4"""
    service.refuse_with = SwapdError(Code.MODEL_UNKNOWN)
    reply = await client.ask("POST", "/v1/sessions", GOOD)
    assert (reply.status, reply.code) == (404, "model_unknown")


@pytest.mark.parametrize(
    ("code", "status"),
    [(Code.CAPACITY, 429), (Code.NO_ADMITTING_WORKER, 503), (Code.NOT_READY, 503), (Code.STOPPING, 503)],
)
async def test_refusals_for_now_say_when_to_come_back(client, service, code, status):
    """H41, H44, H45"""
    service.refuse_with = SwapdError(code)
    reply = await client.ask("POST", "/v1/sessions", GOOD)
    assert (reply.status, reply.code) == (status, code)
    assert reply.json["error"]["retryable"] is True
    assert int(reply.headers["retry-after"]) > 0


async def test_an_internal_error_is_logged_by_type_only(client, service, caplog):
    """H183"""
    secret = "zebra-in-the-prompt"
    service.break_with = ValueError(secret)
    with caplog.at_level(logging.DEBUG):
        reply = await client.ask("POST", "/v1/sessions", GOOD)
    assert (reply.status, reply.code) == (500, "internal")
    assert secret.encode() not in reply.body
    assert secret not in caplog.text
    assert [record.error_type for record in caplog.records if hasattr(record, "error_type")] == ["ValueError"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/v1", 404, "not_found"),
        ("GET", "/v1/sessions/", 404, "not_found"),
        ("GET", "/v1//sessions", 404, "not_found"),
        ("GET", "/static/../pyproject.toml", 404, "not_found"),
        ("GET", "/static/%2e%2e/pyproject.toml", 404, "not_found"),
        ("PUT", "/v1/sessions", 405, "method_not_allowed"),
        ("BREW", "/v1/sessions", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
    ],
)
async def test_unknown_addresses_and_methods_answer_in_the_same_form(client, method, path, status, code):
    reply = await client.ask(method, path, b"" if method in ("PUT", "POST") else None)
    assert (reply.status, reply.code) == (status, code)
    assert set(reply.json["error"]) == {"code", "message", "retryable"}
    if status == 405:
        assert "GET" in reply.headers["allow"]


async def test_a_body_where_none_belongs_is_refused(client):
    reply = await client.ask("GET", "/v1/sessions", b"{}")
    assert (reply.status, reply.code) == (422, "invalid_request")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("localhost:81", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("10.1.2.3", 200),
        ("evil.example", 421), ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421),
        ("127.0.0.1@evil.example", 421), ("localhost:x", 421), ("", 421), ("[", 421), ("LOCALHOST", 200),
    ],
)  # fmt: skip
async def test_only_names_that_are_ours_are_answered(client, host, status):
    reply = await client.ask("GET", "/healthz", headers={"Host": host})
    assert reply.status == status


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 201),
        ({"Sec-Fetch-Site": "none"}, 201),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({}, 201),
    ],
)
async def test_pages_of_other_sites_cannot_start_sessions(client, fields, status):
    assert (await client.ask("POST", "/v1/sessions", GOOD, fields)).status == status


async def test_health_needs_no_token_and_no_readiness(client, service):
    service.ready = Readiness(False, ("store_failed",))
    assert (await client.ask("GET", "/healthz", token=None)).status == 200


async def test_readiness_tells_its_reasons(client, service):
    """H45"""
    assert (await client.ask("GET", "/readyz", token=None)).json == {"ready": True, "reasons": []}
    service.ready = Readiness(False, ("reconciling",))
    reply = await client.ask("GET", "/readyz", token=None)
    assert (reply.status, reply.code, reply.json["reasons"]) == (503, "not_ready", ["reconciling"])
    assert "retry-after" in reply.headers


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/workers"), ("POST", "/v1/workers/a/drains"), ("GET", "/v1/drains"),
     ("GET", "/v1/drains/d1"), ("DELETE", "/v1/drains/d1")],
)  # fmt: skip
async def test_operator_calls_refuse_a_tenant(client, service, method, path):
    """H9"""
    body = b"" if method == "POST" else None
    reply = await client.ask(method, path, body)
    assert (reply.status, reply.code) == (403, "operator_required")
    assert not service.drains_started
    assert (await client.ask(method, path, body, token=OPERATOR)).status in (200, 202)


async def test_a_drain_is_accepted_with_its_address(client, service):
    """H50"""
    reply = await client.ask("POST", "/v1/workers/a/drains", b'{"deadline_s":9}', token=OPERATOR)
    assert reply.status == 202
    assert reply.headers["location"] == "/v1/drains/d1"
    assert service.drains_started == [("a", 9.0, "operator")]
    again = await client.ask("POST", "/v1/workers/a/drains", b"", token=OPERATOR)
    assert (again.status, again.code) == (409, "drain_exists")
    assert "d1" in again.json["error"]["message"]
    unknown = await client.ask("POST", "/v1/workers/none/drains", b"", token=OPERATOR)
    assert (unknown.status, unknown.code) == (404, "worker_unknown")


@pytest.mark.parametrize(
    ("body", "status"),
    [(b'{"deadline_s":0}', 422), (b'{"deadline_s":-1}', 422), (b'{"deadline_s":1e300}', 422), (b"[]", 422),
     (b'{"origin":"nobody"}', 422), (b'{"x":1}', 422), (b"{", 400), (b"{}", 202),
     (b'{"origin":"shutdown"}', 202), (b'{"reason":"a new driver"}', 202), (b'{"reason":1}', 422),
     (b'{"reason":"a\\nb"}', 422), (b'{"reason":"%s"}' % (b"x" * 201), 422)],
)  # fmt: skip
async def test_a_drains_body_is_checked(client, body, status):
    assert (await client.ask("POST", "/v1/workers/a/drains", body, token=OPERATOR)).status == status


async def test_several_workers_are_drained_by_one_call(client, service):
    """B16: with the words and the deadline for each."""
    body = b'{"workers":["a"],"deadline_s":9,"reason":"a new driver","origin":"shutdown"}'
    reply = await client.ask("POST", "/v1/drains", body, token=OPERATOR)
    assert (reply.status, [view["id"] for view in reply.json["drains"]]) == (202, ["d1"])
    assert service.drains_started == [("a", 9.0, "shutdown")]
    assert service.reasons_started == ["a new driver"]
    tenant = await client.ask("POST", "/v1/drains", body)
    assert (tenant.status, tenant.code) == (403, "operator_required")
    for wrong, status in ((b"{}", 422), (b'{"workers":"a"}', 422), (b'{"workers":["a"],"x":1}', 422)):
        assert (await client.ask("POST", "/v1/drains", wrong, token=OPERATOR)).status == status


async def test_a_dry_run_says_what_would_become_of_each_and_begins_nothing(client, service):
    body = b'{"dry_run": true, "mode": "park"}'
    reply = await client.ask("POST", "/v1/workers/a/drains", body, token=OPERATOR)
    assert (reply.status, reply.json["worker"], reply.json["mode"]) == (200, "a", "park")
    told = [each["would"] for each in reply.json["sessions"]]
    assert told == [each.would for each in service.ahead.sessions]
    assert service.drains_started == []
    missing = await client.ask("POST", "/v1/workers/none/drains", body, token=OPERATOR)
    assert (missing.status, missing.code) == (404, "worker_unknown")


async def test_a_drain_shows_one_outcome_a_session(client):
    """H54"""
    view = (await client.ask("GET", "/v1/drains/d1", token=OPERATOR)).json
    (outcome,) = view["sessions"]
    assert {"session", "outcome", "reason", "phase", "frozen_ms", "frozen_bytes", "reuse"} <= outcome.keys()
    missing = await client.ask("GET", "/v1/drains/none", token=OPERATOR)
    assert (missing.status, missing.code) == (404, "drain_unknown")
    assert (await client.ask("DELETE", "/v1/drains/d1", token=OPERATOR)).status == 200


async def test_the_limits_are_shown(client):
    """H176"""
    assert (await client.ask("GET", "/v1/limits")).json["max_body_bytes"] == MIB
