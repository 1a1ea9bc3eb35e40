"""docs/pressure.md: its example does what it shows, and its numbers are those that run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from swapd.config import PressureConfig
from swapd.pressure.bounds import target_pct
from swapd.pressure.reading import HINT_ABOVE_CAP
from swapd.pressure.replay import ROW_FIELDS
from tests.pressure.test_time_oracles import flip_h

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "pressure.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    found = re.search(r"```bash\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    script = found[1].replace(".venv/bin/swapd", f'PYTHONPATH="{ROOT}" "{sys.executable}" -m swapd')
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout == found[2]


def test_the_limit_is_told_with_its_numbers() -> None:
    """R9, O4: loads below the threshold never engage, and long loads become normal."""
    assert "**A load below the threshold never engages pressure, however long it lasts.**" in PAGE
    rows = re.findall(r"^\| (\d+|for ever) \| (\d+\.\d\d) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 7
    for before, told in rows:
        low_h = float("inf") if before == "for ever" else float(before)
        assert f"{flip_h(low_h):.2f}" == told
    assert f"about {flip_h(52) + 35 - 28.5:.1f} hours" in PAGE


def test_the_targets_and_texts_are_those_of_the_code() -> None:
    """O6, R43, R50."""
    rows = re.findall(r"^\| ([\d.]+)(?: and more)? \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert ("13", "33") in rows
    targets = rows[: rows.index(("20", "40")) + 1]
    assert [target_pct(PressureConfig(), float(base)) for base, _ in targets] == [
        float(t) for _, t in targets
    ]
    assert HINT_ABOVE_CAP in PAGE
    assert "Threshold 34%, rising toward 40% (learned from 52 h)\n" in PAGE


def test_every_field_of_a_row_is_explained() -> None:
    for name in ROW_FIELDS:
        assert f"`{name}`" in PAGE
