"""What a client and a load balancer are told of devices that are not lent (R60, R61, D11). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from swapd.errors import Code
from swapd.lending.device import LentDevice
from swapd.lending.reasons import GIVE_BACK, Why

NOT_KNOWN: Final = frozenset({Why.UNSUPPORTED, Why.ATTENDANCE_UNKNOWN, Why.NO_READINGS, Why.CALIBRATING})
"""Reasons that make the service as a whole unready: something is to be learned or mended first."""


def refusal_of(devices: Iterable[LentDevice]) -> tuple[Code, str, float | None] | None:
    """Code, reason and `Retry-After` when no device is lent; None where one is, or there is none.

    The device that may come back first is spoken of; one that only learns comes before one that its owner
    has.
    """
    judged = [(device.name, device.verdict) for device in devices if device.verdict is not None]
    if not judged or any(verdict.admit for _, verdict in judged):
        return None
    learning = [(name, v) for name, v in judged if v.hold and Why.CALIBRATING in v.reasons]
    name, verdict = min(learning or judged, key=lambda pair: pair[1].retry_after_s or 0.0)
    code = Code.DEVICE_CALIBRATING if learning else Code.DEVICE_NOT_LENT
    return code, f"{name}: {verdict.sentence}", verdict.retry_after_s


def unready_of(devices: Iterable[LentDevice]) -> Sequence[str]:
    """`<why>:<device>` of every device that is not known well enough to be lent (R61, D11).

    A device that its owner has, and one that the owner does not lend, is as it should be: others serve. Where
    no device is lent, each says why.
    """
    judged = [(device.name, device.verdict) for device in devices if device.verdict is not None]
    none_lent = not any(verdict.admit for _, verdict in judged)
    told = []
    for name, verdict in judged:
        owners = not GIVE_BACK.isdisjoint(verdict.reasons)
        found = [why for why in verdict.reasons if (why in NOT_KNOWN and not owners) or none_lent]
        if found:
            told.append(f"{found[0]}:{name}")
    return told
