"""A few cells of the crash matrix, and that the drill can fail (B25, A36)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ops.crashing.judge import Evidence, MoveRow, check_record, compare, judge
from ops.crashing.matrix import MATRIX, STEPS, Cell, all_cells, chosen
from ops.crashing.stage import Stage
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
NOTED = ("completed_native", "source_lost", "finished")


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
        (Cell("T", "source"), moved(NATIVE)),
        (Cell("I", "source-stop"), moved(NATIVE, reason="source_lost")),
        (Cell("K", "source"), moved(NOTED)),
        (Cell("C", "client"), moved(NOTED, reason="source_lost")),
        (Cell("Z", "source"), moved(NOTED, reason="source_lost")),
        (Cell("L", "cancel"), moved(NATIVE, state="cancelled", outcome="cancelled")),
        (
            Cell("C", "cancel-drain"),
            moved(
                CANCELLED,
                outcome="cancelled",
                reason="drain_cancelled",
                drain_state="cancelled",
                worker="a",
                epoch=1,
            ),
        ),
    ],
)
def test_an_end_of_another_class_is_a_fault(cell: Cell, seen: Evidence) -> None:
    assert judge(cell, seen)[0] == "?"
    assert [fault.kind for fault in judge(cell, seen)[1]] == ["other"]


@pytest.mark.parametrize(
    ("cell", "class_"),
    [
        (Cell("T", "source"), "RF"),
        (Cell("I", "source-stop"), "RF"),
        (Cell("V", "source"), "GO"),
        (Cell("L", "source-stop"), "GO"),
    ],
)
def test_a_move_that_went_on_without_its_source_says_so(cell: Cell, class_: str) -> None:
    """RF: the note; where the source is lost after the commit, it may be there."""
    assert judge(cell, moved(NOTED, reason="source_lost")) == (class_, [])


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


async def test_what_a_worker_counted_before_the_end_of_a_cell_is_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H210, invariant 4: blocks that are still held are seen, however well the last heartbeat looked."""
    stage = Stage("sim", ".", 4.0)
    usable = {"usable_blocks": 100, "committed_blocks": 0, "drain": None, "admitting": True}
    idle = dict.fromkeys(("running", "held", "frozen", "reserved", "sessions", "unaccepted"), 0)
    looks = 0

    async def workers() -> dict[str, Any]:
        nonlocal looks
        looks += 1
        if looks < 3:
            # From when the session had not begun, or was not there any more and its import was.
            return {name: {**usable, "free_blocks": 100, "stats": {**idle, "taken_at": 1.0}} for name in "ab"}
        stats = {**idle, "taken_at": time.monotonic()}
        return {
            name: {**usable, "free_blocks": free, "stats": stats} for name, free in (("a", 100), ("b", 93))
        }

    async def sessions(*_: object) -> Any:
        return {"sessions": []}

    async def held() -> list[str]:
        return []

    monkeypatch.setattr(stage.deployment, "workers", workers)
    monkeypatch.setattr(stage, "view", sessions)
    monkeypatch.setattr(stage, "_held", held)
    try:
        [fault] = await stage.check_rest()
    finally:
        stage.close(keep=False)
    assert fault.kind == "left"
    assert "worker b holds blocks" in fault.text


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
