"""`swapd diagnostics`, against a service on sockets."""

from __future__ import annotations

import json
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_cli import Running


@pytest.fixture
def running() -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="cli-", dir="/tmp") as folder, Running(Path(folder)) as started:
        yield started


def test_the_archive_is_written_once_and_for_its_owner_alone(running: Running, tmp_path: Path) -> None:
    """R128"""
    out = tmp_path / "d.zip"
    answer = running.swapd("diagnostics", "--out", str(out))
    assert (answer.exit_code, out.read_bytes()) == (0, running.service.archive)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert f"wrote {out}" in answer.stdout
    again = running.swapd("diagnostics", "--out", str(out))
    assert again.exit_code == 2
    assert "invalid_request" in again.stderr
    assert out.read_bytes() == running.service.archive


def test_without_a_name_it_has_the_services(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    view = json.loads(running.swapd("diagnostics", "--json").stdout)
    assert view["bytes"] == (tmp_path / view["path"]).stat().st_size
    assert view["path"].startswith("swapd-diagnostics-")


def test_the_debug_window_is_opened_and_ended(running: Running) -> None:
    """R129"""
    opened = running.swapd("diagnostics", "--debug", "10")
    assert (opened.exit_code, opened.stdout) == (0, "every decision is logged; that ends by itself\n")
    assert running.service.logged_for == [600.0]
    assert running.swapd("diagnostics", "--debug", "0").stdout == "decisions are not logged\n"
    assert json.loads(running.swapd("diagnostics", "--debug", "1", "--json").stdout)["is_open"] is True
    assert running.swapd("diagnostics", "--debug", "61").exit_code == 2
