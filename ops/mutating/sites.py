"""Where a module can be changed in a small way, and the module with one such change.

A change is something a hand could have slipped in: another comparison, a number one off, a sum for a
difference, a condition turned round. Strings, annotations and docstrings are left alone.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
SUMS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """One change. `key` stays the same when lines move, so that an explanation can name it."""

    path: str
    line: int
    key: str
    source: str
    """The whole module with the change."""


class _Change(NamedTuple):
    line: int
    where: str
    kind: str
    before: str
    after: str
    apply: Callable[[], None]
    undo: Callable[[], None]


def mutants(path: str, text: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    tree = ast.parse(text)
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    for change in _changes(tree):
        name = f"{path}::{change.where}::{change.kind}: {change.before} -> {change.after}"
        seen[name] += 1
        key = name if seen[name] == 1 else f"{name} (#{seen[name]})"
        change.apply()
        found.append(Mutant(path, change.line, key, ast.unparse(tree)))
        change.undo()
    return sorted(found, key=lambda mutant: mutant.line)


def _changes(tree: ast.Module) -> Iterator[_Change]:
    yield from _walk(tree, "module")


def _walk(node: ast.AST, where: str) -> Iterator[_Change]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        where = node.name if where == "module" else f"{where}.{node.name}"
    yield from _of(node, where)
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_text(child):
                yield from _walk(child, where)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _of(node: ast.AST, where: str) -> Iterator[_Change]:
    if isinstance(node, ast.Compare):
        for index, old in enumerate(node.ops):
            for kind in COMPARISONS.get(type(old), ()):
                yield _put(node, where, "comparison", node.ops, index, kind())
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in SUMS:
        yield _set(node, where, "arithmetic", "op", SUMS[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield _set(node, where, "logic", "op", other)
    elif isinstance(node, ast.Constant):
        yield from _constants(node, where)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield _set(node, where, "condition", "test", ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        yield _set(node, where, "call", "func", ast.Name(CALLS[node.func.id], ast.Load()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield _set(node, where, "sign", "op", ast.UAdd())
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield _set(node, where, "return", "value", ast.Constant(None))
    elif isinstance(node, ast.Dict) and len(node.keys) > 1:
        yield from _entries(node, where)
    if isinstance(node, ast.stmt):
        yield from _statements(node, where)


def _constants(node: ast.Constant, where: str) -> Iterator[_Change]:
    value = node.value
    if isinstance(value, bool):
        yield _set(node, where, "constant", "value", not value)
    elif isinstance(value, int):
        yield _set(node, where, "constant", "value", value + 1)
    elif isinstance(value, float):
        yield _set(node, where, "constant", "value", value + 1.0)


def _entries(node: ast.Dict, where: str) -> Iterator[_Change]:
    """Leave out one entry of a table."""
    keys, values = node.keys, node.values
    for index, key in enumerate(keys):
        if key is None:
            continue

        def cut(index: int = index) -> None:
            node.keys = keys[:index] + keys[index + 1 :]
            node.values = values[:index] + values[index + 1 :]

        def mend() -> None:
            node.keys, node.values = keys, values

        before = f"{_show(key)}: {_show(values[index])}"
        yield _Change(key.lineno, where, "entry", before, "left out", cut, mend)


def _statements(node: ast.stmt, where: str) -> Iterator[_Change]:
    """Leave out one assignment or call; change one way out of a loop for the other."""
    for name in ("body", "orelse"):
        block = getattr(node, name, None)
        if not isinstance(block, list):
            continue
        for index, inner in enumerate(block):
            is_call = isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call)
            is_store = isinstance(inner, ast.Assign | ast.AugAssign) and not _plain(inner)
            if is_call or is_store:
                yield _put(inner, where, "left out", block, index, ast.Pass())
            elif isinstance(inner, ast.Continue):
                yield _put(inner, where, "loop", block, index, ast.Break())
            elif isinstance(inner, ast.Break):
                yield _put(inner, where, "loop", block, index, ast.Continue())


def _plain(node: ast.Assign | ast.AugAssign) -> bool:
    """A local name that is given a value: leaving it out is a NameError, which every test notices."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in targets)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _set(node: ast.AST, where: str, kind: str, field: str, new: object) -> _Change:
    old = getattr(node, field)
    return _change(node, where, kind, lambda: setattr(node, field, new), lambda: setattr(node, field, old))


def _put(shown: ast.AST, where: str, kind: str, block: list[object], index: int, new: object) -> _Change:
    old = block[index]

    def put(value: object) -> None:
        block[index] = value

    described = shown if isinstance(shown, ast.Compare) else None
    return _change(
        described or shown, where, kind, lambda: put(new), lambda: put(old), None if described else new
    )


def _change(
    node: ast.AST,
    where: str,
    kind: str,
    apply: Callable[[], None],
    undo: Callable[[], None],
    instead: object = None,
) -> _Change:
    before = _show(node)
    apply()
    after = _show(instead if isinstance(instead, ast.AST) else node)
    undo()
    return _Change(getattr(node, "lineno", 0), where, kind, before, after, apply, undo)


def _show(node: ast.AST) -> str:
    # The head of a compound statement is enough to find it by.
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).splitlines()[0].split())[:100]
