"""Every key of a TOML file is found on its own line, however it is written."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swapd.config_lines import Path, key_lines, nearest_line, show_path

AWKWARD = '''# a comment with [brackets] and "quotes"
first = """
not = a key
[neither]
"""
"quoted key" = 'lit # eral'   # and a comment

[table.sub]
dotted.key."with.dot" = { x = 1, y = [1, 2,
   3], "z" = { deep = "}" } }
after = "esc \\" = [ quote"

[[items]]
name = "one"
[items.inner]
value = 2026-01-02 03:04:05
[[items]]
name = "two"
[[items.list]]
n = 1
[[items.list]]
n = 2
many = [
  "a", # first
  { b = 1 },

  '\\',
]
last = """ends in two quotes"""""
end = 1
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("first",), 2),
        (("quoted key",), 6),
        (("table",), 8),
        (("table", "sub", "dotted", "key", "with.dot", "x"), 9),
        (("table", "sub", "dotted", "key", "with.dot", "y", 2), 10),
        (("table", "sub", "dotted", "key", "with.dot", "z", "deep"), 10),
        (("table", "sub", "after"), 11),
        (("items", 0, "name"), 14),
        (("items", 0, "inner", "value"), 16),
        (("items", 1, "name"), 18),
        (("items", 1, "list", 0, "n"), 20),
        (("items", 1, "list", 1, "n"), 22),
        (("items", 1, "list", 1, "many", 1, "b"), 25),
        (("items", 1, "list", 1, "many", 2), 27),
        (("items", 1, "list", 1, "last"), 29),
        (("items", 1, "list", 1, "end"), 30),
    ],
)
def test_a_key_is_found_on_its_line(path: Path, line: int) -> None:
    assert key_lines(AWKWARD)[path] == line


def paths_of(value: Any, path: Path = ()) -> set[Path]:
    """All paths of a parsed document, by a way that has nothing to do with the scanner."""
    found = {path} if path else set()
    if isinstance(value, dict):
        for key, each in value.items():
            found |= paths_of(each, (*path, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            found |= paths_of(each, (*path, index))
    return found


def test_every_path_of_an_awkward_document_has_a_line() -> None:
    assert set(key_lines(AWKWARD)) == paths_of(tomllib.loads(AWKWARD))


def test_windows_line_ends_count_once() -> None:
    assert key_lines("a = 1\r\nb = 2\r\n")[("b",)] == 2


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8)
keys = st.text("abc-_ .\"'=[]{}#é", min_size=1, max_size=6)
scalars = st.one_of(st.integers(-5, 5), st.booleans(), texts, st.just(1.5))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=4,
)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def inline(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return "[" + ",\n ".join(inline(each) for each in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)} = {inline(each)}" for key, each in value.items()) + "}"
    return str(value)


@settings(deadline=None)
@given(
    st.dictionaries(keys, values, max_size=4),
    st.dictionaries(keys, st.lists(st.dictionaries(keys, values, max_size=3), max_size=3), max_size=3),
)
def test_the_scanner_agrees_with_the_parser(pairs: dict[str, Any], tables: dict[str, Any]) -> None:
    tables = {key: each for key, each in tables.items() if key not in pairs and each}
    text = "".join(f"{quoted(key)} = {inline(value)}\n" for key, value in pairs.items())
    for name, entries in tables.items():
        for entry in entries:
            text += f"[[ {quoted(name)} ]] # {name}\n"
            text += "".join(f"{quoted(key)} = {inline(value)}\n" for key, value in entry.items())
    lines = key_lines(text)
    assert set(lines) == paths_of(tomllib.loads(text))
    rows = text.split("\n")
    for path, line in lines.items():
        if isinstance(path[-1], str):
            assert quoted(path[-1]) in rows[line - 1]


def test_a_missing_key_is_reported_at_its_table() -> None:
    assert nearest_line({("a",): 3}, ("a", "b", 0)) == 3
    assert nearest_line({}, ("a",)) is None
    assert show_path(("workers", 1, "cores", 0)) == "workers[1].cores[0]"
