"""Server-Sent Events, from bytes to events. Pure: bytes in, events out, as the WHATWG standard reads them."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

MAX_PENDING_BYTES: Final = 4 << 20
"""More than any event of swapd; a server that sends more without an end of line is not one."""


class SseEvent(NamedTuple):
    """`id` is the cursor after this event, `at_s` when its last byte was read (monotonic seconds)."""

    id: int | None
    name: str
    data: str
    at_s: float

    def json(self) -> dict[str, Any]:
        """The event's data; empty where it is no JSON object."""
        try:
            value = json.loads(self.data)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


class SseParser:
    """Feed it what arrives; it holds what is not complete yet. `cursor` is the last id seen."""

    def __init__(self, cursor: int | None = None) -> None:
        self.cursor = cursor
        self._pending = b""
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes, at_s: float) -> list[SseEvent]:
        """Complete events of this chunk; an event without data only moves the cursor.

        Raises `ValueError` for a line that never ends.
        """
        lines = (self._pending + chunk).replace(b"\r\n", b"\n").split(b"\n")
        self._pending = lines.pop()
        if len(self._pending) > MAX_PENDING_BYTES:
            raise ValueError(f"a line of an event stream is over {MAX_PENDING_BYTES} bytes")
        events = []
        for raw in lines:
            event = self._line(raw.decode("utf-8", "replace"), at_s)
            if event is not None:
                events.append(event)
        return events

    def _line(self, line: str, at_s: float) -> SseEvent | None:
        if not line:
            return self._dispatch(at_s)
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
        elif field == "id" and value.isascii() and value.isdigit():
            self.cursor = int(value)
        return None

    def _dispatch(self, at_s: float) -> SseEvent | None:
        name, data = self._name or "message", self._data
        self._name, self._data = "", []
        return SseEvent(self.cursor, name, "\n".join(data), at_s) if data else None
