"""The bench of give-backs: what it judges, and one round of it for real."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ops.bench_giveback import Figure, claims, main

pytestmark = pytest.mark.once

GOOD = Figure("take back now", 8, 8, 0.4, 12.0, 0.08, 0.12, 0.04)


def failed(*figures: Figure, timing: bool = True) -> list[str]:
    return [claim.name.split(":")[0] for claim in claims(figures, timing=timing) if not claim.holds]


def test_each_claim_fails_by_its_own_figure() -> None:
    loaded = GOOD._replace(how="load on the core", closed_ms=400.0)
    assert failed(GOOD, loaded) == []
    assert failed(GOOD, loaded._replace(own_s=1.0)) == ["the service's own part is under 1 s"]
    assert failed(GOOD._replace(closed_ms=100.1)) == ["take back now"]
    assert failed(GOOD, loaded._replace(moved=7)) == ["every session left by a native move"]
    assert failed(GOOD._replace(closed_ms=900.0, own_s=9.0), timing=False) == []


@pytest.mark.timeout(200)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be lent twice")
def test_one_round_moves_every_session_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    arguments = ["--rounds", "1", "--sessions", "2", "--no-load", "--no-timing-claims", "--json", str(report)]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "all 1 claims hold"
    told = json.loads(report.read_text())
    assert [figure["moved"] for figure in told["figures"]] == [2]
