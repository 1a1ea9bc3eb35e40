"""The parts of `ops/test`: none of the tests is left out, and none runs twice on one Python."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import SEARCHED, TAKES_S, all_of, may_have, pytest_collection_modifyitems

ROOT = Path(__file__).resolve().parent.parent
MARKERS = ("vllm", "alone", "browser", "once", "each_python")


def parts(interpreter: str) -> list[str]:
    """The marker expressions of the parts that an interpreter runs."""
    script = (ROOT / "ops" / "test").read_text()
    [fast] = re.findall(r'^fast="(.+)"$', script, re.MULTILINE)
    found = re.findall(rf'^ *part "[^"]+" {re.escape(interpreter)} "([^"]+)"', script, re.MULTILINE)
    return [expression.replace("$fast", fast) for expression in found]


def selected(expression: str, markers: set[str]) -> bool:
    return bool(eval(expression, {name: name in markers for name in MARKERS}))


COMBINATIONS = [
    {name for name, given in zip(MARKERS, chosen, strict=True) if given}
    for chosen in itertools.product([False, True], repeat=len(MARKERS))
]


@pytest.mark.parametrize("markers", COMBINATIONS, ids=lambda markers: "-".join(sorted(markers)) or "none")
def test_each_test_is_in_one_part(markers: set[str]) -> None:
    # A browser test needs no vLLM and no quiet machine.
    if "browser" not in markers or not markers & {"vllm", "alone"}:
        assert [selected(part, markers) for part in parts(".venv/bin/python")].count(True) == 1
    plain = not markers & {"vllm", "alone", "browser", "once"}
    assert [selected(part, markers) for part in parts(".venv313/bin/python")] == [plain]


@pytest.mark.parametrize("part", parts(".venv/bin/python"))
def test_a_part_reads_all_files_that_have_a_test_for_it(part: str) -> None:
    """What a file is left out for, no test that is selected lacks."""
    wanted = all_of(part) & set(SEARCHED)
    assert wanted == {
        name for name in SEARCHED if not any(selected(part, c) for c in COMBINATIONS if name not in c)
    }


def test_a_file_is_left_out_only_where_it_cannot_have_the_marker() -> None:
    assert all_of("vllm or alone") == all_of("not (vllm and alone)") == set()
    tests = ROOT / "tests"
    assert [name for name in SEARCHED if may_have(tests / "e2e" / "test_lending_sim.py", name)] == ["alone"]
    assert [name for name in SEARCHED if may_have(tests / "e2e" / "test_quickstart_lending.py", name)] == [
        "vllm",
        "alone",
    ]
    assert [name for name in SEARCHED if may_have(tests / "browser" / "test_drains.py", name)] == ["browser"]
    assert not any(may_have(tests / "test_log.py", name) for name in SEARCHED)


@pytest.mark.parametrize("marker", SEARCHED)
def test_a_marker_that_the_search_would_miss_ends_the_run(tmp_path: Path, marker: str) -> None:
    path = tmp_path / "test_some.py"
    path.write_text("pytestmark = made_elsewhere()")

    def marked(name: str) -> object:
        return object() if name == marker else None

    item: Any = SimpleNamespace(nodeid="test_some.py::test_it", path=path, get_closest_marker=marked)
    with pytest.raises(pytest.UsageError, match=f"test_some.py::test_it is marked {marker} in a way"):
        pytest_collection_modifyitems([item])


def test_what_begins_first_is_there_and_the_longest_is_the_first() -> None:
    for name in TAKES_S:
        assert (ROOT / name).exists() or (ROOT / "tests" / name).exists(), name

    def item(name: str) -> Any:
        return SimpleNamespace(path=ROOT / "tests" / name, get_closest_marker=lambda name: None)

    items = [item("test_log.py"), item("e2e/test_soak.py"), item("test_cli.py"), item("e2e/test_sim.py")]
    pytest_collection_modifyitems(items)
    assert [one.path.name for one in items] == ["test_sim.py", "test_soak.py", "test_log.py", "test_cli.py"]
