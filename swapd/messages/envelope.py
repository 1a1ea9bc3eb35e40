"""The envelope of every message between coordinator and worker, and its one-frame encoding.

A frame is one version byte, then msgpack. Anything else is refused with a stable code before any of
it is acted on; a frame over `MAX_FRAME_BYTES` is refused before it is decoded (H95, H169).
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import FromWorker
from swapd.messages.to_worker import ToWorker

T = TypeVar("T")

VERSION: Final = 1
MAX_FRAME_BYTES: Final = 1 << 20
EVENT: Final = 0
"""Request id of messages that answer nothing."""


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Coordinator → worker. `incarnation` is the one meant, empty in the first `Hello`."""

    incarnation: str
    generation: int
    request: int
    body: ToWorker


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Worker → coordinator. `generation` is the coordinator generation that it answers to."""

    incarnation: str
    generation: int
    request: int
    body: FromWorker


_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder(Command)
_reports = msgspec.msgpack.Decoder(Report)
_VERSION_BYTE: Final = bytes([VERSION])


def encode(message: Command | Report) -> bytes:
    """Encode a message. Raises `frame_too_large` for one that its receiver would refuse."""
    frame = _VERSION_BYTE + _encoder.encode(message)
    if len(frame) > MAX_FRAME_BYTES:
        raise SwapdError(Code.FRAME_TOO_LARGE, f"{len(frame)} of {MAX_FRAME_BYTES} bytes")
    return frame


def decode_command(frame: bytes) -> Command:
    """Decode what a coordinator sent. Raises `frame_too_large`, `version_unsupported`, `frame_malformed`."""
    return _decode(frame, _commands)


def decode_report(frame: bytes) -> Report:
    """Decode what a worker sent. Raises as `decode_command`."""
    return _decode(frame, _reports)


def _decode(frame: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    if len(frame) > MAX_FRAME_BYTES:
        raise SwapdError(Code.FRAME_TOO_LARGE, f"{len(frame)} of {MAX_FRAME_BYTES} bytes")
    if not frame:
        raise SwapdError(Code.FRAME_MALFORMED, "empty")
    if frame[0] != VERSION:
        raise SwapdError(Code.VERSION_UNSUPPORTED, f"{frame[0]}, this side speaks {VERSION}")
    try:
        return decoder.decode(memoryview(frame)[1:])
    except (msgspec.DecodeError, RecursionError) as error:
        # msgspec's text can quote the value; its type says enough.
        raise SwapdError(Code.FRAME_MALFORMED, type(error).__name__) from None
