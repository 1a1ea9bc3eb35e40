"""The files that pages load: read once at the start, so that no address can lead out of their folder.

An address that carries the digest of the content may be kept by a browser for good; scripts and styles travel
compressed. Pages themselves do not: what an attacker can guess of a compressed page shows in its length.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from quart import Response, request

from swapd.errors import Code, SwapdError

PREFIX: Final = "/static/"
COMPRESSED: Final = frozenset({".js", ".css", ".svg"})
FOR_GOOD: Final = "public, max-age=31536000, immutable"
TYPES: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


class StaticFile(NamedTuple):
    """One file; `packed` is its content as gzip, where that is worth it."""

    content: bytes
    packed: bytes | None
    kind: str
    digest: str


class StaticFiles:
    """All files under one folder, by their relative path."""

    def __init__(self, root: Path) -> None:
        self._files = dict(_load(root))

    def address(self, name: str) -> str:
        """Where a page finds a file. Raises KeyError: a page may only name what is there."""
        return f"{PREFIX}{name}?v={self._files[name].digest}"

    async def send(self, name: str) -> Response:
        """`GET /static/<name>`. Raises `not_found`."""
        found = self._files.get(name)
        if found is None:
            raise SwapdError(Code.NOT_FOUND)
        headers = {
            "ETag": f'"{found.digest}"',
            "Vary": "Accept-Encoding",
            "Cache-Control": FOR_GOOD if request.args.get("v") == found.digest else "no-cache",
        }
        if found.digest in request.if_none_match:
            return Response(b"", 304, headers)
        content = found.content
        if found.packed is not None and request.accept_encodings["gzip"]:
            content = found.packed
            headers["Content-Encoding"] = "gzip"
        return Response(content, 200, headers, content_type=found.kind)


def _load(root: Path) -> Iterator[tuple[str, StaticFile]]:
    for path in sorted(root.rglob("*")):
        # A link could show what is elsewhere on this machine.
        if path.is_symlink() or not path.is_file() or not path.resolve().is_relative_to(root.resolve()):
            continue
        content = path.read_bytes()
        packed = gzip.compress(content, mtime=0) if path.suffix in COMPRESSED else None
        kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain; charset=utf-8"
        digest = hashlib.sha256(content).hexdigest()[:12]
        yield path.relative_to(root).as_posix(), StaticFile(content, packed, kind, digest)
