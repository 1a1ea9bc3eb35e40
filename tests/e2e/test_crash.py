"""A few cells of the crash matrix, and that the drill can fail (B25, A36)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ops.crashing.judge import Evidence, MoveRow, compare, judge
from ops.crashing.matrix import MATRIX, STEPS, Cell, all_cells, chosen
from ops.drill_crash import main
from tests.e2e.deployment import REPO

CELLS = "V:target,K:store-after,V:cancel"
"""None that waits for a stopped process to be late: on a busy machine it may come in time."""


def drill(folder: Path, *options: str) -> tuple[int, str, list[Any]]:
    report = folder / "crash.json"
    done = subprocess.run(
        [sys.executable, "ops/drill_crash.py", "--json", str(report), *options],
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        cwd=REPO,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert [path.name for path in folder.iterdir()] == ["crash.json"], done.stderr.decode()
    return done.returncode, done.stdout.decode() + done.stderr.decode(), json.loads(report.read_bytes())


@pytest.mark.timeout(120)
def test_a_crash_at_a_step_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """H16, H18, H69, H71, H147, H160: a few cells; the whole matrix is a command."""
    code, said, cells = drill(tmp_path, "--patient", f"--cells={CELLS}")
    assert code == 0, said
    assert {cell["name"]: cell["class_"] for cell in cells} == {
        "V:target": "RH",
        "K:store-after": "RY",
        "V:cancel": "x",
    }
    assert "drill_crash: ok: 3 cells, 0 lost, 0 doubled, 0 left behind, 0 otherwise wrong" in said


@pytest.mark.timeout(120)
def test_a_broken_order_of_commit_and_release_makes_the_drill_fail(tmp_path: Path) -> None:
    """H68: released before the commit, a coordinator's crash loses the session; the drill says so."""
    code, said, [cell] = drill(
        tmp_path, "--patient", "--cells=K:coordinator:no-replay", "--break=commit_order"
    )
    assert code == 1, said
    assert "lost" in {kind for kind, _ in cell["faults"]}
    assert "drill_crash: FAILED: 1 cells, 1 lost" in said


def test_a_stopped_process_is_not_waited_for_with_long_timers(capsys: pytest.CaptureFixture[str]) -> None:
    for cells in ([], ["--cells=R:target-stop"]):
        with pytest.raises(SystemExit):
            main(["--patient", *cells])
        assert "--patient needs --cells" in capsys.readouterr().err


def moved(*outcomes: tuple[str, str | None, str], state: str = "completed", **told: Any) -> Evidence:
    moves = tuple(MoveRow(*outcome, epoch=1) for outcome in outcomes)
    seen = {"outcome": "completed_native", "reason": None, "code": None, "drain_state": "drained"} | told
    return Evidence(moves=moves, state=state, **seen)


NATIVE = ("completed_native", None, "finished")


def test_every_step_has_a_cell_for_every_kill() -> None:
    for victim in ("source", "target", "coordinator", "store", "client", "cancel", "cancel-drain", "owner"):
        assert list(MATRIX[victim]) == list(STEPS)
    assert [cell.name for cell in chosen("K:target,L:target:no-replay")] == ["K:target", "L:target:no-replay"]
    assert len({cell.name for cell in all_cells()}) == len(list(all_cells())) > 121
    with pytest.raises(ValueError, match="no cell"):
        chosen("F:arena")


@pytest.mark.parametrize(
    ("cell", "seen"),
    [
        (Cell("V", "coordinator"), moved(("aborted_source_resumed", "coordinator_restart", "committed"))),
        (Cell("X", "target"), moved(NATIVE)),
        (Cell("X", "target"), moved(("aborted_source_resumed", "target_lost", "precopying"))),
        (Cell("C", "source", replay=False), moved(("failed", "source_lost", "precopying"))),
        (Cell("V", "target"), moved(NATIVE)),
        (Cell("K", "cancel"), moved(NATIVE, state="cancelled")),
    ],
)
def test_an_end_of_another_class_is_a_fault(cell: Cell, seen: Evidence) -> None:
    assert judge(cell, seen)[0] == "?"
    assert [fault.kind for fault in judge(cell, seen)[1]] == ["other"]


def test_a_session_that_failed_though_it_could_go_on_is_lost() -> None:
    aborted = moved(("aborted_source_resumed", "coordinator_restart", "prepared"), state="failed")
    assert [fault.kind for fault in judge(Cell("K", "coordinator"), aborted)[1]] == ["lost"]


def test_a_stream_is_held_against_the_reference_token_by_token() -> None:
    """The judge can fail: lost, doubled, changed and not accepted tokens are each told."""
    whole = [1, 2, 3, 4]
    assert compare(whole, whole, "completed", 4) == []
    assert compare([1, 2], whole, "cancelled", 2) == []
    assert [fault.kind for fault in compare([1, 2], whole, "completed", 2)] == ["lost"]
    assert [fault.kind for fault in compare([1, 2, 2, 3], whole, "completed", 4)] == ["doubled"]
    assert [fault.kind for fault in compare([1, 9, 3, 4], whole, "completed", 4)] == ["lost"]
    assert [fault.kind for fault in compare([1, 2, 3, 4, 4], whole, "completed", 5)] == ["doubled"]
    assert [fault.kind for fault in compare(whole, whole, "completed", 3)] == ["lost"]
