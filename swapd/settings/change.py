"""From a filled-in form to a whole new configuration, or to a sentence beside each field. Pure.

The new configuration is judged by the rules of a start, and by those that only a page has (R40, D7).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from swapd import config_lending, config_rules
from swapd.config import Config, OwnerConfig, PressureConfig
from swapd.config_rules import Problem
from swapd.errors import Code, SwapdError
from swapd.pressure.settings_rules import RETIRED_KEYS, FieldProblem, console_problems
from swapd.settings.fields import FIELDS, NO, PRESSURE, YES, Field, value_of
from swapd.settings.views import SettingsRefused

MAX_TEXT_CHARS: Final = 16_384
MAX_NUMBER_CHARS: Final = 40
MAX_LINES: Final = 64
MAX_LINE_CHARS: Final = 300
WITHOUT: Final = "none"
EMPTY_IS_ZERO: Final = "threshold_pct"
"""Left out of the file where it is not used (R75), so its field is empty then."""

_NUMBER: Final = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")

Value = bool | float | int | str | tuple[str, ...]


class NewSettings(NamedTuple):
    """What a form came to: the configuration that would be, and what differs from the file, by key."""

    config: Config
    changes: dict[str, Value]


class _Unreadable(ValueError):
    """A text that is no value of its field; its text is a sentence."""


def new_settings(saved: Config, values: Mapping[str, str]) -> NewSettings:
    """Apply a form to what the file says.

    Raises `SettingsRefused` with a sentence for each field that is wrong (R40), and `invalid_request` for
    a field that does not exist.
    """
    if unknown := next((key for key in values if key not in FIELDS), None):
        raise SwapdError(Code.INVALID_REQUEST, f"there is no setting '{unknown[:MAX_NUMBER_CHARS]}' here")
    problems: list[FieldProblem] = []
    changes: dict[str, Value] = {}
    if saved.owner.gpu_pressure.mode == "adaptive":
        # It goes with a save, as the retired keys do (R78).
        changes["mode"] = "calibrated"
    for key, text in values.items():
        field = FIELDS[key]
        try:
            value = _read(field, text)
        except _Unreadable as error:
            problems.append(FieldProblem(key, str(error)))
            continue
        before = value_of(saved.owner, field)
        if _differs(value, before):
            changes[key] = _in_order(value, before)
        else:
            changes.pop(key, None)
    config = msgspec.structs.replace(saved, owner=_owner(saved.owner, changes))
    wrong = {problem.field for problem in problems}
    problems.extend(problem for problem in _problems(config) if problem.field not in wrong)
    if problems:
        raise SettingsRefused(tuple(problems))
    return NewSettings(config, changes)


def entered(value: object, key: str = "") -> str:
    """Write a value as it is entered in its field."""
    match value:
        case bool():
            return YES if value else NO
        case float() | int():
            if key == EMPTY_IS_ZERO and value == 0:
                return ""
            return str(int(value)) if value == int(value) else repr(value)
        case tuple():
            return "\n".join(map(str, value))
        case _:
            return str(value)


def in_words(field: Field, value: object) -> str:
    """Write a value as a sentence can have it, with its unit."""
    text = entered(value, field.key)
    if field.kind == "lines":
        return ", ".join(text.splitlines()) or WITHOUT
    for written, words in field.choices:
        if written == text:
            return words
    return f"{text} {field.unit}".rstrip() if text else WITHOUT


def _read(field: Field, text: str) -> Value:
    if len(text) > MAX_TEXT_CHARS:
        raise _Unreadable("This is too long.")
    match field.kind:
        case "choice" | "flag":
            if text not in dict(field.choices):
                raise _Unreadable("Choose one of the list.")
            return text == YES if field.kind == "flag" else text
        case "lines":
            return _read_lines(text)
        case "number" | "whole":
            return _read_number(field, text.strip())


def _read_lines(text: str) -> tuple[str, ...]:
    lines = [line.strip() for line in re.split(r"\r\n|\r|\n", text)]
    found = tuple(dict.fromkeys(line for line in lines if line))
    if len(found) > MAX_LINES:
        raise _Unreadable(f"At most {MAX_LINES} lines.")
    if any(len(line) > MAX_LINE_CHARS for line in found):
        raise _Unreadable(f"A line has over {MAX_LINE_CHARS} characters.")
    if not all(line.isprintable() for line in found):
        raise _Unreadable("A line holds characters that cannot be shown.")
    return found


def _read_number(field: Field, text: str) -> float | int:
    if not text and field.key == EMPTY_IS_ZERO:
        return 0.0
    if not text:
        raise _Unreadable("Enter a number.")
    if len(text) > MAX_NUMBER_CHARS or not _NUMBER.fullmatch(text):
        raise _Unreadable("This is not a number. Write it as 12 or 12.5.")
    value = float(text)
    assert field.range is not None
    low, high = field.range
    if not low <= value <= high:
        raise _Unreadable(f"This must be between {entered(low)} and {entered(high)}.")
    if field.kind == "number":
        return value
    if value != math.floor(value):
        raise _Unreadable("This must be a whole number.")
    return int(value)


def _differs(value: Value, before: object) -> bool:
    if isinstance(value, tuple) and isinstance(before, tuple):
        return set(value) != set(before)
    return value != before


def _in_order(value: Value, before: object) -> Value:
    """A list keeps the order of the file; what is new comes last."""
    if not isinstance(value, tuple) or not isinstance(before, tuple):
        return value
    kept = tuple(dict.fromkeys(item for item in before if item in value))
    return kept + tuple(item for item in value if item not in kept)


def _owner(owner: OwnerConfig, changes: Mapping[str, Value]) -> OwnerConfig:
    here = {key: value for key, value in changes.items() if FIELDS[key].table != PRESSURE}
    below = {key: value for key, value in changes.items() if FIELDS[key].table == PRESSURE}
    pressure: PressureConfig = msgspec.structs.replace(
        # R122: they are not written again.
        owner.gpu_pressure,
        **below,
        **dict.fromkeys(RETIRED_KEYS),
    )
    changed: OwnerConfig = msgspec.structs.replace(owner, **here, gpu_pressure=pressure)
    return changed


def _problems(config: Config) -> Iterator[FieldProblem]:
    """One sentence a field: those for people first, then what a start would say."""
    told: set[str] = set()
    for problem in console_problems(config.owner.gpu_pressure):
        if problem.field not in told:
            told.add(problem.field)
            yield problem
    for found in (*config_rules.problems(config), *config_lending.problems(config)):
        key = _field_of(found)
        if key not in told:
            told.add(key)
            # It stands beside its field, which has a name of its own there.
            yield FieldProblem(key, found.text.removeprefix(f"{key}: "))


def _field_of(problem: Problem) -> str:
    """The field that a refusal is about; '' for none of the page."""
    if problem.path[:1] != ("owner",):
        return ""
    for key in problem.path[1:3]:
        if isinstance(key, str) and key in FIELDS:
            return key
    return ""
