"""The rules and the tests agree: what is done has a test, what a test names exists."""

from __future__ import annotations

import json

import pytest

from ops import _rules

pytestmark = pytest.mark.once

PAGE = "text\n- **H1** `done` One.\n- **H2** `planned` Two.\n"


def test_every_done_rule_has_a_test_and_every_named_rule_exists() -> None:
    assert _rules.problems(_rules.read_rules(), _rules.naming_tests()) == []


def test_no_rule_got_lost() -> None:
    rules = _rules.read_rules()
    counts = {letter: sum(number[0] == letter for number in rules) for letter in _rules.LETTERS}
    assert counts == {"H": 235, "B": 51, "R": 130, "D": 40, "P": 10, "O": 10}
    for letter, count in counts.items():
        assert {f"{letter}{n}" for n in range(1, count + 1)} <= set(rules)


def test_a_done_rule_without_a_test_is_a_problem() -> None:
    rules = {rule.number: rule for rule in _rules.read_page(PAGE, "page.md")}
    assert _rules.problems(rules, {"H2": ["t"]}) == ["H1 is done (page.md:2), but no test names it."]
    assert _rules.problems(rules, {"H1": ["t"]}) == []


def test_a_dropped_rule_needs_no_test_and_may_have_none() -> None:
    page = PAGE.replace("`planned` Two", "`dropped` (decision 17) Two").replace("`done`", "`planned`")
    rules = {rule.number: rule for rule in _rules.read_page(page, "page.md")}
    assert _rules.problems(rules, {}) == []
    assert _rules.problems(rules, {"H2": ["tests/test_x.py::test_y"]}) == [
        "tests/test_x.py::test_y names H2, but that was dropped."
    ]


def test_a_test_that_names_no_rule_is_a_problem() -> None:
    rules = {rule.number: rule for rule in _rules.read_page(PAGE, "page.md")}
    named = {"H1": ["t"], "H3": ["tests/test_x.py::test_y"]}
    assert _rules.problems(rules, named) == ["tests/test_x.py::test_y names H3, but there is no such rule."]


@pytest.mark.parametrize(
    "line", ["- **H3** text", "- **H3** `finished` text", "  - **H3** `done` text", "- **H03** `done` text"]
)
def test_an_item_that_is_nearly_a_rule_is_refused(line: str) -> None:
    with pytest.raises(_rules.RulesError, match=r"page\.md:4"):
        list(_rules.read_page(PAGE + line + "\n", "page.md"))


def test_only_docstrings_and_the_first_word_of_a_name_count() -> None:
    source = (
        'def test_a():\n    "H' + '18 and B5-B7, not p95."\n    x = "R1"  # R2\n'
        "async def test_h20_order(): pass\n"
        "def test_b2_is_h30(): pass\n"
        "def helper():\n    'R3'\n"
        "class TestMachine:\n    'P" + "1'\n    def test_b(self):\n        'O2.'\n"
    )
    assert sorted(_rules.named_by(source)) == [
        ("B2", "test_b2_is_h30"),
        ("B5", "test_a"),
        ("B6", "test_a"),
        ("B7", "test_a"),
        ("H18", "test_a"),
        ("H20", "test_h20_order"),
        ("O2", "test_b"),
        ("P1", "TestMachine"),
    ]


def test_the_table_and_the_json_tell_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert _rules.main(["--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert _rules.main(["--all"]) == 0
    shown = capsys.readouterr().out
    assert len(entries) == len(_rules.read_rules())
    for entry in entries:
        assert f"\n{entry['number']:<6}{entry['state']:<9}" in shown
