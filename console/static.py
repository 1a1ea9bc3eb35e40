"""The files that pages load, read once at the start and answered by name alone.

No path of a request is ever joined to a folder: what is not in the list does not exist, and a link in the
folder is not in the list.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final, NamedTuple

from quart import Response, request

from swapd.errors import Code, SwapdError

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".md": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
FOR_GOOD: Final = "public, max-age=31536000, immutable"


class StaticFile(NamedTuple):
    content: bytes
    content_type: str
    version: str


class StaticFiles:
    """`/static/<name>`: open to everybody."""

    def __init__(self, folder: Path) -> None:
        self._files = {
            str(path.relative_to(folder)): _read(path)
            for place, _, names in os.walk(folder)
            for name in names
            if (path := Path(place) / name).suffix in TYPES and path.is_file() and not path.is_symlink()
        }

    def address(self, name: str) -> str:
        """Where a page finds a file. It changes with the content, so that browsers may keep it for good."""
        return f"/static/{name}?v={self._files[name].version}"

    async def view(self, name: str) -> Response:
        """Raises `not_found`."""
        file = self._files.get(name)
        if file is None:
            raise SwapdError(Code.NOT_FOUND)
        kept = request.args.get("v") == file.version
        headers = {"Cache-Control": FOR_GOOD if kept else "no-cache"}
        answer = Response(file.content, 200, headers, content_type=file.content_type)
        answer.set_etag(file.version)
        await answer.make_conditional(request)
        return answer


def _read(path: Path) -> StaticFile:
    content = path.read_bytes()
    return StaticFile(content, TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:16])
