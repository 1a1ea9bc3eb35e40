"""The archive and the debug window over the ops socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from swapd.errors import Code, SwapdError
from swapd.ops import server
from swapd.ops.client import open_ops
from tests.ops.test_ops_server import folder, running

__all__ = ["folder"]


async def test_the_archive_comes_whole_and_its_file_is_closed(folder: Path) -> None:
    """R128"""
    async with running(folder) as bench, open_ops(folder) as client:
        answer = await client.export_diagnostics()
        assert answer.archive == bench.service.archive
        assert answer.name.endswith(".zip")
        assert [file.closed for file in bench.service.exports] == [True]


async def test_an_archive_that_does_not_fit_is_refused_with_the_way_to_get_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_ARCHIVE_BYTES", 1000)
    async with running(folder) as bench, open_ops(folder) as client:
        with pytest.raises(SwapdError) as refused:
            await client.export_diagnostics()
        assert refused.value.code is Code.FRAME_TOO_LARGE
        assert "/v1/diagnostics/archive" in refused.value.detail
        assert [file.closed for file in bench.service.exports] == [True]


async def test_decisions_are_logged_for_a_time(folder: Path) -> None:
    """R129"""
    async with running(folder) as bench, open_ops(folder) as client:
        assert (await client.log_decisions(600.0)).is_open
        assert not (await client.log_decisions(0.0)).is_open
        assert bench.service.logged_for == [600.0, 0.0]
        with pytest.raises(SwapdError) as refused:
            await client.log_decisions(1e9)
        assert refused.value.code is Code.INVALID_REQUEST
