"""How the service is, for operators and their programs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final

import trio
from quart import Response, request
from quart.wrappers.response import ResponseBody

from console import auth
from console.body import read_json
from console.errors import reply
from swapd.api import Archive, Service
from swapd.views import DebugFor

PIECE_BYTES: Final = 1 << 16


class DiagnosticsRoutes:
    """401 without a token, 403 with a tenant's (H9)."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def view(self) -> Response:
        who = auth.operator(self._service, request.headers)
        return reply(await self._service.diagnostics(who))

    async def archive(self) -> Response:
        """One .zip (R128, B42)."""
        who = auth.operator(self._service, request.headers)
        return archive_response(await self._service.export_diagnostics(who))

    async def debug(self) -> Response:
        """Log every reading's decision for `for_s` seconds from now; 0 ends it (R129)."""
        who = auth.operator(self._service, request.headers)
        asked = await read_json(request, DebugFor)
        return reply(await self._service.log_decisions(who, asked.for_s))


def archive_response(archive: Archive) -> Response:
    """An archive as a download, in pieces."""
    headers = {
        "Content-Disposition": f'attachment; filename="{archive.name}"',
        "Content-Length": str(archive.size_bytes),
    }
    return Response(_ArchiveBody(archive), 200, headers, content_type="application/zip")


class _ArchiveBody(ResponseBody):
    """Reads the file while Quart sends it, and closes it whatever becomes of the client."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def __aenter__(self) -> AsyncIterator[bytes]:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._archive.file.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        # Written a moment ago: it comes from memory, and a piece is no work.
        piece = self._archive.file.read(PIECE_BYTES)
        if not piece:
            raise StopAsyncIteration
        await trio.lowlevel.checkpoint()
        return piece
