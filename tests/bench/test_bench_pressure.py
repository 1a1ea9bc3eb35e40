"""The bench of the pressure rules, with few readings: no figure is judged here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.bench_pressure import Figures, claims, main
from ops.judging import Claim

pytestmark = pytest.mark.once

FEW = ["--days", "0.05", "--tracker-readings", "50"]
EASY = ["--max-s", "600", "--max-mib", "4000", "--max-share", "1"]
FIGURES = Figures(
    readings=100,
    replay_cpu_s=1.0,
    making_cpu_s=0.5,
    memory_grown_bytes=1 << 20,
    observe_us=10.0,
    tracker_share=0.001,
)


def test_a_small_run_reports_and_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pressure.json"
    assert main([*FEW, *EASY, "--json", str(path)]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[-1] == "all 3 claims hold"
    assert told.err.splitlines()[-1].startswith(" 100 %")
    report = json.loads(path.read_text())
    assert set(report["figures"]) == set(Figures._fields)
    assert 800 < report["figures"]["readings"] <= 864
    assert [claim["name"] for claim in report["claims"]] == ["quick", "flat", "cheap"]
    assert report["holds"] is True


def test_a_claim_that_fails_is_told_by_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FEW, *EASY, "--max-s", "0"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == "1 of 3 claims fail"
    assert told[-4].startswith("FAILS  quick: ")


@pytest.mark.parametrize(
    ("limits", "failing"),
    [
        ((1.1, 1.1, 0.0011), set()),
        ((1.0, 1.1, 0.0011), {"quick"}),
        ((1.1, 1.0, 0.0011), {"flat"}),
        ((1.1, 1.1, 0.001), {"cheap"}),
    ],
)
def test_each_claim_is_a_limit_of_its_own(limits: tuple[float, float, float], failing: set[str]) -> None:
    found: list[Claim] = claims(FIGURES, *limits)
    assert {claim.name for claim in found if not claim.holds} == failing


@pytest.mark.parametrize("days", ["0", "-1", "nan", "inf"])
def test_a_run_needs_time_to_simulate(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--days", days])
    assert "--days" in capsys.readouterr().err
