"""Which moves are allowed, and the certificates that allow them: for operators."""

from __future__ import annotations

from quart import Response, request

from console import auth
from console.errors import reply
from swapd.api import Service


class CertificateRoutes:
    """401 without a token, 403 with a tenant's (H9)."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def plans(self) -> Response:
        """The edges between the workers that are there, and why there are no others (H132)."""
        who = auth.operator(self._service, request.headers)
        return reply(await self._service.plans.view(who))

    async def revoke(self, certificate: str) -> Response:
        """200 once it is durable; the same again changes nothing (H137, A14)."""
        who = auth.operator(self._service, request.headers)
        return reply(await self._service.plans.revoke(who, certificate))
