"""Coordinator ↔ sampler process: one request, one answer, JSON over ZeroMQ (`ipc://`).

There is one sampler process a kind of device, so that a driver that hangs takes only its own devices'
readings with it. The coordinator sets the pace and the deadline; a sampler that does not answer in time is
killed and started anew, and its devices' readings are `failed` meanwhile.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from swapd.errors import Code, SwapdError

SAMPLER_VERSION: Final = 1
MAX_SAMPLER_FRAME_BYTES: Final = 1 << 20


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sample"):
    """Measure every device once. `lenders` are root pids: each with its whole tree of children (D24).

    `ports` are borrower ports: whoever listens there is a lender as well.
    """

    v: int
    number: int
    lenders: tuple[int, ...]
    ports: tuple[int, ...] = ()


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device, once. Percentages are of the device, 0 to 100; memory in bytes.

    result: ok        `reading_pct` is the owner's share
            first     the first after (re)initialisation: no share can be told yet, nothing is wrong
            failed    the driver did not answer, the device is lost or absent
            invalid   there is a value and it cannot be trusted
            unsupported  it never will be, `reason` says why (MIG, WSL, a pid namespace, no utilisation)
            asleep    the device is powered down and was left so
    """

    device: str
    result: Literal["ok", "first", "failed", "invalid", "unsupported", "asleep"]
    at_s: float
    """CLOCK_BOOTTIME when it was measured."""
    reading_pct: float | None = None
    reason: str | None = None
    """One sentence for people, never a process's command line."""
    device_pct: float | None = None
    lender_pct: float | None = None
    ignored_pct: float | None = None
    encoder_pct: float | None = None
    decoder_pct: float | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_total_bytes: int | None = None
    others_hold_memory: bool = False
    """Whether processes that are no lenders hold memory of the device (D37)."""
    always_seen: tuple[str, ...] = ()
    """Names of `owner.always` that run on the device, or at all where the kind cannot tell (D37)."""
    lender_memory_bytes: int | None = None
    uuid: str | None = None
    pci: str | None = None
    product: str | None = None
    sm_clock_mhz: int | None = None
    power_state: str | None = None


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="measured"):
    """The answer to the `Sample` of that number, one entry a device."""

    v: int
    number: int
    took_ms: float
    devices: tuple[Measurement, ...]


class SamplerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a sampler process is started with; a JSON file, mode 0600, in the socket folder."""

    kind: Literal["nvml", "cpu"]
    endpoint: str
    devices: tuple[SampledDevice, ...]
    ignore: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    parent_pid: int = 0
    """The sampler ends when this process is gone."""


class SampledDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device to measure: a UUID or an index for `nvml`, cores for `cpu`."""

    name: str
    selector: str | None = None
    cores: tuple[int, ...] = ()


_samples = msgspec.json.Decoder(Sample)
_measured = msgspec.json.Decoder(Measured)
_encoder = msgspec.json.Encoder()


def encode_sampling(message: Sample | Measured) -> bytes:
    """Encode a question or an answer. Raises `frame_too_large` for one that its receiver would refuse."""
    frame = _encoder.encode(message)
    _check_size(frame)
    return frame


def decode_sample(frame: bytes) -> Sample:
    """Decode a question. Raises `frame_too_large`, `version_unsupported` or `frame_malformed`."""
    _check_size(frame)
    try:
        sample = _samples.decode(frame)
    except msgspec.DecodeError as error:
        # msgspec's text can quote the value; its type says enough.
        raise SwapdError(Code.FRAME_MALFORMED, type(error).__name__) from None
    _check_version(sample.v)
    return sample


def decode_measured(frame: bytes) -> Measured:
    """Decode an answer. Raises as `decode_sample`."""
    _check_size(frame)
    try:
        measured = _measured.decode(frame)
    except msgspec.DecodeError as error:
        raise SwapdError(Code.FRAME_MALFORMED, type(error).__name__) from None
    _check_version(measured.v)
    return measured


def _check_size(frame: bytes) -> None:
    if len(frame) > MAX_SAMPLER_FRAME_BYTES:
        raise SwapdError(Code.FRAME_TOO_LARGE, f"{len(frame)} of {MAX_SAMPLER_FRAME_BYTES} bytes")


def _check_version(version: int) -> None:
    if version != SAMPLER_VERSION:
        raise SwapdError(Code.VERSION_UNSUPPORTED, f"{version}, this side speaks {SAMPLER_VERSION}")
