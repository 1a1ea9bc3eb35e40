"""A service in which every free text is an attack: names, sentences and reasons as a program or a peer could
choose them. Words of a fixed list stay as they are."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any, Literal, get_args, get_origin

import msgspec

from tests.console.service_double import ServiceDouble
from tests.lent_devices import lent_device

ATTACK = '"\'><script>alert(1)</script><b onmouseover="x">{{7*7}}'
AS_IT_IS = {"door", "authenticate", "subscribe", "stopping", "wait_stopping", "stop"}


class HostileService:
    """Passes on to a double, and poisons what comes back."""

    def __init__(self) -> None:
        self.double = ServiceDouble()
        self.double.lent[ATTACK] = lent_device(ATTACK, state="free", why="pressure", admitting=False)
        self.double.add("s0", "ops")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.double, name)
        if name in AS_IT_IS or not callable(found):
            return found
        if inspect.iscoroutinefunction(found):

            async def later(*arguments: Any, **named: Any) -> Any:
                return poisoned(await found(*map(self._known, arguments), **named))

            return later
        return lambda *arguments, **named: poisoned(found(*map(self._known, arguments), **named))

    def _known(self, argument: Any) -> Any:
        """What the double calls a thing that a page asks for by its poisoned name."""
        return argument


def poisoned(value: Any, kind: Any = None) -> Any:
    """The same with every free text replaced; `kind` is its annotation where one is known."""
    if isinstance(value, msgspec.Struct):
        kinds = {field.name: field.type for field in msgspec.structs.fields(value)}
        changes = {name: poisoned(getattr(value, name), each) for name, each in kinds.items()}
        return msgspec.structs.replace(value, **changes)
    if isinstance(value, str):
        return value if _is_word(kind) else ATTACK
    if isinstance(value, Mapping):
        return {key: poisoned(each, kind) for key, each in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(poisoned(each, kind) for each in value)
    return value


def _is_word(kind: Any) -> bool:
    return get_origin(kind) is Literal or any(_is_word(each) for each in get_args(kind))


class Markup(HTMLParser):
    """What of an attack has become markup; nothing should."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "b" or (tag == "script" and "src" not in given):
            self.found.append(tag)
        self.found += [f"{tag} {name}" for name in given if name.startswith("on") or name == "script"]
        for name in ("href", "src", "action"):
            if (given.get(name) or "").lower().lstrip().startswith(("javascript:", "data:")):
                self.found.append(f"{tag} {name}")
