"""Lent devices for owners and operators: look, take back, lend."""

from __future__ import annotations

import math

from quart import Response, request

from console import auth
from console.body import read_optional_json
from console.errors import reply
from swapd.api import Service
from swapd.device_views import TakeBack
from swapd.errors import Code, SwapdError


class DeviceRoutes:
    """401 without a token, 403 with a tenant's (H9)."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def index(self) -> Response:
        who = auth.operator(self._service, request.headers)
        return reply({"devices": await self._service.devices(who)})

    async def view(self, device: str) -> Response:
        who = auth.operator(self._service, request.headers)
        return reply(await self._service.device(who, device))

    async def take_back(self, device: str) -> Response:
        """200 once the device is closed and that is durable; what runs on it then leaves."""
        who = auth.operator(self._service, request.headers)
        asked = await read_optional_json(request, TakeBack) or TakeBack()
        return reply(await self._service.take_back(who, device, asked))

    async def lend(self, device: str) -> Response:
        """End a take-back; without one nothing changes and the answer is the same."""
        who = auth.operator(self._service, request.headers)
        return reply(await self._service.lend(who, device))

    async def samples(self, device: str) -> Response:
        """Readings from `?since=` (seconds since 1970) on, oldest first (R128)."""
        who = auth.operator(self._service, request.headers)
        since = _since(request.args.getlist("since"))
        return reply({"samples": await self._service.samples(who, device, since)})

    async def events(self, device: str) -> Response:
        who = auth.operator(self._service, request.headers)
        return reply({"events": await self._service.device_events(who, device)})


def _since(given: list[str]) -> float:
    """The parameter as a time. Raises `invalid_request`."""
    try:
        (text,) = given or ["0"]
        since = float(text)
    except ValueError:
        since = math.nan
    if not 0 <= since < math.inf:
        raise SwapdError(Code.INVALID_REQUEST, "since is one time in seconds since 1970")
    return since
