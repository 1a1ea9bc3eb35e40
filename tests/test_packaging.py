"""What a user installs is complete: pages and styles are in the wheel, and the command is declared."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel from this checkout, with the build backend that is installed here."""
    out = tmp_path_factory.mktemp("wheel")
    script = f"import hatchling.build; hatchling.build.build_wheel({str(out)!r})"
    built = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert built.returncode == 0, built.stderr
    (path,) = out.glob("swapd-*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.parametrize("folder", ["templates", "static"])
def test_the_wheel_holds_every_page_and_style(wheel: zipfile.ZipFile, folder: str) -> None:
    files = {f"console/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*") if path.is_file()}
    assert files
    assert files <= set(wheel.namelist())


def test_the_wheel_holds_both_packages_and_no_tests(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "swapd/__init__.py" in names
    assert "console/app.py" in names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"swapd", "console"}


def test_the_wheel_declares_the_command_and_its_licence(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    assert "swapd = swapd.cli:main" in wheel.read(entry_points).decode()
    metadata = wheel.read(entry_points.replace("entry_points.txt", "METADATA")).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())
