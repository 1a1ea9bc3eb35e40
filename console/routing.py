"""Routes that are matched at every request, and hardly ever built.

Werkzeug compiles two functions for each route that make its address, whether or not anybody asks. Pages write
addresses down, so this was most of what a console took to come up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quart.routing import QuartRule
from quart_trio import QuartTrio


class Route(QuartRule):
    """A route whose address is worked out when it is asked for, each time."""

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        compile_builder = super()._compile_builder

        def build(route: Route, *arguments: Any, **values: Any) -> tuple[str, str]:
            built: tuple[str, str] = compile_builder(append_unknown).__get__(route, None)(
                *arguments, **values
            )
            return built

        return build


class ConsoleApp(QuartTrio):
    """Quart on Trio, with such routes."""

    url_rule_class = Route  # type: ignore[assignment]  # as in Quart itself: an instance attribute by its types
