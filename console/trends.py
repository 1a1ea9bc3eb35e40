"""What pages read of a device's past, for pages that must be there when the disk cannot be read.

The owner's buttons are on them: a plot may be missing then, a page may not.
"""

from __future__ import annotations

from collections.abc import Sequence

from swapd.api import Service
from swapd.device_views import DeviceEvent, TrendPoint
from swapd.errors import Code, SwapdError
from swapd.views import Caller


async def trend(
    service: Service, who: Caller, device: str, span_s: float, points: int
) -> Sequence[TrendPoint]:
    """`Service.trend`; nothing where the disk cannot be read."""
    try:
        return await service.trend(who, device, span_s, points)
    except SwapdError as error:
        _unread(error)
        return ()


async def happened(service: Service, who: Caller, device: str) -> Sequence[DeviceEvent] | None:
    """`Service.device_events`; None where the disk cannot be read."""
    try:
        return await service.device_events(who, device)
    except SwapdError as error:
        _unread(error)
        return None


def _unread(error: SwapdError) -> None:
    if error.code is not Code.DISK_ERROR:
        raise error
