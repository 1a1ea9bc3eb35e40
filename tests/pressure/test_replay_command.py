"""`swapd replay-readings`, as a person and as a program uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from swapd.cli import main
from swapd.pressure.replay import ROW_FIELDS

HEAD = "t_s,reading,attendance\n"
CONFIG = """database_path = "swapd.db"
socket_dir = "run"
allow_sim_engine = true
[[workers]]
worker_id = "a"
engine = "sim"
[[models]]
alias = "m"
path = "model"
[[credentials]]
namespace = "me"
token = "a-tenant-token-for-the-test"
"""


def run(*args: str, input: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["replay-readings", *args], input=input)


@pytest.fixture
def day(tmp_path: Path) -> Path:
    """Warm-up at 3 %, then half a minute at 90 %."""
    path = tmp_path / "day.csv"
    values = [3] * 60 + [90] * 6
    path.write_text(HEAD + "".join(f"{5 * n},{value},unlocked\n" for n, value in enumerate(values)))
    return path


def test_json_is_the_rows_and_nothing_else(day: Path) -> None:
    done = run(str(day), "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 66
    assert all(tuple(each) == ROW_FIELDS for each in rows)
    assert rows[0]["threshold_pct"] is None
    assert rows[59]["threshold_pct"] == 25.0
    assert [each["engaged"] for each in rows[60:]] == [False, False, True, True, True, True]


def test_a_person_sees_what_changed_and_one_line_of_sum(day: Path) -> None:
    lines = run(str(day)).stdout.splitlines()
    assert len(lines) == 1 + 4 + 1
    assert [line.split()[0] for line in lines[1:-1]] == ["0", "295", "310", "325"]
    assert lines[0].split()[:4] == ["T", "S", "PROFILE", "READING"]
    assert lines[3].split() == ["310", "unlocked", "90.0", "3.5", "25.0", "25.0", "yes", "yes", "0.09"]
    assert lines[-1] == ("66 rows, 66 readings; engaged once, 15 s in all; Threshold 25% (learned from 0 h)")
    assert len(run(str(day), "--all").stdout.splitlines()) == 1 + 66 + 1


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("", "0 rows, 0 readings"),
        ("0,3,unknown\n", "1 rows, 1 readings; never engaged; attendance unknown at the end"),
        ("0.25,3,locked\n", "1 rows, 1 readings; never engaged; learning: 1 of 60 readings"),
    ],
)
def test_the_sum_of_little(rows: str, told: str) -> None:
    done = run("-", input=HEAD + rows)
    assert done.stdout.splitlines()[-1] == told
    if rows:
        assert done.stdout.splitlines()[1].split()[0] == rows.split(",")[0]


def test_a_hint_is_told_in_the_sum() -> None:
    """R43."""
    rows = "".join(f"{5 * n},90,unlocked\n" for n in range(60))
    told = run("-", input=HEAD + rows).stdout.splitlines()[-1]
    assert "; learned load is above the calibration cap; target held at cap; Threshold 40%" in told


def test_standard_input_may_be_of_another_system() -> None:
    done = run("-", "--json", input=("\ufeff" + HEAD + "0,3,locked\n").replace("\n", "\r\n").encode())
    assert json.loads(done.stdout)["profile"] == "locked"


def test_the_settings_are_those_of_the_configuration(tmp_path: Path, day: Path) -> None:
    path = tmp_path / "swapd.toml"
    path.write_text(
        CONFIG + '[owner]\npresence = "headless"\n[owner.gpu_pressure]\nmode = "fixed"\nthreshold_pct = 42\n'
    )
    path.chmod(0o600)
    rows = HEAD + "0,50,unknown\n"
    (row,) = run("-", "--config", str(path), "--json", input=rows).stdout.splitlines()
    assert json.loads(row)["profile"] == "unlocked"
    assert json.loads(row)["threshold_pct"] == 42.0
    assert "engaged once" in run(str(day), "--config", str(path)).stdout


def test_a_line_that_is_refused_follows_the_rows_before_it() -> None:
    done = run("-", "--json", input=HEAD + "0,3,locked\n5,lost,locked\n10,3,locked\n")
    assert done.exit_code == 2
    assert len(done.stdout.splitlines()) == 1
    assert "standard input line 3: reading must be 0 to 100" in done.stderr
    assert done.stderr.endswith("[invalid_request]\n")


def test_bytes_that_are_no_text_are_named_with_their_line() -> None:
    done = run("-", "--json", input=HEAD.encode() + b"0,\xff\xfe,locked\n")
    assert "line 2: reading must be" in done.stderr


def test_a_file_without_line_ends_is_not_read_whole() -> None:
    done = run("-", input="0" * 1_000_000)
    assert "line 1: the line is over 1000 characters" in done.stderr


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "no.csv", "No such file or directory")):
        done = run(str(path), "--json")
        assert (done.exit_code, done.stdout) == (2, "")
        assert why in done.stderr
    done = run("-", "--config", str(tmp_path / "no.toml"), input=HEAD)
    assert (done.exit_code, done.stderr.endswith("[config_invalid]\n")) == (2, True)
