"""The soak itself, for a few seconds: it runs, judges, cleans up, and can fail."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from ops.soaking.clients import Plan
from tests.e2e.drills import run_drill

pytestmark = pytest.mark.timeout(180)


def test_a_short_soak_holds_and_leaves_nothing(tmp_path: Path) -> None:
    options = ["--seed=7", "--minutes=0", "--sessions=5", "--chaos-s=3", "--step-ms=1"]
    code, said, [one] = run_drill("ops/soak.py", tmp_path, *options)
    assert code == 0, said
    assert "soak: ok: 1 rounds from seed 7, 5 sessions" in said.splitlines()[-1]
    assert one["faults"] == []


def test_another_prompt_or_seed_is_another_reference() -> None:
    """The judge can fail: what it compares with depends on every part of the plan."""
    plan = msgspec.structs.replace(
        Plan.draw(random.Random(1), 1.0), max_new_tokens=20, temperature=0.8, prompt=(1, 2)
    )
    others = [msgspec.structs.replace(plan, prompt=(1, 3)), msgspec.structs.replace(plan, seed=plan.seed + 1)]
    assert all(other.reference() != plan.reference() for other in others)
