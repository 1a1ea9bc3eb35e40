"""`ops/mutants`: changes are found and made, a fork sees them, and a survivor is not passed over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ops.mutating.sites import mutants
from ops.mutating.trial import module_name

pytestmark = pytest.mark.once
ROOT = Path(__file__).resolve().parent.parent
MODULE = '''
"""A docstring with 1 in it."""
LIMIT: int = 4

def ahead(a: int, b: int) -> bool:
    """Not touched: 7."""
    return a - b > LIMIT and a >= 0
'''


def run_apart(folder: Path, source: str, timeout_s: float) -> str:
    """`run_tests` in a process of its own: a fork of a pytest that is running is no fair trial."""
    program = (
        "import sys; from pathlib import Path; from ops.mutating.trial import run_tests\n"
        "print(run_tests(['test_room.py'], path='room.py', source=sys.argv[1],"
        " timeout_s=float(sys.argv[2]), root=Path(sys.argv[3])))"
    )
    command = [sys.executable, "-c", program, source, str(timeout_s), str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def test_every_small_change_is_found_once_and_the_rest_stays() -> None:
    found = mutants("m.py", MODULE)
    keys = [mutant.key for mutant in found]
    assert len(set(keys)) == len(keys)
    assert "m.py::module::constant: 4 -> 5" in keys
    assert "m.py::ahead::comparison: a - b > LIMIT -> a - b >= LIMIT" in keys
    assert "m.py::ahead::arithmetic: a - b -> a + b" in keys
    assert sum("::logic:" in key for key in keys) == 1
    # Nothing of annotations and docstrings.
    assert all("7" not in key and "docstring" not in key for key in keys)
    # One change each: a mutant differs from the module, and no change stays for the next.
    plain = mutants("m.py", MODULE)
    assert [m.source for m in plain] == [m.source for m in found]
    assert all(mutant.source.count("LIMIT") >= 1 for mutant in found)


def test_an_entry_of_a_table_can_be_missing() -> None:
    (first, second) = [m for m in mutants("m.py", "T = {a: b, c: d}") if "::entry:" in m.key]
    assert first.source == "T = {c: d}"
    assert second.source == "T = {a: b}"


@pytest.mark.parametrize(("body", "expected"), [("LIMIT = 3", "passed"), ("LIMIT = 4", "failed")])
def test_the_fork_runs_the_tests_against_the_changed_module(tmp_path: Path, body: str, expected: str) -> None:
    (tmp_path / "room.py").write_text("LIMIT = 3\n")
    (tmp_path / "test_room.py").write_text(
        "from room import LIMIT\n\ndef test_it():\n    assert LIMIT == 3\n"
    )
    assert run_apart(tmp_path, body, 30) == expected


def test_a_mutant_that_hangs_is_ended(tmp_path: Path) -> None:
    (tmp_path / "room.py").write_text("")
    (tmp_path / "test_room.py").write_text("import room\n\ndef test_it():\n    pass\n")
    assert run_apart(tmp_path, "while True:\n    pass\n", 3) == "timeout"


def test_the_modules_name_is_that_of_its_file() -> None:
    assert module_name("swapd/pressure/cache.py") == "swapd.pressure.cache"
