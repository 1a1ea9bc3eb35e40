"""Runs the same core over recorded readings: CSV lines in, one row a reading out. Pure and streaming."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeGuard, get_args

from swapd.config import PressureConfig
from swapd.errors import Code, SwapdError
from swapd.pressure.calibration import DevicePressure
from swapd.pressure.reading import Attendance, Decision, Reading

COLUMNS: Final = ("t_s", "reading", "attendance")
ROW_FIELDS: Final = Decision._fields[:11]
"""Those of a row, in this order; what `Decision` has more is for status and logs."""
WORDS: Final = ("failed", "invalid", "missing")
ATTENDANCES: Final = frozenset(get_args(Attendance))
SHOWN_CHARS: Final = 40
MAX_LINE_CHARS: Final = 1000
"""A file without line ends must not be read into memory whole."""

Row = dict[str, float | int | str | bool | None]


class Recorded(NamedTuple):
    """One line of a recording."""

    t_s: float
    reading: Reading
    attendance: Attendance


def parse(lines: Iterable[str], name: str) -> Iterator[Recorded]:
    """Read the CSV columns `t_s,reading,attendance`, with a head line; blank lines are skipped.

    A reading is a number from 0 to 100, `failed`, `invalid` or `missing`. Raises `invalid_request` with the
    name of the file and the line.
    """
    reader = csv.reader(_bounded(lines, name), strict=True)
    try:
        head = next(reader, None)
        if head is None or tuple(cell.strip() for cell in head) != COLUMNS:
            raise _refusal(name, 1, f"the first line must be {','.join(COLUMNS)}")
        for cells in reader:
            if cells:
                yield _recorded(cells, name, reader.line_num)
    except csv.Error as error:
        raise _refusal(name, reader.line_num, str(error)) from None


def replay(
    recorded: Iterable[Recorded], config: PressureConfig, *, headless: bool = False
) -> Iterator[Decision]:
    """One decision a line, by the same rules as a device that is lent."""
    device = DevicePressure(config, headless=headless)
    for t_s, reading, attendance in recorded:
        yield device.observe(t_s, reading, attendance)


def row(decision: Decision) -> Row:
    """The fields that `swapd replay-readings` prints, in their order."""
    return dict(zip(ROW_FIELDS, decision, strict=False))


class Totals:
    """What a replay came to, for a person. Add every decision in order."""

    def __init__(self) -> None:
        self.rows = 0
        self.readings = 0
        self.engagements = 0
        self.engaged_s = 0.0
        self.last: Decision | None = None

    def add(self, decision: Decision) -> bool:
        """Count one decision in; say whether it is worth showing: the first, or another state than before."""
        before, self.last = self.last, decision
        self.rows += 1
        self.readings += not isinstance(decision.reading, str)
        if before is not None and before.engaged:
            self.engaged_s += max(decision.t_s - before.t_s, 0.0)
        self.engagements += decision.engaged and (before is None or not before.engaged)
        return before is None or _state(before) != _state(decision)


def _state(decision: Decision) -> tuple[object, ...]:
    return decision.profile, decision.calibrated, decision.engaged, decision.hint


def _recorded(cells: list[str], name: str, line: int) -> Recorded:
    if len(cells) != len(COLUMNS):
        raise _refusal(name, line, f"{len(cells)} cells where {','.join(COLUMNS)} are needed")
    t_text, reading_text, attendance = (cell.strip() for cell in cells)
    t_s = _number(t_text)
    if t_s is None:
        raise _refusal(name, line, f"t_s must be a number of seconds, not '{_shown(t_text)}'")
    if not _is_attendance(attendance):
        raise _refusal(
            name, line, f"attendance must be locked, unlocked or unknown, not '{_shown(attendance)}'"
        )
    return Recorded(t_s, _reading(reading_text, name, line), attendance)


def _reading(text: str, name: str, line: int) -> Reading:
    value = _number(text)
    if value is not None and 0.0 <= value <= 100.0:
        return value
    for word in WORDS:
        if text == word:
            return word
    raise _refusal(name, line, f"reading must be 0 to 100, failed, invalid or missing, not '{_shown(text)}'")


def _number(text: str) -> float | None:
    if "_" in text:
        return None  # Python would take 1_0 for 10
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _is_attendance(text: str) -> TypeGuard[Attendance]:
    return text in ATTENDANCES


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


def _bounded(lines: Iterable[str], name: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_CHARS:
            raise _refusal(name, number, f"the line is over {MAX_LINE_CHARS} characters")
        yield line


def _refusal(name: str, line: int, what: str) -> SwapdError:
    return SwapdError(Code.INVALID_REQUEST, f"{name} line {line}: {what}")
