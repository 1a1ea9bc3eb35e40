"""What the console's bench claims, and that it can fail."""

from __future__ import annotations

import pytest

from ops.bench_console import Cost, claims
from ops.console_bench.paint import Paint

PAINTED = [Paint("/", (80.0, 90.0, 300.0), 60_000), Paint("/devices/core0", (110.0, 120.0, 130.0), 120_000)]
COSTS = [Cost("", 0, (0.02, 0.03, 0.04), 0), Cost("/live/overview", 50, (0.05, 0.06, 0.07), 900)]


def test_good_figures_hold():
    judged = claims(PAINTED, COSTS, timing=True)
    assert [claim.holds for claim in judged] == [True, True, True]
    assert [claim.detail for claim in judged] == [
        "120 KB at most (/devices/core0)",
        "120 ms at most (/devices/core0)",
        "3.0% at most (/live/overview), beside 3.0% without",
    ]


@pytest.mark.parametrize(
    ("painted", "costs", "fails"),
    [
        ([Paint("/", (10.0,), 151_000)], COSTS, 0),
        ([Paint("/", (100.0, 210.0, 220.0), 1_000)], COSTS, 1),
        (PAINTED, [COSTS[0], Cost("/live/overview", 50, (0.09, 0.10), 1)], 2),
    ],
)
def test_each_claim_can_fail(painted, costs, fails):
    judged = claims(painted, costs, timing=True)
    assert [index for index, claim in enumerate(judged) if not claim.holds] == [fails]
    assert len(claims(painted, costs, timing=False)) == 1
