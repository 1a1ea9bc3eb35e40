"""Static files: kept by browsers as long as they are the same, and no way out of their folder."""

from __future__ import annotations

import gzip

import pytest

from console.static_files import StaticFiles
from swapd.errors import SwapdError


async def test_a_script_travels_compressed_and_may_be_kept(client):
    plain = await client.ask("GET", "/static/vendor/htmx.min.js", token=None)
    packed = await client.ask(
        "GET", "/static/vendor/htmx.min.js", token=None, headers={"Accept-Encoding": "gzip"}
    )
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2
    assert plain.headers["cache-control"] == "no-cache"
    digest = plain.headers["etag"].strip('"')
    kept = await client.ask("GET", f"/static/vendor/htmx.min.js?v={digest}", token=None)
    assert "immutable" in kept.headers["cache-control"]
    same = await client.ask(
        "GET", "/static/vendor/htmx.min.js", token=None, headers={"If-None-Match": f'"{digest}"'}
    )
    assert (same.status, same.body) == (304, b"")


async def test_what_is_not_in_the_folder_is_not_there(tmp_path):
    root = tmp_path / "static"
    root.mkdir()
    (root / "own.css").write_text("a{}")
    (tmp_path / "secret").write_text("x")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(tmp_path)
    files = StaticFiles(root)
    assert files.address("own.css").startswith("/static/own.css?v=")
    for name in ("link", "folder/secret", "../secret", "/etc/passwd", "own.css/", ""):
        with pytest.raises(SwapdError, match=r"not_found|nothing"):
            await files.send(name)
