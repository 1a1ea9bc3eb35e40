"""A few keys of the file change; comments, order and every other line stay."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swapd.config_lines import Path
from swapd.errors import Code, SwapdError
from swapd.pressure.settings_rules import RETIRED_KEYS, without_retired
from swapd.settings.difference import HIDDEN, unified
from swapd.settings.editing import Value, edited
from swapd.settings.fields import OWNER, PRESSURE
from tests.settings.files import GOOD, HEAD, TOKEN

CHANGES: dict[Path, Value | None] = {
    (*OWNER, "lend_when"): "locked",
    (*OWNER, "ignore"): ("obs", "zoom"),
    (*PRESSURE, "cap_pct"): 45.0,
    (*PRESSURE, "floor_pct"): 30.5,
    **{(*PRESSURE, key): None for key in RETIRED_KEYS},
}


def test_values_change_in_place_and_new_keys_stand_behind_the_last_of_their_table() -> None:
    """R122: and the retired keys go."""
    assert edited(GOOD, CHANGES) == HEAD + (
        """
# What I allow.
[owner]  # mine
consent = true    # yes
ignore = [
  "obs", # records the screen
  "zoom",
]
lend_when = "locked"

# Learned, mostly.
[owner.gpu_pressure]
cap_pct = 45  # was 50
floor_pct = 30.5
"""
    )


def test_nothing_to_change_leaves_every_byte() -> None:
    assert edited(HEAD, {(*PRESSURE, "baseline_quantile"): None}) == HEAD
    for text in (GOOD, GOOD.replace("\n", "\r\n")):
        assert edited(text, {}) == text


LAYOUTS = {
    "no owner at all": HEAD,
    "no pressure table": HEAD + "[owner]\nconsent = true\n\n# the log\n[timers]\nrpc_s = 3.0\n",
    "no owner table": HEAD + "[owner.gpu_pressure]\ncap_pct = 40\n",
    "the wrong way round": "#1\n[owner.gpu_pressure]\n#2\ncap_pct = 4\n[timers]\nrpc_s = 3\n[owner] #3\n#4\n",
    "inline": '#1\nowner = { consent = true, ignore = ["beep", "obs"] } #2\n' + HEAD,
    "dotted": "owner.consent = true\nowner.gpu_pressure.cap_pct = 41 # c\n" + HEAD,
    "half dotted": HEAD + "[owner]\ngpu_pressure.cap_pct = 41 # c\nconsent = true\n",
    "indented": HEAD + "[owner]\n  # c\n  consent = true\n  [owner.gpu_pressure]\n    cap_pct = 40\n",
    "no end of line": HEAD + "[owner]\nignore = ['beep']",
    "quoted": HEAD + '["owner"]\n"consent" = true\n[owner."gpu_pressure"]\n"cap_pct" = 1e1\n',
    "windows": GOOD.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS)
def test_whatever_the_layout_the_file_says_then_what_was_meant(text: str) -> None:
    made = edited(text, CHANGES)
    assert tomllib.loads(made) == meant(tomllib.loads(text), CHANGES)
    assert comments(text) <= comments(made) | {"# old"}
    assert made.count("\r\n") in (0, made.count("\n"))
    assert TOKEN not in "\n".join(unified(text, made, "swapd.toml"))


def meant(data: dict[str, Any], changes: dict[Path, Value | None]) -> dict[str, Any]:
    """By hand, as `msgspec` will see it; a list is a set to every setting here."""
    for path, value in changes.items():
        table = data.setdefault("owner", {})
        if len(path) == 3:
            table = (
                table.setdefault("gpu_pressure", {}) if value is not None else table.get("gpu_pressure", {})
            )
        table.pop(path[-1], None)
        if value is not None:
            table[path[-1]] = list(value) if isinstance(value, tuple) else value
    return data


def comments(text: str) -> set[str]:
    """Of texts whose strings hold no `#`."""
    return {line[line.index("#") :].strip() for line in text.splitlines() if "#" in line}


NAMES = st.text("abc-é", min_size=1, max_size=4)
VALUES: dict[Path, st.SearchStrategy[Value]] = {
    (*OWNER, "consent"): st.booleans(),
    (*OWNER, "lend_when"): st.sampled_from(["always", "locked"]),
    (*OWNER, "ignore"): st.lists(NAMES, unique=True, max_size=4).map(tuple),
    (*OWNER, "quiet_lead_s"): st.integers(0, 99).map(float),
    (*PRESSURE, "mode"): st.sampled_from(["calibrated", "fixed"]),
    (*PRESSURE, "cap_pct"): st.floats(0, 100, allow_nan=False),
    (*PRESSURE, "warmup_samples"): st.integers(1, 99),
    (*PRESSURE, "baseline_quantile"): st.floats(0, 1, allow_nan=False),
}
COMMENT = st.text("xyz =[]'\".", max_size=6).map(lambda text: f"# {text}".rstrip())


def toml(value: Value, draw: st.DrawFn) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{value}"'
        case tuple():
            breaks = draw(st.sampled_from(["", "\n  ", f"\n  {draw(COMMENT)}\n  "]))
            return "[" + "".join(f'{breaks}"{item}",' for item in value) + (breaks and "\n") + "]"
        case _:
            return repr(value)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Tables in any order, comments and blank lines anywhere, keys written or not."""
    tables: dict[str, list[str]] = {"[timers]": ["rpc_s = 3.0"], "[[credentials]]": ['token = "secret"']}
    for path, values in VALUES.items():
        if draw(st.booleans()):
            line = f"{path[-1]} = {toml(draw(values), draw)}"
            tables.setdefault(f"[{'.'.join(map(str, path[:-1]))}]", []).append(line)
    lines = ["port = 1"]
    for table in draw(st.permutations(sorted(tables))):
        for line in (table, *draw(st.permutations(tables[table]))):
            lines += draw(st.lists(st.one_of(st.just(""), COMMENT), max_size=2))
            lines.append(line + draw(st.one_of(st.just(""), COMMENT.map(lambda text: f"  {text}"))))
    lines += draw(st.lists(COMMENT, max_size=1))
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines) + draw(st.sampled_from(["", "\n"]))


