"""The console's bench runs from end to end: a service of its own, a browser, and open consoles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
FEW = ["--times", "1", "--consoles", "3", "--seconds", "0.5", "--turns", "1", "--no-timing-claims"]


def test_the_bench_opens_pages_and_watches_streams(tmp_path: Path) -> None:
    report = tmp_path / "console.json"
    command = [sys.executable, "ops/bench_console.py", *FEW, "--pages", "/", "--watched", "/live/overview"]
    done = subprocess.run(
        [*command, "--json", str(report)], cwd=REPO, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("all 1 claims hold")
    found = json.loads(report.read_text())
    assert [page["page"] for page in found["pages"]] == ["/"]
    assert found["pages"][0]["bytes"] > 10_000
    assert [cost["streams"] for cost in found["costs"]] == [0, 3]
