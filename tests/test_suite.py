"""The parts of `ops/test`: none of the tests is left out, and none runs twice on one Python."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

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