@st.composite
def edits(draw: st.DrawFn) -> dict[Path, Value | None]:
    chosen = draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True))
    return {path: draw(st.one_of(st.none(), VALUES[path])) for path in chosen}


@settings(max_examples=40, deadline=None)
@given(documents(), edits())
def test_any_edit_says_what_was_meant_and_touches_only_its_lines(
    text: str, changes: dict[Path, Value | None]
) -> None:
    """R122: what is read again is the configuration that was meant; comments and order are the old ones."""
    text = text.replace("\r\n", "\n") if text.count("\r\n") != text.count("\n") else text
    try:
        made = edited(text, changes)
    except SwapdError as error:
        pytest.fail(f"{error.code}: {text!r} {changes!r}")
    got, wanted = tomllib.loads(made), meant(tomllib.loads(text), changes)
    for data in (got, wanted):
        # A list keeps the file's order; it means a set.
        if "ignore" in data.get("owner", {}):
            data["owner"]["ignore"].sort()
    assert got == wanted
    # Headers, other tables' lines and comments of their own line: all are there, in their order.
    left = iter(made.splitlines())
    for line in text.splitlines():
        if line.startswith(("[", "rpc_s", "token", "port", "# ")):
            assert line in left, f"{line!r} is gone or has moved"
    diff = unified(text, made, "swapd.toml")
    assert not any("secret" in line for line in diff)
    assert bool(diff) == (text.splitlines() != made.splitlines())


def test_lines_of_other_tables_are_hidden_in_the_difference() -> None:
    text = GOOD.replace("\n# What I allow.\n[owner]", f"# {TOKEN}\n[owner]").replace(
        "[[devices]]", "[timers]"
    )
    text = text.replace('name = "cpu0"\nkind = "cpu"\ncores = [0]', f'x = """\n{TOKEN}\n"""')
    made = edited(text, {(*OWNER, "consent"): False})
    lines = unified(text, made, "swapd.toml")
    assert "-consent = true    # yes" in lines
    assert "+consent = false    # yes" in lines
    assert f" {HIDDEN}" in lines
    assert TOKEN not in "\n".join(lines)


def test_a_line_separator_in_a_comment_moves_no_line_into_view() -> None:
    """TOML knows one end of a line; Python's `splitlines` knows ten."""
    text = f'# My\u2028\x85machine.\n[[credentials]]\ntoken = "{TOKEN}"\n'
    text += "[owner]\nconsent = true\ngamemode = true\n"
    made = edited(text, {(*OWNER, "consent"): False})
    assert made == text.replace("consent = true", "consent = false")
    lines = unified(text, made, "swapd.toml")
    assert lines[3:] == (f" {HIDDEN}", " [owner]", "-consent = true", "+consent = false", " gamemode = true")


def test_a_layout_that_cannot_be_kept_is_left_to_its_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit is read again before it is taken: one that says or moves something else is refused."""
    from swapd.settings import editing

    honest = editing._edited
    for wrong in (
        lambda made: made.replace("rpc_s = 3", "rpc_s = 4"),
        lambda made: made.replace("# t", "# u"),
        lambda made: made + "[",
    ):
        monkeypatch.setattr(
            editing,
            "_edited",
            lambda text, changes, wrong=wrong: wrong(honest(text, changes)),
        )
        with pytest.raises(SwapdError) as caught:
            edited("[owner]\nconsent = true\n[timers] # t\nrpc_s = 3\n", {(*OWNER, "consent"): False})
        assert caught.value.code is Code.SETTINGS_NOT_EDITABLE


def test_what_a_save_leaves_out_is_what_the_rules_say() -> None:
    """R122."""
    table = tomllib.loads(edited(GOOD, {(*PRESSURE, key): None for key in RETIRED_KEYS}))["owner"][
        "gpu_pressure"
    ]
    assert table == without_retired(tomllib.loads(GOOD)["owner"]["gpu_pressure"])
