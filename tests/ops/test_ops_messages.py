"""A frame on the ops socket is read exactly as written, or refused with a code."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swapd.errors import Code, SwapdError
from swapd.messages.ops import commands, frames
from swapd.views import NewSession

COMMANDS: list[commands.OpsCommand] = [
    commands.Ping(),
    commands.Status(),
    commands.Workers(),
    commands.Sessions(),
    commands.Session("ses_1"),
    commands.CreateSession(NewSession(prompt=[1, 2], max_new_tokens=3)),
    commands.CancelSession("ses_1"),
    commands.Events("ses_1", 4),
    commands.StartDrain("a", 5.0),
    commands.StartDrain("a", None, "park"),
    commands.StartDrain("a", reason="a new driver"),
    commands.StartDrains(("a", "b"), 5.0, "park", "a new driver"),
    commands.Drain("drn_1"),
    commands.Drains(),
    commands.CancelDrain("drn_1"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_command_survives_the_wire(command: commands.OpsCommand) -> None:
    request = frames.decode_request(frames.encode_request(7, command))
    assert (request.id, request.body) == (7, command)


@pytest.mark.parametrize(
    ("frame", "code", "request_id"),
    [
        (b"", Code.FRAME_MALFORMED, 0),
        (b"{", Code.FRAME_MALFORMED, 0),
        (b"\xff\xfe", Code.FRAME_MALFORMED, 0),
        (b"[1]", Code.FRAME_MALFORMED, 0),
        (b'{"v": "1", "id": 3, "body": {"type": "ping"}}', Code.FRAME_MALFORMED, 0),
        (b'{"v": 2, "id": 3, "body": {"type": "new"}}', Code.VERSION_UNSUPPORTED, 3),
        (b'{"v": 1, "id": 3, "body": {"type": "reboot"}}', Code.FRAME_MALFORMED, 3),
        (b'{"v": 1, "id": 3, "body": {"type": "ping", "extra": 1}}', Code.FRAME_MALFORMED, 3),
        (b'{"v": 1, "id": 3, "body": {"type": "ping"}, "x": 1}', Code.FRAME_MALFORMED, 3),
        (b'{"v": 1, "id": 3, "body": {"type": "session"}}', Code.FRAME_MALFORMED, 3),
        (b'{"v":1,"id":3,"body":' + b"[" * 100_000, Code.FRAME_MALFORMED, 0),
    ],
)
def test_a_frame_that_is_no_request_is_refused_with_its_code(
    frame: bytes, code: Code, request_id: int
) -> None:
    with pytest.raises(frames.RequestRefused) as caught:
        frames.decode_request(frame)
    assert caught.value.error.code is code
    assert caught.value.request == request_id


def test_a_frame_of_the_limit_is_read_and_one_byte_more_is_refused() -> None:
    """H169, H95."""
    frame = frames.encode_request(1, commands.Ping())
    padded = frame + b" " * (frames.MAX_REQUEST_BYTES - len(frame))
    assert frames.decode_request(padded).id == 1
    with pytest.raises(frames.RequestRefused) as caught:
        frames.decode_request(padded + b" ")
    assert caught.value.error.code is Code.FRAME_TOO_LARGE


def test_a_client_does_not_send_what_would_be_refused() -> None:
    with pytest.raises(SwapdError) as caught:
        frames.encode_request(1, commands.Session("x" * frames.MAX_REQUEST_BYTES))
    assert caught.value.code is Code.FRAME_TOO_LARGE


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=64), st.text(max_size=64).map(str.encode)))
def test_no_bytes_raise_anything_but_a_refusal(frame: bytes) -> None:
    for decode in (frames.decode_request, frames.decode_reply, frames.decode_state_event):
        with contextlib.suppress(frames.RequestRefused, SwapdError):
            decode(frame)


def test_a_refusal_does_not_quote_what_was_sent() -> None:
    """H182."""
    frame = json.dumps({"v": 1, "id": 1, "body": {"type": "canary-4711"}}).encode()
    with pytest.raises(frames.RequestRefused) as caught:
        frames.decode_request(frame)
    assert "canary" not in caught.value.error.sentence
