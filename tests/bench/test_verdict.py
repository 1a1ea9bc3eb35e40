"""The bench fails when its figures do not bear its claims out, and tells what it saw."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ops.handoff_bench.report import encode, plot, table
from ops.handoff_bench.verdict import broken_claims, claims

pytestmark = pytest.mark.once

BLOCK_BYTES = 737_280


def cell(context: int = 512, sessions: int = 1, **changes: Any) -> dict[str, Any]:
    prompts = [{"differs_at": None, "control_void": None, "identical": True} for _ in range(10)]
    sound: dict[str, Any] = {
        "context": context,
        "sessions": sessions,
        "moves": 20,
        "moves_asked": 20,
        "token_ms_median": 50.0,
        "pause_ms": {"median": 75.0, "p95": 90.0},
        "frozen_ms": {"median": 70.0, "p95": 80.0},
        "pause_steps_median": 1.5,
        "pause_steps_p95": 1.8,
        "cold_replay_ms": 9000.0,
        "warm_replay_ms": 1500.0,
        "ratio_cold": 0.0083,
        "ratio_warm": 0.05,
        "reuse": 1.0,
        "recomputed_tokens": 0,
        "frozen_bytes_max": BLOCK_BYTES,
        "neighbour_step_increase": 0.02,
        "identical": True,
        "differing": 0,
        "prompts": prompts,
        "samples": [{"pause_steps": 1.4}, {"pause_steps": 1.8}],
    }
    return sound | changes


def failing(*cells: dict[str, Any], timing: bool = True) -> list[str]:
    return [claim.name for claim in claims(cells, BLOCK_BYTES, timing=timing) if not claim.holds]


def test_sound_figures_bear_every_claim_out() -> None:
    cells = [cell(context, sessions) for context in (512, 2048, 4096) for sessions in (1, 4)]
    assert failing(*cells) == []


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({"moves": 19}, "every move is native"),
        ({"reuse": 0.999}, "reuse is 1.0"),
        ({"recomputed_tokens": 1}, "nothing is recomputed"),
        ({"identical": False}, "every continuation is identical"),
        ({"frozen_bytes_max": 2 * BLOCK_BYTES}, "at most one block is copied in the pause"),
        ({"pause_steps_p95": 3.01}, "the pause is at most 3 token intervals"),
        ({"pause_steps_p95": 2.4}, "the pause does not grow with the context, 1 at once"),
        ({"ratio_cold": 0.051}, "the pause is at most 5% of a cold replay"),
        ({"ratio_cold": math.nan}, "the pause is at most 5% of a cold replay"),
        ({"ratio_warm": 1.0}, "the pause is shorter than a warm replay"),
        ({"ratio_warm": math.nan}, "the pause is shorter than a warm replay"),
    ],
)
def test_each_claim_can_fail(changes: dict[str, Any], claim: str) -> None:
    assert claim in failing(cell(), cell(4096, **changes))


def test_a_busy_machine_is_not_judged_by_time() -> None:
    assert failing(cell(pause_steps_p95=30.0, ratio_warm=2.0), timing=False) == []


def test_a_short_context_owes_nothing_against_a_cold_replay() -> None:
    assert failing(cell(ratio_cold=0.5)) == []


@pytest.mark.parametrize(("differing", "holds"), [(10, True), (9, True), (8, False), (0, False)])
def test_damage_must_show_in_nine_of_ten_prompts(differing: int, holds: bool) -> None:
    prompts = [
        {"differs_at": 3 if number < differing else None, "control_void": None} for number in range(10)
    ]
    (claim,) = broken_claims([cell(prompts=prompts)])
    assert claim.holds is holds


def test_a_void_control_shows_no_damage() -> None:
    prompts = [{"differs_at": 3, "control_void": "step 4 could not be repeated"}] * 10
    (claim,) = broken_claims([cell(prompts=prompts)])
    assert not claim.holds


def test_the_report_is_json_whatever_could_not_be_measured() -> None:
    written = encode({"cells": [{"ratio_cold": math.nan, "pause_ms": {"p95": math.inf}, "reuse": 1.0}]})
    assert json.loads(written) == {"cells": [{"ratio_cold": None, "pause_ms": {"p95": None}, "reuse": 1.0}]}


def test_the_table_has_one_line_a_cell_in_equal_columns() -> None:
    lines = table([cell(), cell(4096, 4, ratio_cold=math.nan, identical=False)]).splitlines()
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split()[-1] == "yes"
    assert lines[2].split()[-1] == "NO"


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cells = [cell(context, sessions) for context in (512, 2048) for sessions in (1, 4)]
    path = tmp_path / "handoff.png"
    plot(cells, path, {"cpu": "a processor", "cores": 2})
    assert path.read_bytes().startswith(b"\x89PNG")
