"""Is the process alive, and can the service take work."""

from __future__ import annotations

from quart import Response

from console.errors import error_body, error_headers, reply
from swapd.api import Service
from swapd.errors import Code, SwapdError


class HealthRoutes:
    """Open to everybody: they tell states, never content."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def healthz(self) -> Response:
        """200 while the process answers at all."""
        return reply({"alive": True})

    async def readyz(self) -> Response:
        """200 when work is taken, else 503 with the reasons (H45)."""
        state = self._service.readiness()
        view: dict[str, object] = {"ready": state.ready, "reasons": state.reasons}
        if state.ready:
            return reply(view)
        error = SwapdError(Code.STOPPING if self._service.stopping else Code.NOT_READY)
        return reply(view | error_body(error), 503, error_headers(error))
