"""The difference between two texts of a configuration, shown without what is no owner's setting. Pure.

The file holds tokens. A line is shown where it is certain to be about `[owner]`: one with a key of that
table, or one between two of them. A comment is somebody's note on what comes next, which may be a token.
"""

from __future__ import annotations

import difflib
from typing import Final

from swapd.config_lines import key_lines

CONTEXT_LINES: Final = 2
HIDDEN: Final = "(a line of another part of the file)"


def unified(before: str, after: str, name: str) -> tuple[str, ...]:
    """Lines of a unified diff, without their ends; hidden where they are not the owner's."""
    shown = (_shown(before), _shown(after))
    lines = difflib.unified_diff(
        shown[0], shown[1], f"{name} (now)", f"{name} (new)", n=CONTEXT_LINES, lineterm=""
    )
    return tuple(lines)


def strays(before: str, after: str) -> bool:
    """Whether anything but lines of `[owner]` and empty ones differs: then the edit went wrong."""
    old, new = _lines(before), _lines(after)
    owned = (_owner_lines(before), _owner_lines(after))
    for tag, old_from, old_to, new_from, new_to in difflib.SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if tag == "equal":
            continue
        for lines, numbers, own in (
            (old, range(old_from, old_to), owned[0]),
            (new, range(new_from, new_to), owned[1]),
        ):
            if any(lines[number].strip() and number not in own for number in numbers):
                return True
    return False


def _shown(text: str) -> list[str]:
    own = _owner_lines(text)
    return [line if number in own or not line.strip() else HIDDEN for number, line in enumerate(_lines(text))]


def _owner_lines(text: str) -> frozenset[int]:
    """Numbers, from 0, of the lines that are about `[owner]` for certain."""
    keyed: dict[int, bool] = {}
    for path, at in key_lines(text).items():
        # A line with a key of another table is that table's, whatever else is on it.
        keyed[at - 1] = keyed.get(at - 1, True) and path[0] == "owner"
    lines = _lines(text)
    before: list[bool] = []
    last = False
    for number, line in enumerate(lines):
        last = keyed.get(number, last)
        before.append(last)
        if line.lstrip().startswith("]"):
            # The end of a list of several lines.
            keyed[number] = last
    own = set()
    after = False
    for number in reversed(range(len(lines))):
        after = keyed.get(number, after)
        if before[number] and after:
            own.add(number)
    return frozenset(own)


def _lines(text: str) -> list[str]:
    """As `key_lines` counts them: other characters that end a line for Python do not in TOML."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")
