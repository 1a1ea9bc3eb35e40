"""The soak itself, for a few seconds: it runs, judges, cleans up, and can fail."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ops.soaking.clients import Plan
from tests.e2e.deployment import REPO

pytestmark = pytest.mark.timeout(180)


def test_a_short_soak_holds_and_leaves_nothing(tmp_path: Path) -> None:
    report = tmp_path / "soak.json"
    options = ["--seed=7", "--minutes=0", "--sessions=5", "--chaos-s=3", "--step-ms=1"]
    done = subprocess.run(
        [sys.executable, "ops/soak.py", *options, "--json", str(report)],
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        cwd=REPO,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr.decode()
    [line] = done.stdout.decode().splitlines()
    assert line.startswith("soak: ok: 1 rounds from seed 7, 5 sessions")
    [one] = json.loads(report.read_bytes())
    assert one["faults"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["soak.json"]


def test_another_prompt_or_seed_is_another_reference() -> None:
    """The judge can fail: what it compares with depends on every part of the plan."""
    plan = msgspec.structs.replace(
        Plan.draw(random.Random(1), 1.0), max_new_tokens=20, temperature=0.8, prompt=(1, 2)
    )
    others = [msgspec.structs.replace(plan, prompt=(1, 3)), msgspec.structs.replace(plan, seed=plan.seed + 1)]
    assert all(other.reference() != plan.reference() for other in others)
