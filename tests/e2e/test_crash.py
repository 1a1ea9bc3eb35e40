"""A few cells of the crash matrix, and that the drill can fail (B25, A36)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.crashing.judge import Evidence, MoveRow, check_record, compare, judge
from ops.crashing.matrix import MATRIX, STEPS, Cell, all_cells, chosen
from tests.devices.fake_nvml import compiler
from tests.e2e.drills import run_drill

CELLS = "V:target,K:store-after,V:cancel,K:coordinator:after,L:source-stop"


def drill(folder: Path, *options: str) -> tuple[int, str, list[Any]]:
    return run_drill("ops/drill_crash.py", folder, *options)


@pytest.mark.timeout(300)
def test_a_crash_at_a_step_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """H16, H18, H69, H71, H147, H160, B33: a few cells; the whole matrix is a command."""
    code, said, cells = drill(tmp_path, f"--cells={CELLS}")
    assert code == 0, said
    assert {cell["name"]: cell["class_"] for cell in cells} == {
        "V:target": "RH",
        "K:store-after": "RY",
        "V:cancel": "x4",
        "K:coordinator:after": "RY",
        "L:source-stop": "GO",
    }
    assert "drill_crash: ok: 5 cells, 0 lost, 0 doubled, 0 left behind, 0 otherwise wrong" in said


@pytest.mark.timeout(300)
@pytest.mark.skipif(compiler() is None, reason="the fake NVML is C, and there is no C compiler")
def test_the_owners_load_on_the_target_moves_the_session_on(tmp_path: Path) -> None:
    """R41, B16, B17: the tracker engages by itself while the release is held; the device is given back."""
    code, said, cells = drill(tmp_path, "--cells=L:owner")
    assert code == 0, said
    [cell] = cells
    assert cell["class_"] == "o"


@pytest.mark.timeout(180)
def test_a_broken_order_of_commit_and_release_makes_the_drill_fail(tmp_path: Path) -> None:
    """H68: released before the commit, a coordinator's crash loses the session; the drill says so."""
    code, said, [cell] = drill(tmp_path, "--cells=K:coordinator:no-replay", "--break=commit_order")
    assert code == 1, said
    assert "lost" in {kind for kind, _ in cell["faults"]}
    assert "drill_crash: FAILED: 1 cells, 1 lost" in said


def moved(*outcomes: tuple[str, str | None, str], state: str = "completed", **told: Any) -> Evidence:
    moves = tuple(MoveRow(*outcome, epoch=1) for outcome in outcomes)
    told = {"outcome": "completed_native", "reason": None, "code": None, "drain_state": "drained"} | told
    seen: dict[str, Any] = told
    return Evidence(moves=moves, state=state, **seen)


NATIVE = ("completed_native", None, "finished")
LOST = ("failed", "source_lost", "precopying")
CANCELLED = ("cancelled", "session_cancelled", "prepared")


def test_every_step_has_a_cell_for_every_kill() -> None:
    some = {"store-after", "arena", "target-late"}
    for victim in set(MATRIX) - some:
        assert list(MATRIX[victim]) == list(STEPS)
    assert [cell.name for cell in chosen("K:target,L:target:no-replay")] == ["K:target", "L:target:no-replay"]
    for cells in (list(all_cells()), list(all_cells(after=True))):
        assert len({cell.name for cell in cells}) == len(cells) > 121
        assert all(cell.allowed for cell in cells)
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
        (
            Cell("K", "coordinator", after=True),
            moved(("aborted_source_resumed", "coordinator_restart", "prepared")),
        ),
        (Cell("C", "client"), moved(NATIVE, worker="a", epoch=1)),
        (
            Cell("X", "cancel"),
            moved(CANCELLED, state="cancelled", outcome="cancelled", reason="session_cancelled"),
        ),
        (Cell("K", "owner"), moved(NATIVE)),
        (Cell("C", "source"), moved(LOST, outcome="completed_replay")),
    ],
)
def test_an_end_of_another_class_is_a_fault(cell: Cell, seen: Evidence) -> None:
    assert judge(cell, seen)[0] == "?"
    assert [fault.kind for fault in judge(cell, seen)[1]] == ["other"]


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (moved(NATIVE, epoch=3), "doubled"),
        (moved(NATIVE, epoch=1), "doubled"),
        (moved(("aborted_source_resumed", "target_lost", "frozen"), NATIVE, epoch=1), "doubled"),
        (moved(NATIVE, recomputed=3), "other"),
        (moved(NATIVE, outcome="aborted_source_resumed"), "other"),
    ],
)
def test_records_that_do_not_agree_are_a_fault(seen: Evidence, kind: str) -> None:
    """H55, H69, H75: the epochs of moves and session, what was recomputed, what the drain says."""
    cell = Cell("V", "coordinator")
    assert check_record(cell, moved(NATIVE)) == []
    assert [fault.kind for fault in check_record(cell, seen)] == [kind]


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
