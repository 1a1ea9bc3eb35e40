"""On which line of a TOML file each key stands, so that a refusal can point at it (H119).

`tomllib` tells what a file says, not where. This scanner walks text that `tomllib` has accepted already,
so it need not judge: it only counts lines while it skips strings, arrays and inline tables. A path is what
leads to a value: `("workers", 1, "cores", 0)`.
"""

from __future__ import annotations

import tomllib
from typing import Final

Path = tuple[str | int, ...]

_BARE_END: Final = ",]}#\n"
_BLANK: Final = " \t\r\n"


def key_lines(text: str) -> dict[Path, int]:
    """Map every path of a valid TOML document to its line, counted from 1."""
    return _Scanner(text).scan()


def show_path(path: Path) -> str:
    """Write a path as people read it: `workers[1].cores[0]`."""
    shown = ""
    for part in path:
        shown += f"[{part}]" if isinstance(part, int) else f".{part}" if shown else part
    return shown


def nearest_line(lines: dict[Path, int], path: Path) -> int | None:
    """The line of a path, or of the nearest thing around it that has one."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.line = 1
        self.counted_to = 0
        """Where `line` was last brought up to date."""
        self.lines: dict[Path, int] = {}
        self.tables: dict[Path, int] = {}
        """How many `[[…]]` headers each array of tables has had so far."""

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip_blank():
            if self.text.startswith("[[", self.at):
                self.at += 2
                table = self._header(appends=True)
                self.at += 2
            elif self.text[self.at] == "[":
                self.at += 1
                table = self._header(appends=False)
                self.at += 1
            else:
                self._pair(table)
        return self.lines

    def _header(self, *, appends: bool) -> Path:
        keys = self._dotted_key()
        path: Path = ()
        for number, key in enumerate(keys):
            path = (*path, key)
            self._note(path)
            if appends and number == len(keys) - 1:
                self.tables[path] = self.tables.get(path, 0) + 1
            if path in self.tables:
                path = (*path, self.tables[path] - 1)
                self._note(path)
        self._skip_blank()
        return path

    def _pair(self, table: Path) -> None:
        path = table
        for key in self._dotted_key():
            path = (*path, key)
            self._note(path)
        self._skip_blank()
        self.at += 1  # the '='
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip_blank()
        start = self.text[self.at]
        if start in "\"'":
            self._string()
        elif start == "[":
            self.at += 1
            index = 0
            while self._next_item("]"):
                self._note((*path, index))
                self._value((*path, index))
                index += 1
        elif start == "{":
            self.at += 1
            while self._next_item("}"):
                self._pair(path)
        else:
            while self.at < len(self.text) and self.text[self.at] not in _BARE_END:
                self.at += 1

    def _next_item(self, end: str) -> bool:
        """Move to the next item of an array or inline table, or past its end."""
        while self._skip_blank() and self.text[self.at] == ",":
            self.at += 1
        if self.text[self.at] == end:
            self.at += 1
            return False
        return True

    def _dotted_key(self) -> list[str]:
        keys = [self._simple_key()]
        while self._skip_blank() and self.text[self.at] == ".":
            self.at += 1
            keys.append(self._simple_key())
        return keys

    def _simple_key(self) -> str:
        self._skip_blank()
        start = self.at
        if self.text[start] in "\"'":
            self._string()
            decoded = tomllib.loads(f"key = {self.text[start : self.at]}")["key"]
            return str(decoded)
        while self.text[self.at].isalnum() or self.text[self.at] in "_-":
            self.at += 1
        return self.text[start : self.at]

    def _string(self) -> None:
        quote = self.text[self.at]
        fence = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(fence)
        while not self.text.startswith(fence, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(fence)
        # A multi-line string may end in up to two quotes of its own.
        while len(fence) == 3 and self.text.startswith(quote, self.at):
            self.at += 1

    def _skip_blank(self) -> bool:
        """Skip blanks and comments; false at the end of the text."""
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text[self.at] in _BLANK:
                self.at += 1
            else:
                return True
        return False

    def _note(self, path: Path) -> None:
        self.line += self.text.count("\n", self.counted_to, self.at)
        self.counted_to = self.at
        self.lines.setdefault(path, self.line)
