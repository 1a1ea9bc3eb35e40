"""The frames of the ops socket: one a message, JSON with a version, and how large one may be.

`{"v": 1, "id": 7, "body": {"type": "status"}}`. JSON, because a shell script or another language should be
able to speak it; nothing here is on the token path. An answer carries its request's id. State events go
another way: the PUB socket beside it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from swapd.errors import Code, SwapdError
from swapd.messages.ops.answers import OpsAnswer, refusal
from swapd.messages.ops.commands import OpsCommand

OPS_VERSION: Final = 1
MAX_REQUEST_BYTES: Final = 1 << 20
"""A request of exactly this size is read, one byte more is refused (H169)."""
MAX_ANSWER_BYTES: Final = 16 << 20
OPS_SOCKET: Final = "ops.sock"
EVENTS_SOCKET: Final = "events.sock"


class OpsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    id: int
    body: OpsCommand


class OpsReply(msgspec.Struct, frozen=True):
    """`id` is the request's, 0 when the request was too broken to have one."""

    v: int
    id: int
    body: OpsAnswer


class StateEvent(msgspec.Struct, frozen=True):
    """What the PUB socket sends, as `[kind, JSON]`. A gap in `seq` means that events were dropped."""

    v: int
    seq: int
    at_s: float
    kind: str
    fields: dict[str, str | int | float | None]


class _Head(msgspec.Struct):
    v: int
    id: int = 0


_head = msgspec.json.Decoder(_Head)
_requests = msgspec.json.Decoder(OpsRequest)
_replies = msgspec.json.Decoder(OpsReply)
_state_events = msgspec.json.Decoder(StateEvent)
_encoder = msgspec.json.Encoder()


class RequestRefused(Exception):
    """A frame that is no request: what to answer, and to which id."""

    def __init__(self, error: SwapdError, request: int) -> None:
        self.error = error
        self.request = request
        super().__init__(error.code)


def encode_request(request: int, body: OpsCommand) -> bytes:
    """Raises `frame_too_large` for a request that the service would refuse."""
    frame = _encoder.encode(OpsRequest(OPS_VERSION, request, body))
    if len(frame) > MAX_REQUEST_BYTES:
        raise SwapdError(Code.FRAME_TOO_LARGE, f"{len(frame)} of {MAX_REQUEST_BYTES} bytes")
    return frame


def decode_request(frame: bytes) -> OpsRequest:
    """Raises `RequestRefused` with `frame_too_large`, `frame_malformed` or `version_unsupported`.

    The version is looked at before the rest, so that a newer client learns what is wrong.
    """
    if len(frame) > MAX_REQUEST_BYTES:
        error = SwapdError(Code.FRAME_TOO_LARGE, f"{len(frame)} of {MAX_REQUEST_BYTES} bytes")
        raise RequestRefused(error, 0)
    request = 0
    try:
        head = _head.decode(frame)
        request = head.id
        if head.v != OPS_VERSION:
            detail = f"{head.v}, this side speaks {OPS_VERSION}"
            raise RequestRefused(SwapdError(Code.VERSION_UNSUPPORTED, detail), request)
        return _requests.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        # msgspec's text can quote what was sent; its type says enough.
        raise RequestRefused(SwapdError(Code.FRAME_MALFORMED, type(error).__name__), request) from None


def encode_reply(request: int, body: OpsAnswer) -> bytes:
    """Encode an answer; one that is too large becomes a refusal that fits."""
    frame = _encoder.encode(OpsReply(OPS_VERSION, request, body))
    if len(frame) > MAX_ANSWER_BYTES:
        return encode_reply(
            request, refusal(SwapdError(Code.FRAME_TOO_LARGE, f"answer of {len(frame)} bytes"))
        )
    return frame


def decode_reply(frame: bytes) -> OpsReply:
    """Raises `frame_malformed`."""
    try:
        return _replies.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise SwapdError(Code.FRAME_MALFORMED, type(error).__name__) from None


def encode_state_event(event: StateEvent) -> bytes:
    return _encoder.encode(event)


def decode_state_event(frame: bytes) -> StateEvent:
    """Raises `frame_malformed`."""
    try:
        return _state_events.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise SwapdError(Code.FRAME_MALFORMED, type(error).__name__) from None
