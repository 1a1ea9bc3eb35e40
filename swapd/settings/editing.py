"""Changes a few keys of a TOML text and nothing else: comments, order and all other lines stay. Pure.

What comes out is read again and must say exactly what was meant; a text that cannot be changed so is left
to its writer's editor.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.container import Container
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AbstractTable, Array, InlineTable, Item, Table

from swapd.config_lines import Path
from swapd.errors import Code, SwapdError
from swapd.settings.difference import strays

Value = bool | float | int | str | tuple[str, ...]


def edited(text: str, changes: Mapping[Path, Value | None]) -> str:
    """The text with each path set to its value, or without it where that is None.

    Raises `settings_not_editable` where the layout of the file does not let just these keys be changed.
    """
    wanted = _applied(tomllib.loads(text), changes)
    try:
        made = _edited(text, changes)
        same = tomllib.loads(made) == wanted
    except (TOMLKitError, tomllib.TOMLDecodeError, ValueError, TypeError, AttributeError, LookupError):
        # tomlkit has many ways to say that it has no place for something.
        same = False
    if not same or strays(text, made):
        raise SwapdError(Code.SETTINGS_NOT_EDITABLE)
    return made


def _edited(text: str, changes: Mapping[Path, Value | None]) -> str:
    document = tomlkit.parse(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    for path, value in changes.items():
        _put(document, path, value, newline)
    return tomlkit.dumps(document)


def _put(document: TOMLDocument, path: Path, value: Value | None, newline: str) -> None:
    *names, key = map(str, path)
    parts = _parts(document, names)
    if (holder := next((part for part in parts if key in part), None)) is not None:
        if value is None:
            holder.remove(key)
        elif isinstance(value, tuple) and isinstance(array := holder[key], Array):
            _change_array(array, value)
        else:
            holder[key] = _written(value)
    elif value is not None:
        # Of the parts of a table the one with its header; where there is none, tomlkit finds a place.
        table: Any = next((part for part in parts if not _is_implied(part)), None)
        if table is None:
            table = document
            for name in names:
                if name not in table:
                    _add(table, name, _new_table(table), newline)
                table = table[name]
        _add(table, key, tomlkit.item(_written(value)), newline)


def _parts(document: TOMLDocument, names: Sequence[str]) -> list[AbstractTable]:
    """Where a table is written: a file may come back to it, `[a.b]` before and after another one."""
    found: list[Container | AbstractTable] = [document]
    for name in names:
        found = [
            item
            for part in found
            for key, item in (part.value if isinstance(part, AbstractTable) else part).body
            if key is not None and key.key == name and isinstance(item, AbstractTable)
        ]
    return [part for part in found if isinstance(part, AbstractTable)]


def _is_implied(part: AbstractTable) -> bool:
    return isinstance(part, Table) and part.is_super_table()


def _add(table: Any, key: str, item: Item, newline: str) -> None:
    """Put a new key behind the last one of its table.

    tomlkit itself would put it behind the comments that belong to what follows the table.
    """
    if not isinstance(table, Table) or (last := _last_key(table)) is None:
        table[key] = item
        return
    if isinstance(item, Table):
        item.name = key
        item.trivia.indent = newline
    else:
        before = table.value.item(last)
        if isinstance(before, Item):
            item.trivia.indent = before.trivia.indent
        item.trivia.trail = newline
    table.value._insert_after(last, key, item)


def _new_table(outer: object) -> Table | InlineTable:
    return tomlkit.inline_table() if isinstance(outer, InlineTable) else tomlkit.table()


def _last_key(table: Table) -> str | None:
    """The last key of a table that is no table itself."""
    last = None
    for key, item in table.value.body:
        if key is not None and isinstance(item, Item) and not isinstance(item, Table):
            if key.is_dotted() or key.is_multi():
                return None
            last = key.key
    return last


def _change_array(array: Array, value: tuple[str, ...]) -> None:
    """Take out what is not wanted and add what is new, so that comments beside the rest stay."""
    for index in reversed(range(len(array))):
        if array[index] not in value or array[index] in array[:index]:
            del array[index]
    for item in value:
        if item not in array:
            array.append(item)


def _written(value: Value) -> object:
    if isinstance(value, tuple):
        return list(value)
    # 45 reads better than 45.0, and means the same to every key here.
    return int(value) if isinstance(value, float) and value == int(value) else value


def _applied(data: dict[str, Any], changes: Mapping[Path, Value | None]) -> dict[str, Any]:
    for path, value in changes.items():
        table = data
        for name in path[:-1]:
            if value is None and name not in table:
                break
            table = table.setdefault(str(name), {})
        else:
            if value is None:
                table.pop(str(path[-1]), None)
            else:
                table[str(path[-1])] = list(value) if isinstance(value, tuple) else value
    return data
