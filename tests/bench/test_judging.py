"""How a bench tells what it found, and the status that it ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.judging import Claim, NotRun, conclude, run_bench, write_report

HOLDS = Claim("quick", True, "1 s")
FAILS = Claim("flat", False, "9 MiB")


def test_the_last_line_and_the_status_are_those_of_all_claims(capsys: pytest.CaptureFixture[str]) -> None:
    assert conclude("a table", [HOLDS, HOLDS]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a table",
        "holds  quick: 1 s",
        "holds  quick: 1 s",
        "all 2 claims hold",
    ]
    assert conclude("a table", [HOLDS, FAILS]) == 1
    assert capsys.readouterr().out.splitlines()[2:] == ["FAILS  flat: 9 MiB", "1 of 2 claims fail"]


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (NotRun("no browser"), 2, "bench: no browser\n"),
        (ExceptionGroup("", [ExceptionGroup("", [NotRun("deep inside")])]), 2, "bench: deep inside\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_bench_that_could_not_measure_has_a_status_of_its_own(
    error: BaseException, status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def bench() -> int:
        raise error

    assert run_bench("bench", bench) == status
    assert capsys.readouterr().err == told
    assert run_bench("bench", lambda: 1) == 1


def test_a_report_has_its_claims(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_report(path, {"version": 1}, [FAILS])
    claim = {"name": "flat", "holds": False, "detail": "9 MiB"}
    assert json.loads(path.read_text()) == {"version": 1, "claims": [claim]}
    write_report(None, {}, [])
