"""What an operator may see and do: the service as a whole, workers and drains."""

from __future__ import annotations

from typing import Final

import msgspec
from quart import Response, request

from console import auth
from console.body import read_json, read_optional_json
from console.errors import reply
from swapd.api import Service
from swapd.errors import Code, SwapdError
from swapd.views import (
    DrainMode,
    DrainOrigin,
    Switch,
    TurnSwitch,
)

SWITCHES: Final[dict[str, Switch]] = {"admission": "admission", "migration": "migration"}
METRICS_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"


class NewDrain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/workers/{id}/drains`; all of it optional."""

    deadline_s: float | None = None
    origin: DrainOrigin = "operator"
    mode: DrainMode = "native"
    dry_run: bool = False
    reason: str | None = None


class NewDrains(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/drains`: several workers that are to be empty at once."""

    workers: list[str]
    deadline_s: float | None = None
    origin: DrainOrigin = "operator"
    mode: DrainMode = "native"
    reason: str | None = None


class OperatorRoutes:
    """401 without a token, 403 with a tenant's (H9)."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def status(self) -> Response:
        """What an owner or operator asks first, devices before all."""
        who = auth.operator(self._service, request.headers)
        return reply(await self._service.status(who))

    async def metrics(self) -> Response:
        """Prometheus text (H177)."""
        who = auth.operator(self._service, request.headers)
        return Response(self._service.metrics(who), 200, content_type=METRICS_TYPE)

    async def workers(self) -> Response:
        who = auth.operator(self._service, request.headers)
        return reply({"workers": await self._service.workers(who)})

    async def clear_quarantine(self, worker: str) -> Response:
        """Trust the worker again; one that is not quarantined stays as it is (H79)."""
        who = auth.operator(self._service, request.headers)
        return reply(await self._service.clear_quarantine(who, worker))

    async def switches(self) -> Response:
        who = auth.operator(self._service, request.headers)
        return reply(await self._service.switches(who))

    async def turn_switch(self, switch: str) -> Response:
        """200 once it is durable; the same again changes nothing (H163, A13)."""
        who = auth.operator(self._service, request.headers)
        if switch not in SWITCHES:
            raise SwapdError(Code.NOT_FOUND)
        asked = await read_json(request, TurnSwitch)
        return reply(await self._service.turn_switch(who, SWITCHES[switch], on=asked.on))

    async def reconciliation(self) -> Response:
        """What this start found of the run before it (H152)."""
        who = auth.operator(self._service, request.headers)
        return reply(await self._service.reconciliation(who))

    async def limits(self) -> Response:
        """The effective limits, for whoever may ask for work (H176)."""
        auth.caller(self._service, request.headers)
        return reply(self._service.limits())

    async def start_drain(self, worker: str) -> Response:
        """202 with the drain's address; the drain goes on whoever disconnects (H50).

        With `dry_run` nothing begins: 200 with what would become of each session.
        """
        who = auth.operator(self._service, request.headers)
        asked = await read_optional_json(request, NewDrain) or NewDrain()
        if asked.dry_run:
            return reply(await self._service.preflight(who, worker, asked.mode))
        view = await self._service.start_drain(
            who, worker, asked.deadline_s, asked.origin, asked.mode, asked.reason
        )
        return reply(view, 202, {"Location": f"/v1/drains/{view.id}"})

    async def start_drains(self) -> Response:
        """202 with one drain for each worker: all are closed first, then all move to others (B16)."""
        who = auth.operator(self._service, request.headers)
        asked = await read_json(request, NewDrains)
        views = await self._service.start_drains(
            who, asked.workers, asked.deadline_s, asked.origin, asked.mode, asked.reason
        )
        return reply({"drains": views}, 202)

    async def drains(self) -> Response:
        who = auth.operator(self._service, request.headers)
        return reply({"drains": await self._service.drains(who)})

    async def drain(self, drain: str) -> Response:
        """State, and one outcome for each session that was on the worker (H54)."""
        who = auth.operator(self._service, request.headers)
        return reply(await self._service.drain(who, drain))

    async def cancel_drain(self, drain: str) -> Response:
        """Reopen the worker (H61)."""
        who = auth.operator(self._service, request.headers)
        return reply(await self._service.cancel_drain(who, drain))
