"""The bench of drains: what it judges, and one round of it for real."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ops.bench_drain import DEFAULT, MIB, Drain, Figure, bandwidth, bound_s, claims, main, table

pytestmark = pytest.mark.once

ALONE = Drain(1, 1, 0.10, 64 * MIB, 0.064, 20.0)
TOGETHER = Drain(8, 8, 0.60, 512 * MIB, 0.5, 60.0)
GOOD = Figure(DEFAULT, (ALONE, ALONE._replace(wall_s=0.12), ALONE), TOGETHER)


def failed(*figures: Figure, timing: bool = True) -> list[str]:
    return [claim.name.split(" ")[0] for claim in claims(figures, timing=timing) if not claim.holds]


def test_the_bound_is_the_slowest_single_move_half_again_and_the_bytes() -> None:
    """B13"""
    assert bandwidth([GOOD]) == 1000 * MIB
    assert bound_s(GOOD, 1000 * MIB) == pytest.approx(1.5 * 0.12 + 0.512)
    faster = GOOD._replace(alone=(ALONE._replace(copy_s=0.032),))
    assert bandwidth([GOOD, faster]) == 2000 * MIB, "the fastest of all is the strictest"


def test_each_claim_fails_by_its_own_figure() -> None:
    """B13"""
    assert failed(GOOD) == []
    slow = GOOD._replace(together=TOGETHER._replace(wall_s=0.7))
    assert failed(slow) == ["a"]
    assert failed(slow, GOOD, GOOD) == [], "the median of the rounds counts"
    assert failed(slow, timing=False) == []
    assert failed(GOOD._replace(together=TOGETHER._replace(moved=7)), timing=False) == ["every"]
    other = slow._replace(arm="1 at once")
    assert failed(GOOD, other) == [], "only the service as it is without a setting is judged"
    assert "1 at once" in table([GOOD, other])


@pytest.mark.timeout(300)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers and a service on one core")
def test_one_round_moves_every_session_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B13"""
    report = tmp_path / "report.json"
    arguments = ["--rounds", "1", "--sessions", "3", "--prompt", "100", "--no-timing-claims"]
    assert main([*arguments, "--json", str(report)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "all 1 claims hold"
    told = json.loads(report.read_text())
    assert [figure["together"]["moved"] for figure in told["figures"]] == [3]
    assert told["bytes_per_s"] > 0
